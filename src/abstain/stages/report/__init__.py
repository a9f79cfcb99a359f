"""`python -m abstain.stages.report`."""
