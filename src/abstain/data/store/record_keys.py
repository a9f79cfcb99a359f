"""Stored rows: the canonical line of a row, and the digests of its identity and its content.

`identity` is unique: an interaction's id; or interaction, time and person of a thumb or a review. `content` is the
digest of the complete line. Equal identities with equal content are duplicates, with other content a conflict. Both are
16 bytes of BLAKE2b: those of a million rows fit into memory, and collisions are improbable.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from abstain.core.contracts import Interaction, Review, Row, Thumb

StoredRow = Interaction | Thumb | Review
"""The rows that arrive in batches and are stored in parts."""

TABLES: dict[type[Row], str] = {Interaction: "interactions", Thumb: "feedback", Review: "reviews"}

_FIELDS = {"interactions": ("asked_at", ""), "feedback": ("given_at", "user"), "reviews": ("reviewed_at", "reviewer")}
"""Fields with the time and the person of a row, by table."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Record(NamedTuple):
    """A row with its canonical line and its digests.

    Attributes:
        row: The row.
        line: Its canonical line, without the line break.
        identity: Digest of its identity.
        content: Digest of its line.
        timestamp_us: Its time in microseconds since 1970.
    """

    row: StoredRow
    line: bytes
    identity: bytes
    content: bytes
    timestamp_us: int

    @property
    def key(self) -> str:
        """The row's name in reports, `table/id`; unique in a data folder."""
        name = f"{TABLES[type(self.row)]}/{self.row.interaction_id}"
        return name if isinstance(self.row, Interaction) else f"{name}/{self.content.hex()[:12]}"


class RecordKey(NamedTuple):
    """The digests of a stored line, computed without parsing a row.

    Attributes:
        identity: Digest of its identity.
        content: Digest of the line.
        timestamp_us: Its time in microseconds since 1970.
    """

    identity: bytes
    content: bytes
    timestamp_us: int


def make_record(row: StoredRow) -> Record:
    """Return `row` with its line and digests."""
    line, table = row.to_json_line().encode(), TABLES[type(row)]
    time_field, person_field = _FIELDS[table]
    person: str | None = getattr(row, person_field) if person_field else None
    return Record(row, line, *_make_key(table, line, row.interaction_id, getattr(row, time_field), person))


def parse_key(table: str, line: bytes) -> RecordKey:
    """Compute the digests of a stored line.

    Args:
        table: Name of its table.
        line: The line, without the line break.

    Returns:
        The digests and the time.

    Raises:
        ValueError: The line is invalid.
        KeyError: A field is missing.
    """
    fields: Mapping[str, Any] = json.loads(line)
    time_field, person_field = _FIELDS[table]
    timestamp = datetime.fromisoformat(fields[time_field])
    return _make_key(table, line, fields["interaction_id"], timestamp, fields[person_field] if person_field else None)


def make_interaction_identity(interaction_id: str) -> bytes:
    """Return the identity of the interaction with this id."""
    return _digest(b"i\0" + interaction_id.encode())


def to_microseconds(timestamp: datetime) -> int:
    """Return the exact number of microseconds since 1970."""
    return (timestamp - _EPOCH) // timedelta(microseconds=1)


def from_microseconds(microseconds: int) -> datetime:
    """Return the time in UTC that is this many microseconds after 1970."""
    return _EPOCH + timedelta(microseconds=microseconds)


def _make_key(table: str, line: bytes, interaction_id: str, timestamp: datetime, person: str | None) -> RecordKey:
    """Return the digests of a row. Two people may give equal anonymous thumbs, so their identity is the content."""
    content, timestamp_us, kind = _digest(line), to_microseconds(timestamp), table[:1].encode()
    if table == "interactions":
        identity = make_interaction_identity(interaction_id)
    elif person is None:
        identity = _digest(kind + b"\0" + content)
    else:
        identity = _digest(b"\0".join((kind, interaction_id.encode(), str(timestamp_us).encode(), person.encode())))
    return RecordKey(identity, content, timestamp_us)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
