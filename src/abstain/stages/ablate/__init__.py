"""`python -m abstain.stages.ablate`."""
