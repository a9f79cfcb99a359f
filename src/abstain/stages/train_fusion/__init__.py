"""`python -m abstain.stages.train_fusion`."""
