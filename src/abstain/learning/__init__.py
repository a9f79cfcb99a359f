"""Learning from labels and features: estimators, thresholds, metrics and evaluation."""
