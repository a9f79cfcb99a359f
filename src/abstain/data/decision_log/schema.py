"""The tables of the decision log, and the version of their layout.

Notes:

* `seq` rises in the order of commits, because writers take turns (`LogDatabase.write_transaction`): a reader that has
  seen n has seen all below n.
* A text is one JSON cell, so that it can be removed while the other columns stay. Times are microseconds since 1970.
* `digest` identifies a repeated row: the keyed digest of its original content, before redaction. It is removed with the
  texts, or when their days would be over.
"""

from __future__ import annotations

import secrets

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    inspect,
    select,
)

SCHEMA_VERSION = "4"

_SEQ_TYPE = BigInteger().with_variant(Integer(), "sqlite")  # SQLite counts up by itself in a column of this type alone
_TABLES = MetaData()

PROPERTIES = Table(
    "decision_log", _TABLES, Column("name", String, primary_key=True), Column("content", String, nullable=False)
)
"""Properties of the log.

`version` of the layout; `id`, by which a reader notices another log; `checked`, the last time that an idle server has
verified that it can write.
"""

DECISIONS = Table(
    "decision_log_decisions",
    _TABLES,
    Column("seq", _SEQ_TYPE, primary_key=True, autoincrement=True),
    Column("interaction_id", Text, nullable=False, unique=True),
    Column("decided_at", BigInteger, nullable=False),
    Column("decision", String, nullable=False),
    Column("shown", Boolean, nullable=False),
    Column("code", Text),
    Column("reason", Text),
    Column("confidence", Float(53)),
    Column("probability", Float(53)),
    Column("threshold", Float(53)),
    Column("version", Text),
    Column("scorer", Text),
    Column("forward_tokens", Float(53), nullable=False),
    Column("duration_ms", Float(53), nullable=False),
    Column("source", Text, nullable=False),
    Column("product", Text),
    Column("user", Text, index=True),
    Column("sampling_rate", Float(53), nullable=False),  # with which it was sampled for the data
    Column("sampled", Boolean, nullable=False),
    Column("text_state", String, nullable=False),  # kept, none (only states were given), expired or erased
    Column("content", Text),
    Column("digest", String),
    Index("decision_log_withheld", "shown", "seq"),
    Index("decision_log_statistics", "decided_at", "decision", "shown", "duration_ms"),  # read without the texts
    sqlite_autoincrement=True,
)

FEEDBACK = Table(
    "decision_log_feedback",
    _TABLES,
    Column("seq", _SEQ_TYPE, primary_key=True, autoincrement=True),
    Column("feedback_id", Text, nullable=False, unique=True),
    Column("interaction_id", Text, nullable=False, index=True),
    Column("recorded_at", BigInteger, nullable=False, index=True),
    Column("kind", String, nullable=False),  # thumb or review
    Column("user", Text, index=True),
    Column("text_state", String, nullable=False),  # kept, expired or erased
    Column("content", Text),
    Column("digest", String),
    sqlite_autoincrement=True,
)

QUEUE = Table(
    "decision_log_queue",
    _TABLES,
    Column("seq", _SEQ_TYPE, primary_key=True, autoincrement=True),
    Column("interaction_id", Text, nullable=False, unique=True),
    Column("probability", Float(53), nullable=False),  # with which it was sampled from data/
    Column("sampled_at", BigInteger, nullable=False, index=True),
    Column("content", Text, nullable=False),
    Column("is_reviewed", Boolean, nullable=False),
    Column("held_by", Text),
    Column("held_until", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)
"""The answers of the last sample that reviewers work through on the page."""

ERASED_USERS = Table(
    "decision_log_erased",
    _TABLES,
    Column("user", Text, primary_key=True),
    Column("with_interactions", Boolean, nullable=False),
)
"""Pseudonyms of erased users, of whom nothing is stored any more."""

CALLS = Table(
    "decision_log_calls",
    _TABLES,
    Column("seq", _SEQ_TYPE, primary_key=True, autoincrement=True),
    Column("owner", Text, nullable=False),  # the key that registered it
    Column("call_id", Text, nullable=False),
    Column("user", Text, index=True),
    Column("content", Text, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
    UniqueConstraint("owner", "call_id"),
    Index("decision_log_calls_of_owner", "owner", "seq"),
    sqlite_autoincrement=True,
)
"""Registered calls, for a short time."""

WINDOWS = Table(
    "decision_log_windows",
    _TABLES,
    Column("version", Text, primary_key=True),
    Column("starts_at", BigInteger, primary_key=True),
    Column("ends_at", BigInteger, nullable=False, index=True),
    Column("is_final", Boolean, nullable=False),
    Column("content", Text, nullable=False),  # statistics, and the alarms but their codes
    Column("alarms", Text, nullable=False),  # codes, with a space between two
)
"""Results of monitoring for each window, without texts."""


SHADOWS = Table(
    "decision_log_shadows",
    _TABLES,
    Column("seq", _SEQ_TYPE, primary_key=True, autoincrement=True),
    Column("interaction_id", Text, nullable=False),
    Column("candidate", Text, nullable=False),
    Column("decided_at", BigInteger, nullable=False, index=True),
    Column("would_show", Boolean, nullable=False),
    Column("confidence", Float(53)),
    Column("probability", Float(53)),
    Column("threshold", Float(53), nullable=False),
    UniqueConstraint("interaction_id", "candidate"),
    sqlite_autoincrement=True,
)
"""Decisions of a shadow candidate, which have no effect."""


def create_tables(connection: Connection) -> None:
    """Create the tables of a new log. Other writers have to wait meanwhile."""
    if read_schema_version(connection) is not None:
        return
    _TABLES.create_all(connection)
    rows = {"version": SCHEMA_VERSION, "id": secrets.token_hex(16), "checked": ""}
    connection.execute(PROPERTIES.insert(), [{"name": name, "content": content} for name, content in rows.items()])


def read_schema_version(connection: Connection) -> str | None:
    """Return the version of the log's layout; None if there are no tables."""
    if not inspect(connection).has_table(PROPERTIES.name):
        return None
    return str(read_property(connection, "version"))


def read_property(connection: Connection, name: str) -> str | None:
    """Return a property of the log.

    Args:
        connection: A transaction.
        name: `version` or `id`.

    Returns:
        The value; None if it is missing.
    """
    content: str | None = connection.scalar(select(PROPERTIES.c.content).where(PROPERTIES.c.name == name))
    return content
