"""Connections to the database of a source: made again when they break, never written through.

What is asked for is read into memory before it is worked on, page by page: no statement is open meanwhile for which
others would have to wait, and a page that breaks can be asked for again.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from abstain.core.errors import AbstainError
from abstain.ingest.sources.sql_postgres import keep_odd_times
from abstain.ingest.sources.sql_table import Table

T = TypeVar("T")

PAGE = 20_000
"""Rows that are asked for at once, at most."""

WAITS = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each attempt to connect again."""

_PAGE_BYTES = 32 * 1024 * 1024
_AT_ONCE = 500
_SECRET = re.compile("pass|secret|token", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{(\w+)\}")


class Database:
    """Connections to one database, made again when they break; nothing is ever written through them."""

    def __init__(self, url: URL) -> None:
        masked = {key: "hidden" if _SECRET.search(key) else value for key, value in url.query.items()}
        self._shown = url.set(query=masked).render_as_string(hide_password=True)
        self._secret = url.password
        options: dict[str, Any] = {}
        if url.get_backend_name() == "postgresql":
            options = {"connect_args": {"connect_timeout": 10}, "execution_options": {"postgresql_readonly": True}}
        try:
            self._engine = create_engine(url, poolclass=NullPool, **options)
        except (ImportError, NoSuchModuleError) as error:
            raise self.refuse(f"{error}: install the package that SQLAlchemy needs for '{url.drivername}'") from None
        if url.get_backend_name() == "sqlite":
            _require_file(url, self)
            event.listen(self._engine, "connect", _tame_sqlite)
        if self._engine.dialect.driver == "psycopg":
            event.listen(self._engine, "connect", keep_odd_times)
        self._failures = 0
        self._was_there = False

    def refuse(self, problem: object) -> AbstainError:
        """The one-line error about this database, without its password."""
        said = " ".join(str(problem).split())
        return AbstainError(f"{self._shown}: {said.replace(self._secret, '***') if self._secret else said}")

    def ask(self, question: Callable[[Connection], T], about: str = "") -> T:
        """The answer to one question; asked again where the connection breaks."""
        while True:
            with self._speaking(about), self._engine.connect() as link:
                self._was_there = True
                answer = question(link)
                self._failures = 0
                return answer

    def first(self, statement: Any) -> Sequence[Any] | None:
        """The first row."""
        return self.ask(lambda link: link.execute(statement).first())

    def rows(self, table: Table, since: Any) -> Iterator[Sequence[Any]]:
        """Every row from the watermark `since` on, in order; every row of all, orphans last, where that is None."""
        after: Sequence[Any] | None = None
        is_last = False
        while not is_last:
            rows, is_last = self.ask(partial(_page, table=table, since=since, after=after))
            yield from rows
            if not is_last:
                after = rows[-1][-len(table.key) - 1 :]
                self._require_no_twin(table, after)
        if since is None:
            # All at once, because nothing tells where to go on: there are few, or the watermark is a wrong one.
            yield from self.ask(lambda link: list(link.execute(table.orphans())))

    def _require_no_twin(self, table: Table, last: Sequence[Any]) -> None:
        """The next page begins after `last`, so a second row like it would be left out."""
        twins = self.first(table.twins(last))
        if twins and twins[0] > 1:
            raise self.refuse(
                f"{twins[0]} rows of {table.origin} have the key {', '.join(map(str, last[1:]))}: "
                f"say which columns tell its rows apart, as in key: [id]"
            )

    @contextmanager
    def _speaking(self, about: str = "") -> Iterator[None]:
        """Swallows a broken connection, after a while, a few times; whoever asked asks again."""
        try:
            yield
        except DBAPIError as error:
            said = str(error.orig).strip().partition("\n")[0] or type(error.orig).__name__
            cannot_connect = self._was_there and error.statement is None
            if not (error.connection_invalidated or cannot_connect or self._failures):
                raise self.refuse(f"{about}: {said}" if about else said) from None
            if self._failures == len(WAITS):
                raise self.refuse(f"the connection broke, and {len(WAITS)} attempts to go on failed: {said}") from None
            time.sleep(WAITS[self._failures])
            self._failures += 1


def _page(link: Connection, table: Table, since: Any, after: Sequence[Any] | None) -> tuple[list[Sequence[Any]], bool]:
    """The next rows, no more than fit into little memory, and whether they are the last."""
    rows: list[Sequence[Any]] = []
    size = 0
    try:
        for row in link.execution_options(yield_per=_AT_ONCE).execute(table.page(since, after, PAGE)):
            rows.append(row)
            size += sum(map(_size, row))
            if size > _PAGE_BYTES:
                return rows, False
    except DBAPIError:
        if not rows:
            raise
        return rows, False  # what came before the break has come; the next page will tell whether it was one
    return rows, len(rows) < PAGE


def _size(value: Any) -> int:
    """How many characters `value` holds, about."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 8


def parse_url(url: str, name: str, home: Path) -> URL:
    whole = _VARIABLE.fullmatch(url)

    def value(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise AbstainError(f"source '{name}': the environment variable {match[1]} in its url is not set")
        found = os.environ[match[1]]
        return found if whole else quote(found, safe="")  # a part of a URL, as a password is, may hold any character

    try:
        parsed = make_url(_VARIABLE.sub(value, url))
    except (ArgumentError, ValueError):
        raise AbstainError(
            f"source '{name}': its url is none that SQLAlchemy reads: write it as "
            "postgresql://user:${PASSWORD}@host/database"
        ) from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() == "sqlite" and parsed.database and not parsed.database.startswith((":", "file:")):
        parsed = parsed.set(database=str(home / parsed.database))
    return parsed


def _require_file(url: URL, database: Database) -> None:
    """SQLite would make an empty database where there is none."""
    if url.database and not url.database.startswith("file:") and not Path(url.database).is_file():
        raise database.refuse("no such database file")


def _tame_sqlite(link: Any, _record: Any) -> None:
    link.execute("PRAGMA query_only = ON")
    link.execute("PRAGMA busy_timeout = 30000")
    link.text_factory = lambda content: content.decode("utf-8", "surrogateescape")
