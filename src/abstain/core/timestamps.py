"""A point in time in rows and in params.yaml: ISO 8601 with a time zone, stored in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator


def _convert_to_utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("timestamp without a time zone: write it in UTC, as in 2026-01-31T12:00:00Z")
    return value.astimezone(UTC)


def _parse_iso(value: Any) -> Any:
    """Accept ISO 8601 only: pydantic would also read digits as seconds since 1970, silently a different time."""
    if isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError("not a timestamp: write it in UTC, as in 2026-01-31T12:00:00Z") from None


Timestamp = Annotated[datetime, BeforeValidator(_parse_iso), AfterValidator(_convert_to_utc)]
