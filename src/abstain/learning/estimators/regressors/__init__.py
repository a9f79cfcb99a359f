"""Correctness regressors on log-likelihood features (Zhang et al.)."""
