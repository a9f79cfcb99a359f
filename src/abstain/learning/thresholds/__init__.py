"""Threshold selection and risk control (Learn-then-Test)."""
