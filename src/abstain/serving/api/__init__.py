"""`abstain serve`: the gate as an HTTP service."""
