"""Reviews: sampling, the review file, import of verdicts."""
