"""One batch from parsed rows to published parts."""
