"""How good a confidence is: metrics, intervals, audits, plots and the report."""
