"""`python -m abstain.stages.evaluate`."""
