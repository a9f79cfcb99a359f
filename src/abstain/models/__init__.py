"""The probes and the regressors: how they are fitted, stored and exported."""
