"""`python -m abstain.stages.dataset`."""
