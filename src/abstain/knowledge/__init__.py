"""The handbook: documents read, cut into chunks, embedded and found."""
