"""Weighted metrics, bootstrap intervals, calibration, ROUGE."""
