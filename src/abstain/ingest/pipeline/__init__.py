"""The pipeline of one batch, from parsed rows to published parts."""
