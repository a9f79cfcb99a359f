"""`python -m abstain.stages.features`."""
