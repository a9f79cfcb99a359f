"""The decision log of a server: one thread writes what all requests bring, and commits once for all that waits.

Notes:

* A row is acknowledged when its future is done, which is after the commit: an acknowledged row survives the death of
  the process. A row that was not acknowledged may be there or not; sent again, it is known by its id.
* Rows are redacted by the thread that writes, before any of them touches the disk.
* Requests bring rows faster than a failing disk takes them: the queue is bounded, and a full one is an error at once.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Table, select

from abstain.core.codes import Code
from abstain.core.contracts import Feedback, Review
from abstain.core.errors import AbstainError
from abstain.data.decision_log import erasure
from abstain.data.decision_log.calls import CallContent, call_row
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.decisions import (
    LoggedDecision,
    Recorded,
    Redact,
    ShadowDecision,
    Shares,
    decision_row,
    feedback_row,
    reply_row,
    shadow_row,
)
from abstain.data.decision_log.schema import CALLS, DECISIONS, FEEDBACK, QUEUE, SHADOWS
from abstain.data.decision_log.writes import write
from abstain.data.store.record_keys import microseconds

BATCH = 1000
"""The most rows of one commit: other processes wait for it."""
PURGE_EVERY_S = 3600
CALL_CHARS = 1 << 20
"""The longest content of one."""


class LogFull(AbstainError):
    """The log does not take a row now, because too many wait for the database: ask again later."""


@dataclass(frozen=True)
class _Waiting:
    """A row on its way: `make` gives it as the `table` has it, by the thread that writes."""

    table: Table
    make: Callable[[], dict[str, Any]]
    future: Future[Any] = field(default_factory=Future)


_Made = tuple[_Waiting, dict[str, Any]]


class DecisionLog:
    """A log that a server writes into. Any thread may call its methods; those that ask wait for the database."""

    def __init__(
        self,
        database: LogDatabase,
        redact: Redact,
        pseudonym: Callable[[str], str],
        shares: Shares,
        keep_days: float,
        pending: int,
    ) -> None:
        self.database, self._redact, self._pseudonym = database, redact, pseudonym
        self._shares, self._keep_days = shares, keep_days
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(pending)
        self._lock, self._is_closed = threading.Lock(), False
        self._thread = threading.Thread(target=self._run, name="decision log", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        url: str,
        *,
        redact: Redact,
        pseudonym: Callable[[str], str],
        withheld_share: float = 0.15,
        shown_share: float = 0.05,
        keep_days: float = 90,
        pending: int = 4096,
    ) -> DecisionLog:
        """The log at `url`, made where there is none: `sqlite:///` and a path, or postgresql://...

        Args:
            redact: a row as it may be stored, its people by pseudonym; called by one thread.
            withheld_share: with which probability a withheld answer is drawn for the data, feedback or not.
            shown_share: the same of a shown one.
            keep_days: how long texts are kept.
            pending: how many rows may wait.

        Raises `AbstainError` where the database cannot be made or reached, or has a layout of another release.
        """
        shares = Shares(withheld_share, shown_share)
        return cls(LogDatabase.open(url), redact, pseudonym, shares, keep_days, pending)

    def record(self, decision: LoggedDecision) -> Future[Recorded]:
        """Record a decision; `known` where the same request was decided before: that decision stays.

        It takes the place of an `unavailable` one under its id of which neither texts nor anything else is known.

        The future raises `AbstainError` where another request has this id or one whose texts were erased, and where the
        database is away. Raises `LogFull` where too many rows wait, and `ValueError` where the ids of decision and
        interaction differ.
        """
        if decision.interaction is not None and decision.interaction.interaction_id != decision.interaction_id:
            raise ValueError("the interaction of a decision has its id")
        return self._put(DECISIONS, lambda: decision_row(decision, self._redact, self._pseudonym, self._shares))

    def feedback(self, feedback_id: str, row: Feedback | Review) -> Future[Recorded]:
        """Record a thumb or a review once by its id; `known` where the same was recorded before.

        The future raises `AbstainError` where this id has another content, and where the database is away. Raises
        `LogFull` where too many rows wait.
        """
        return self._put(FEEDBACK, lambda: feedback_row(feedback_id, row, self._redact, datetime.now(UTC)))

    def review(self, row: Review) -> Future[Recorded]:
        """Record a review that was given on the page, with the probability that its answer has in the queue; `known`
        where it is its reviewer's last one of this answer.

        The future raises `AbstainError` where the answer is neither in the queue nor in the log, and where the database
        is away. Raises `LogFull` where too many rows wait.
        """
        return self._put(QUEUE, lambda: reply_row(self._redact(row), datetime.now(UTC)))

    def shadow(self, decision: ShadowDecision) -> Future[Recorded]:
        """Record what a candidate would have decided, once for each answer; not about one whose texts were erased.

        The future raises `AbstainError` where the database is away. Raises `LogFull` where too many rows wait.
        """
        return self._put(SHADOWS, lambda: shadow_row(decision))

    def remember(self, call_id: str, content: CallContent, ttl_s: float) -> Future[Recorded]:
        """Remember what the answer of a call will rest on, for `ttl_s` seconds; the last content of a call counts.

        Of a user who was erased with what they asked, nothing is remembered.

        Raises `AbstainError` for a content of more than `CALL_CHARS`, and `LogFull` where too many rows wait.
        """
        if (length := len(content.canonical())) > CALL_CHARS:
            raise AbstainError(
                Code.TOO_LARGE,
                f"the contexts of a call have {length:,} characters, {CALL_CHARS:,} allowed: send less",
            )
        return self._put(CALLS, lambda: call_row(call_id, content, ttl_s, self._redact, self._pseudonym))

    def recall(self, call_id: str) -> CallContent | None:
        """What is remembered of a call, redacted; None where nothing is, or no more."""
        now = microseconds(datetime.now(UTC))
        known = select(CALLS.c.content).where(CALLS.c.call_id == call_id, CALLS.c.expires_at > now)
        with self.database.reading() as connection:
            content: str | None = connection.scalar(known)
        return CallContent.model_validate_json(content) if content else None

    def erase(self, names: Collection[str], *, with_interactions: bool) -> int:
        """Erase the user with any of `names`, ids or pseudonyms: see `erasure.erase`."""
        pseudonyms = {self._pseudonym(name) for name in names}
        return erasure.erase(self.database, {*names, *pseudonyms}, pseudonyms, with_interactions=with_interactions)

    def purge(self, now: datetime) -> int:
        """Remove texts older than the days that they are kept. The log does so itself, too, every hour."""
        return erasure.purge(self.database, now, self._keep_days)

    def close(self) -> None:
        """Write what waits, and end. Later rows are refused."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if not was_closed:
            self._queue.put(None)
            self._thread.join()
            self.database.close()

    def _put(self, table: Table, make: Callable[[], dict[str, Any]]) -> Future[Any]:
        waiting = _Waiting(table, make)
        with self._lock:  # nothing comes behind the mark of the end
            if self._is_closed:
                raise self.database.error("the log is closed: the server is shutting down")
            try:
                self._queue.put_nowait(waiting)
            except queue.Full:
                full = f"{self._queue.maxsize:,} rows wait for it: send fewer requests, or see why it is slow"
                raise LogFull(Code.BUSY, self.database.error(full).message) from None
        return waiting.future

    # The thread that writes

    def _run(self) -> None:
        next_purge = time.monotonic()
        is_open = True
        while is_open:
            batch, is_open = self._take(max(0.0, next_purge - time.monotonic()))
            self._commit([waiting for waiting in batch if waiting.future.set_running_or_notify_cancel()])
            if time.monotonic() >= next_purge:
                next_purge = time.monotonic() + PURGE_EVERY_S
                with suppress(AbstainError):  # the database is away: what is due now is due then
                    self.purge(datetime.now(UTC))

    def _take(self, timeout_s: float) -> tuple[list[_Waiting], bool]:
        """All rows that wait, at least one unless the time is over; and whether more may come."""
        batch: list[_Waiting] = []
        with suppress(queue.Empty):
            while len(batch) < BATCH:
                waiting = self._queue.get_nowait() if batch else self._queue.get(timeout=timeout_s)
                if waiting is None:
                    return batch, False
                batch.append(waiting)
        return batch, True

    def _commit(self, batch: Sequence[_Waiting]) -> None:
        made: list[_Made] = []
        for waiting in batch:
            try:
                made.append((waiting, waiting.make()))
            except Exception as error:  # of one row, whatever it is: the others are written
                waiting.future.set_exception(error)
        if made:
            self._write_all(made)

    def _write_all(self, made: Sequence[_Made]) -> None:
        """Write the rows in one commit; then each future is done. A row that the database refuses fails alone."""
        try:
            with self.database.writing() as connection:
                outcomes = write(connection, [(waiting.table, row) for waiting, row in made])
        except AbstainError as error:
            for waiting, _ in made:
                waiting.future.set_exception(AbstainError(error.code, error.message))
        except Exception as error:
            if len(made) > 1:
                for one in made:
                    self._write_all([one])
            else:
                cause = getattr(error, "orig", error)
                problem = f"refuses a row ({cause}): correct its ids and texts"
                made[0][0].future.set_exception(self.database.error(problem, Code.INVALID_ROW))
        else:
            for (waiting, _), outcome in zip(made, outcomes, strict=True):
                if isinstance(outcome, AbstainError):
                    waiting.future.set_exception(outcome)
                else:
                    waiting.future.set_result(outcome)
