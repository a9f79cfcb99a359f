"""The allowed difference between an exported file and the fitted model."""

MAX_PARITY = 1e-4
"""The largest allowed difference of a confidence."""
