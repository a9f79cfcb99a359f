"""Read-only connections to a source's database, re-established when they break, with one-line errors.

An SQLite database is read from a temporary copy: while rows are streamed, its application can go on writing.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.pool import NullPool, StaticPool
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.filesystem import expand_variables

T = TypeVar("T")

MAX_ATTEMPTS = 5
"""How often a statement is sent at most if the connection breaks."""

RETRY_WAIT = wait_exponential(multiplier=0.5)
"""Seconds before the next attempt: 0.5, 1, 2, 4."""

CHUNK_ROWS = 50
"""Rows held in memory at once: their size is known only after they arrived."""

_SECRET_KEY = re.compile("pass|secret|token", re.IGNORECASE)


class Database:
    """One database, for reading.

    Args:
        url: URL of the database, with its password.
    """

    def __init__(self, url: URL) -> None:
        masked_query = {key: "hidden" if _SECRET_KEY.search(key) else value for key, value in url.query.items()}
        self._display_url = url.set(query=masked_query).render_as_string(hide_password=True)
        self._password = url.password
        self._was_reached = False
        with self._translate_errors():
            self._engine = self._connect(url)

    def make_error(self, problem: object, code: Code = Code.NOT_READABLE) -> AbstainError:
        """Make a one-line error about this database, without its password.

        Args:
            problem: The problem.
            code: Code of the error.

        Returns:
            The error.
        """
        message = " ".join(str(problem).split())
        return AbstainError(
            code, f"{self._display_url}: {message.replace(self._password, '***') if self._password else message}"
        )

    def query(self, run_query: Callable[[Connection], T], subject: str = "") -> T:
        """Run one query, again if the connection breaks.

        Args:
            run_query: Runs the query on a connection.
            subject: Subject of the query in error messages.

        Returns:
            The result of `run_query`.
        """
        with self._translate_errors(subject):
            result: T = self._make_retrying()(self._run_once, run_query)
            return result

    def fetch_first(self, statement: Any, subject: str = "") -> Any:
        """Fetch the first row of a statement.

        Args:
            statement: The statement.
            subject: Subject of the statement in error messages.

        Returns:
            The row; None if there is none.
        """
        return self.query(lambda connection: connection.execute(statement).first(), subject)

    def stream(self, make_statement: Callable[[Any], Any], since: Any, subject: str) -> Iterator[Any]:
        """Stream rows in the order of a watermark.

        After a broken connection it continues at the last watermark, so some rows may come twice, but none is omitted.

        Args:
            make_statement: Makes the statement for the rows from a watermark on. The last column is the watermark that
                the rows are ordered by.
            since: The watermark to begin at; None for all rows.
            subject: Subject of the statement in error messages.

        Yields:
            The rows.
        """
        with self._translate_errors(subject):
            for attempt in self._make_retrying():
                with attempt, self._engine.connect() as connection:
                    self._was_reached = True
                    for row in connection.execution_options(yield_per=CHUNK_ROWS).execute(make_statement(since)):
                        since = since if row[-1] is None else row[-1]
                        yield row

    def _connect(self, url: URL) -> Engine:
        if url.get_backend_name() == "sqlite":
            return _copy_sqlite(url)
        options: dict[str, Any] = {}
        if url.get_backend_name() == "postgresql":
            options = {"connect_args": {"connect_timeout": 10}, "execution_options": {"postgresql_readonly": True}}
        return create_engine(url, poolclass=NullPool, **options)

    def _run_once(self, run_query: Callable[[Connection], T]) -> T:
        with self._engine.connect() as connection:
            self._was_reached = True
            return run_query(connection)

    def _make_retrying(self) -> Retrying:
        return Retrying(
            retry=retry_if_exception(self._is_broken),
            stop=stop_after_attempt(MAX_ATTEMPTS),
            wait=RETRY_WAIT,
            reraise=True,
        )

    def _is_broken(self, error: BaseException) -> bool:
        """Whether the connection broke; a server that was never reached is not tried again."""
        if not isinstance(error, DBAPIError):
            return False
        is_unreachable = isinstance(error, OperationalError) and error.statement is None
        return error.connection_invalidated or (self._was_reached and is_unreachable)

    @contextmanager
    def _translate_errors(self, subject: str = "") -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise self.make_error("no such database file") from None
        except (ImportError, NoSuchModuleError) as error:
            message = f"{error}: install the package that SQLAlchemy needs for this URL"
            raise self.make_error(message, Code.NO_PACKAGE) from None
        except sqlite3.Error as error:
            raise self.make_error(error) from None
        except DBAPIError as error:
            message = str(error.orig).strip().partition("\n")[0] or type(error.orig).__name__
            if self._is_broken(error):
                subject = f"the connection broke, and {MAX_ATTEMPTS - 1} attempts to go on failed"
            if isinstance(error, DataError):
                message += ": correct this value, or leave its row out by a query"
            raise self.make_error(f"{subject}: {message}" if subject else message) from None


def parse_url(url: str, name: str, home: Path = Path()) -> URL:
    """Parse the URL of a source.

    Args:
        url: The URL; `${VARIABLE}` is replaced from the environment.
        name: Name of the source in messages.
        home: Folder that the path of an SQLite file is relative to.

    Returns:
        The URL.

    Raises:
        AbstainError: A variable is not set, or SQLAlchemy cannot parse the URL.
    """
    try:
        parsed = make_url(expand_variables(url, f"source '{name}'"))
    except (ArgumentError, ValueError):
        raise AbstainError(
            Code.BAD_SETTING,
            f"source '{name}': SQLAlchemy cannot parse its url: write it as postgresql://user:${{PASSWORD}}@host/database",
        ) from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() == "sqlite" and parsed.database and not parsed.database.startswith((":", "file:")):
        parsed = parsed.set(database=str(home / parsed.database))
    return parsed


def _copy_sqlite(url: URL) -> Engine:
    """Copy a database into a temporary one on disk, which SQLite deletes when its connection is closed."""
    if url.database and not url.database.startswith("file:") and not Path(url.database).is_file():
        raise FileNotFoundError(url.database)  # SQLite would create an empty one
    copy = sqlite3.connect("", check_same_thread=False)
    copy.text_factory = lambda content: content.decode("utf-8", "surrogateescape")
    with create_engine(url, poolclass=NullPool).connect() as connection:
        cast(sqlite3.Connection, connection.connection.driver_connection).backup(copy)
    return create_engine("sqlite://", creator=lambda: copy, poolclass=StaticPool)
