"""How far an exported file may differ from what was fitted."""

MAX_PARITY = 1e-4
"""The largest difference of a confidence."""
