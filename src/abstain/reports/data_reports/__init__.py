"""What ingest and validation found, as one HTML page that needs no network and no script."""
