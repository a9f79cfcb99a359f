"""Reviews: sampling, the review file, the local page, import of verdicts."""
