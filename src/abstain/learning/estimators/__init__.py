"""Probes, correctness regressors, fusion: what is fitted, saved and exported."""
