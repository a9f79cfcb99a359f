"""What ingest and validation found, as one HTML page that needs no network and no script."""

from abstain.feedback.pages.ingest import ingest_page
from abstain.feedback.pages.validation import validation_page

__all__ = ["ingest_page", "validation_page"]
