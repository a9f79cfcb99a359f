"""`python -m abstain.stages.train_probe`."""
