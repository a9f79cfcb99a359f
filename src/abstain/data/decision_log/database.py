"""The database of the decision log: SQLite in the home, or PostgreSQL; its transactions, and its errors in one line.

Notes:

* Writers take turns: SQLite allows only one anyway, and in PostgreSQL a lock ensures it. So numbers rise in the order
  of commits, and to look up a row and write it is one step for all processes.
* SQLite has a write-ahead log, so that readers and the writer do not wait for each other. `synchronous` is FULL: NORMAL
  would survive the death of the process, but not a power cut. One commit contains all queued rows, so the sync of the
  disk is not paid for each row.
* `secure_delete` overwrites a removed text. PostgreSQL keeps dead rows until its vacuum.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, exc
from sqlalchemy.engine import URL, make_url

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import create_home
from abstain.data.decision_log.schema import SCHEMA_VERSION, create_tables, read_schema_version

TIMEOUT_S = 10
"""Seconds that a writer waits for another one, and that a server may take to answer."""

_log = logging.getLogger("abstain.serve")
_FILE = "sqlite:///"
_LOCK = 0x61627374_6C6F67  # "abstlog"
_ROW_ERRORS = (exc.DataError, exc.IntegrityError, exc.InterfaceError)
"""Errors of a value, not of the database; an interface error of a lost connection is marked as such."""
_URL = re.compile(r"[\w+]+://([^@/?#\[\]\s]*@)?[^@\s]*")
"""A URL in which no part of a password can be mistaken for the host and shown."""
_SECRET = re.compile("pass|secret|token", re.IGNORECASE)
_PRAGMAS = (f"busy_timeout={TIMEOUT_S * 1000}", "journal_mode=WAL", "synchronous=FULL", "secure_delete=ON")


class LogDatabase:
    """The database of a decision log; `open` creates its tables. All methods are thread-safe.

    Attributes:
        is_served: Whether errors reach callers of a server: then only the server's log has their place and cause.
        n_replaced: How often the file was removed or replaced while this process had it open.
    """

    def __init__(self, url: str) -> None:
        self._file = Path(url.removeprefix(_FILE)) if url.startswith(_FILE) else None
        parsed = URL.create("sqlite", database=str(self._file)) if self._file else _parse_postgres_url(url)
        masked = {name: "hidden" if _SECRET.search(name) else value for name, value in parsed.query.items()}
        self._display_name = str(self._file or parsed.set(query=masked).render_as_string(hide_password=True))
        self._secret = parsed.password
        self._engine = self._connect(parsed)
        self._inode: tuple[int, int] | None = None
        self._inode_lock = threading.Lock()  # one replaced file is one, however many threads come to write
        self.is_served, self.n_replaced = False, 0

    @classmethod
    def open(cls, url: str) -> LogDatabase:
        """Open a log, and create it if it does not exist.

        Args:
            url: `sqlite:///` and a path, or a PostgreSQL URL.

        Returns:
            The database.

        Raises:
            AbstainError: It cannot be created or reached, or has a layout that this release does not read.
        """
        database = cls(url)
        database._create_tables()
        return database

    @classmethod
    def open_existing(cls, url: str) -> LogDatabase | None:
        """Open a log that exists.

        Args:
            url: As for `open`.

        Returns:
            The database; None if nothing was logged yet.

        Raises:
            AbstainError: As for `open`.
        """
        database = cls(url)
        if database._file is not None and not database._file.exists():
            return None
        database._inode = _get_inode(database._file)
        with database.read_transaction() as connection:
            version = read_schema_version(connection)
        if version is None:
            return None
        database._require_schema_version(version)
        return database

    @property
    def is_file(self) -> bool:
        """Whether this is an SQLite file."""
        return self._file is not None

    @contextmanager
    def write_transaction(self) -> Iterator[Connection]:
        """Open a transaction that overlaps with no other writer's; it is committed at the end of the block.

        Yields:
            The connection.

        Raises:
            AbstainError: The database is unavailable. Errors of one row's values are raised unchanged.
        """
        with self._inode_lock:
            if self._inode != _get_inode(self._file):
                self.close()  # what is written into the old file now, nobody would find
                self._create_tables()
                self.n_replaced += 1
                _log.warning(
                    "decision log %s: the file was removed or replaced, and the ids and the history before are "
                    "unknown: if you have the old one, stop the server, put it back and start again",
                    self._display_name,
                )
        with self._transaction(is_writer=True) as connection:
            yield connection

    @contextmanager
    def read_transaction(self) -> Iterator[Connection]:
        """Open a transaction for reading.

        Yields:
            The connection.

        Raises:
            AbstainError: The database is unavailable.
        """
        with self._transaction(is_writer=False) as connection:
            yield connection

    def vacuum_removed_texts(self) -> None:
        """Remove deleted texts from SQLite's write-ahead log as well."""
        if self.is_file:
            with self._translate_errors(), self._engine.connect() as connection:
                connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._engine.dispose()

    def make_error(self, problem: object, code: Code = Code.NO_SERVICE) -> AbstainError:
        """Make a one-line error about this database, without its password.

        Args:
            problem: Message, or the error whose text is the message.
            code: Code of the error.

        Returns:
            The error. If `is_served`, its message is a general one, and the cause is logged.
        """
        message = " ".join(str(problem).split())
        redacted_message = message.replace(self._secret, "***") if self._secret else message
        if not self.is_served:
            return AbstainError(code, f"decision log {self._display_name}: {redacted_message}")
        _log.warning("decision log %s: %s", self._display_name, redacted_message)
        return AbstainError(
            Code.NO_SERVICE, "the decision log cannot be used now: see the server's log, and send it again later"
        )

    def _create_tables(self) -> None:
        if self._file is not None:
            try:
                create_home(self._file.parent)
                # SQLite gives its other files the mode of this one.
                os.close(os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            except OSError as error:
                raise self.make_error(
                    f"{error.strerror}: check its folder and permissions", Code.NOT_WRITABLE
                ) from None
        with self._transaction(is_writer=True) as connection:
            create_tables(connection)
            self._require_schema_version(read_schema_version(connection))
        self._inode = _get_inode(self._file)

    def _require_schema_version(self, version: str | None) -> None:
        if version != SCHEMA_VERSION:
            raise self.make_error(
                f"its layout has version {version}, this release knows {SCHEMA_VERSION}: use the release that wrote "
                "it, or move it away, and a new one is made",
                Code.VERSION_MISMATCH,
            )

    @contextmanager
    def _transaction(self, *, is_writer: bool) -> Iterator[Connection]:
        with self._translate_errors(), self._engine.connect() as connection:
            connection = connection.execution_options(is_writer=is_writer)
            with connection.begin():
                if is_writer and not self.is_file:
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
                yield connection

    def _connect(self, url: URL) -> Engine:
        try:
            if self._file is not None:
                engine = create_engine(url, connect_args={"check_same_thread": False})
                event.listen(engine, "connect", _set_pragmas)
                event.listen(engine, "begin", _begin_transaction)
                return engine
            milliseconds = TIMEOUT_S * 1000
            options = {
                "connect_timeout": TIMEOUT_S,
                "tcp_user_timeout": milliseconds,
                "options": f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds}",
            }
            return create_engine(url, pool_pre_ping=True, connect_args=options)
        except ImportError:
            raise self.make_error(
                "PostgreSQL needs psycopg: pip install 'abstain[postgres]'", Code.NO_PACKAGE
            ) from None

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except exc.DBAPIError as error:
            if isinstance(error, _ROW_ERRORS) and not error.connection_invalidated:
                raise
            cause = str(error.orig).strip().partition("\n")[0] or type(error.orig).__name__
            raise self.make_error(f"{cause}: it takes rows again once this is solved") from None
        except exc.TimeoutError:
            raise self.make_error("all connections are in use: ask again later") from None


def _set_pragmas(connection: Any, _: object) -> None:
    connection.isolation_level = None  # transactions begin by `_begin`, not by the driver
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin_transaction(connection: Connection) -> None:
    # A transaction that begins to read and then writes would fail, not wait, where another has written meanwhile.
    is_writer = connection.get_execution_options().get("is_writer")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")


def _get_inode(file: Path | None) -> tuple[int, int] | None:
    try:
        status = file.stat() if file else None
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status else None


def _parse_postgres_url(url: str) -> URL:
    """Parse a PostgreSQL URL.

    Raises:
        AbstainError: The URL is invalid; the message does not quote it, because it may contain a password.
    """
    try:
        parsed = make_url(url) if _URL.fullmatch(url) else None
    except (exc.ArgumentError, ValueError):
        parsed = None
    if parsed is None or parsed.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise AbstainError(
            Code.BAD_SETTING,
            "the URL of the decision log is none of PostgreSQL: write postgresql://user:password@host/database, and "
            "special characters of the password as in %40",
        )
    return parsed.set(drivername="postgresql+psycopg")
