"""`python -m abstain.stages.tune_threshold`."""
