"""Thresholds, calibration, and the gate that a version must pass."""
