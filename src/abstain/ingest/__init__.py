"""Getting rows in: sources, privacy, deduplication, quarantine, erasure."""
