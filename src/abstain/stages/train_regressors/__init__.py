"""`python -m abstain.stages.train_regressors`."""
