"""Reviews by subject-matter experts: sampling, the review file, the local page, import of verdicts."""
