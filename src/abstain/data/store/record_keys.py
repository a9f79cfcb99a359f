"""Stored rows: the canonical line of a row, and the digests of its identity and its content.

`identity` is unique: an interaction's id; the interaction, moment and person of a thumb or a review. `content` is of
the whole line. Equal identities with equal content are duplicates, with other content a conflict. Both are 16 bytes of
BLAKE2b: those of a million rows fit into memory, and collisions are improbable.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from abstain.core.contracts import Interaction, Review, Row, Thumb

Stored = Interaction | Thumb | Review
"""The rows that arrive in batches and are kept in parts."""

TABLES: dict[type[Row], str] = {Interaction: "interactions", Thumb: "feedback", Review: "reviews"}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Record(NamedTuple):
    """One row with its canonical line (without the line break), its digests, and its moment as in `RecordKey`."""

    row: Stored
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
    """The index entry of a stored line, computed without parsing a row; `moment` in microseconds since 1970."""

    identity: bytes
    content: bytes
    moment: int


def make_record(row: Stored) -> Record:
    """`row` as it is stored."""
    text = row.to_json_line().encode()
    content = _digest(text)
    key = row.interaction_id
    match row:
        case Interaction():
            return Record(row, text, interaction_identity(key), content, to_microseconds(row.asked_at))
        case Thumb():
            moment = to_microseconds(row.given_at)
            return Record(row, text, _make_feedback_record(b"f", key, moment, row.user, content), content, moment)
        case Review():
            moment = to_microseconds(row.reviewed_at)
            return Record(row, text, _make_feedback_record(b"r", key, moment, row.reviewer, content), content, moment)


def parse_key(table: str, text: bytes) -> RecordKey:
    """The digests of a stored line of `table`. Raises `ValueError` or `KeyError` for an invalid line."""
    fields: Mapping[str, Any] = json.loads(text)
    content = _digest(text)
    key = fields["interaction_id"]
    if table == "interactions":
        return RecordKey(
            interaction_identity(key), content, to_microseconds(datetime.fromisoformat(fields["asked_at"]))
        )
    at, who = ("given_at", "user") if table == "feedback" else ("reviewed_at", "reviewer")
    moment = to_microseconds(datetime.fromisoformat(fields[at]))
    return RecordKey(_make_feedback_record(table[:1].encode(), key, moment, fields[who], content), content, moment)


def interaction_identity(interaction_id: str) -> bytes:
    return _digest(b"i\0" + interaction_id.encode())


def to_microseconds(moment: datetime) -> int:
    """Since 1970, exact."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_microseconds(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _make_feedback_record(kind: bytes, interaction_id: str, moment: int, who: str | None, content: bytes) -> bytes:
    """The content of an anonymous thumb is its identity: two equal ones may come from two people."""
    if who is None:
        return _digest(kind + b"\0" + content)
    return _digest(b"\0".join((kind, interaction_id.encode(), str(moment).encode(), who.encode())))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
