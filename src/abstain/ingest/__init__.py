"""Getting rows in: sources, importers, privacy, deduplication, quarantine, erasure."""
