"""Servers that sources are read from: an S3 API of this host (PostgreSQL is every test's)."""

from tests.llm.features.conftest import s3, s3_server

__all__ = ["s3", "s3_server"]
