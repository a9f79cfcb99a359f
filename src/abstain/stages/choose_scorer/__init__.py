"""`python -m abstain.stages.choose_scorer`."""
