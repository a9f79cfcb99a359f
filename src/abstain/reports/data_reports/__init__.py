"""Results of ingest and validation, as one HTML page that needs no network and no script."""
