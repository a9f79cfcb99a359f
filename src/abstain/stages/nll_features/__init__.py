"""`python -m abstain.stages.nll_features`."""
