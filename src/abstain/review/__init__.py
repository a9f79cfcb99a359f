"""Reviews: sampling, the review file, import of reviews."""
