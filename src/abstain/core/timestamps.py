"""A moment in rows and in params.yaml: ISO 8601 with a time zone, kept in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator


def _utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("timestamp without a time zone: write it in UTC, as in 2026-01-31T12:00:00Z")
    return value.astimezone(UTC)


def _iso(value: Any) -> Any:
    """ISO 8601 alone: pydantic would also read digits as seconds since 1970, silently a different time."""
    if isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError("not a timestamp: write it in UTC, as in 2026-01-31T12:00:00Z") from None


Timestamp = Annotated[datetime, BeforeValidator(_iso), AfterValidator(_utc)]
