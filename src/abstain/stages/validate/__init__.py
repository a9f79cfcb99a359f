"""`python -m abstain.stages.validate`."""
