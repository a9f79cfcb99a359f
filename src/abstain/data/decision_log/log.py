"""The decision log of a server: one thread writes what all requests bring, and commits once for all that waits.

Notes:

* A row is acknowledged when its future is done, which is after the commit: an acknowledged row survives the death of
  the process. A row that was not acknowledged may be there or not; sent again, it is known by its id.
* A row is redacted by the thread that brings it, before it waits for the one that writes: a text that takes long to
  redact delays nobody's row.
* Requests bring rows faster than a failing disk takes them: the queue is bounded, and a full one is an error at once.
* Where nothing comes, a mark is written now and then, so that a log that takes no rows is known before one comes.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Table, select, update

from abstain.core.codes import Code
from abstain.core.contracts import Review, Thumb
from abstain.core.errors import AbstainError
from abstain.data.decision_log import erasure
from abstain.data.decision_log.calls import RegisteredCall, make_call_row
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.decisions import (
    LoggedDecision,
    Recorded,
    Redact,
    SamplingRates,
    ShadowDecision,
    make_decision_row,
    make_feedback_row,
    make_shadow_row,
    reply_digest,
    reply_row,
)
from abstain.data.decision_log.schema import CALLS, DECISIONS, FEEDBACK, PROPERTIES, QUEUE, SHADOWS
from abstain.data.decision_log.writes import write_rows
from abstain.data.store.record_keys import to_microseconds

BATCH = 1000
"""The most rows of one commit: other processes wait for it."""
PURGE_EVERY_S = 3600
CHECK_EVERY_S = 10
"""How often it is tried whether rows can be written, where none come."""
CALL_CHARS = 1 << 20
"""The longest content of one."""
_log = logging.getLogger("abstain.serve")
Answer = Future[Recorded] | None
"""The future that a method is to return; None: a new one."""


class LogQueueFull(AbstainError):
    """The log does not take a row now, because too many wait for the database: ask again later."""


@dataclass(frozen=True)
class _QueuedRow:
    """A row on its way, as the `table` has it."""

    table: Table
    row: dict[str, Any]
    future: Future[Any]


class DecisionLog:
    """A log that a server writes into. Any thread may call its methods; those that ask wait for the database.

    Methods that bring a row redact it, and then it waits to be written. They may be given the future that they return:
    a row whose future is cancelled before it is written is not recorded.

    `trouble`: why the last rows could not be written; None where they could.
    """

    def __init__(
        self,
        database: LogDatabase,
        redact: Redact,
        pseudonym: Callable[[str], str],
        key: bytes,
        shares: SamplingRates,
        keep_days: float,
        calls_each: int,
        pending: int,
    ) -> None:
        self.database, self._redact, self._pseudonym, self._key = database, redact, pseudonym, key
        self._shares, self._keep_days, self._calls_each = shares, keep_days, calls_each
        self.trouble: str | None = None
        database.is_served = True
        self._queue: queue.Queue[_QueuedRow | None] = queue.Queue(pending)
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
        key: bytes,
        withheld_share: float = 0.15,
        shown_share: float = 0.05,
        keep_days: float = 90,
        calls_each: int = 2500,
        pending: int = 4096,
    ) -> DecisionLog:
        """The log at `url`, made where there is none: `sqlite:///` and a path, or postgresql://...

        Args:
            redact: a row as it may be stored, its people by pseudonym; called by several threads.
            key: of the digests by which a row that comes again is recognised, the same in all processes.
            withheld_share: with which probability a withheld answer is drawn for the data, feedback or not.
            shown_share: the same of a shown one.
            keep_days: how long texts are kept.
            calls_each: how many calls of one owner are remembered.
            pending: how many rows may wait.

        Raises `AbstainError` where the database cannot be made or reached, or has a layout of another release.
        """
        shares = SamplingRates(withheld_share, shown_share)
        return cls(LogDatabase.open(url), redact, pseudonym, key, shares, keep_days, calls_each, pending)

    def record_decision(self, decision: LoggedDecision, answer: Answer = None) -> Future[Recorded]:
        """Record a decision; `known` where the same request was decided before: that decision stays.

        It takes the place of an `unavailable` one under its id of which neither texts nor anything else is known.

        The future raises `AbstainError` where another request has this id or one whose texts are gone, and where the
        database is away. Raises `LogQueueFull` where too many rows wait, and `ValueError` where the ids of decision and
        interaction differ.
        """
        if decision.interaction is not None and decision.interaction.interaction_id != decision.interaction_id:
            raise ValueError("the interaction of a decision has its id")
        row = make_decision_row(decision, self._redact, self._pseudonym, self._shares, self._key)
        return self._put(DECISIONS, row, answer)

    def record_feedback(self, feedback_id: str, row: Thumb | Review, answer: Answer = None) -> Future[Recorded]:
        """Record a thumb or a review once by its id; `known` where the same was recorded before.

        The future raises `AbstainError` where this id has another content, and where the database is away. Raises
        `AbstainError` for an id that the log itself gives, and `LogQueueFull` where too many rows wait.
        """
        return self._put(
            FEEDBACK, make_feedback_row(feedback_id, row, self._redact, self._key, datetime.now(UTC)), answer
        )

    def review(self, row: Review, answer: Answer = None) -> Future[Recorded]:
        """Record a review that was given on the page, with the probability that its answer has in the queue; `known`
        where it is its reviewer's last one of this answer.

        The future raises `AbstainError` where the answer is neither in the queue nor in the log, and where the database
        is away. Raises `LogQueueFull` where too many rows wait.
        """
        digest = reply_digest(row, self._key)
        return self._put(QUEUE, reply_row(self._redact(row), digest, datetime.now(UTC)), answer)

    def record_shadow_decision(self, decision: ShadowDecision) -> Future[Recorded]:
        """Record what a candidate would have decided, once for each answer; not about one whose texts were erased.

        The future raises `AbstainError` where the database is away. Raises `LogQueueFull` where too many rows wait.
        """
        return self._put(SHADOWS, make_shadow_row(decision))

    def register_call(
        self, owner: str, call_id: str, content: RegisteredCall, ttl_s: float, answer: Answer = None
    ) -> Future[Recorded]:
        """Remember what the answer of a call will rest on, for `ttl_s` seconds; the last content of a call counts.

        Calls with one id of two owners are two. Of a user who was erased with what they asked, nothing is remembered.

        Raises `AbstainError` for a content of more than `CALL_CHARS`, and `LogQueueFull` where too many rows wait.
        """
        if (length := len(content.to_json_line())) > CALL_CHARS:
            raise AbstainError(
                Code.TOO_LARGE,
                f"the contexts of a call have {length:,} characters, {CALL_CHARS:,} allowed: send less",
            )
        return self._put(CALLS, make_call_row(owner, call_id, content, ttl_s, self._redact, self._pseudonym), answer)

    def get_call(self, owner: str, call_id: str) -> RegisteredCall | None:
        """What is remembered of a call of `owner`, redacted; None where nothing is, or no more."""
        now, own = to_microseconds(datetime.now(UTC)), CALLS.c
        known = select(own.content).where(own.owner == owner, own.call_id == call_id, own.expires_at > now)
        with self.database.reading() as connection:
            content: str | None = connection.scalar(known)
        return RegisteredCall.model_validate_json(content) if content else None

    def erase(self, names: Collection[str], *, with_interactions: bool) -> int:
        """Erase the user with any of `names`, ids or pseudonyms: see `erasure.erase`."""
        pseudonyms = {self._pseudonym(name) for name in names}
        return erasure.erase_user(self.database, {*names, *pseudonyms}, pseudonyms, with_interactions=with_interactions)

    def purge_expired_texts(self, now: datetime) -> int:
        """Remove texts older than the days that they are kept. The log does so itself, too, every hour."""
        return erasure.purge_expired_texts(self.database, now, self._keep_days)

    def close(self) -> None:
        """Write what waits, and end. Later rows are refused."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if not was_closed:
            self._queue.put(None)
            self._thread.join()
            self.database.close()

    def _put(self, table: Table, row: dict[str, Any], answer: Answer = None) -> Future[Any]:
        waiting = _QueuedRow(table, row, answer or Future())
        with self._lock:  # nothing comes behind the mark of the end
            if self._is_closed:
                raise AbstainError(Code.NO_SERVICE, "the decision log is closed: the server is shutting down")
            try:
                self._queue.put_nowait(waiting)
            except queue.Full:
                most = f"{self._queue.maxsize:,} rows wait for the decision log"
                raise LogQueueFull(Code.BUSY, f"{most}: send fewer requests, or see why it is slow") from None
        return waiting.future

    # The thread that writes

    def _run(self) -> None:
        next_purge = time.monotonic()
        is_open = True
        while is_open:
            batch, is_open = self._take(min(CHECK_EVERY_S, max(0.0, next_purge - time.monotonic())))
            if rows := [waiting for waiting in batch if waiting.future.set_running_or_notify_cancel()]:
                self._write_all(rows)
            elif is_open and not batch and time.monotonic() < next_purge:
                self._check()
            if time.monotonic() >= next_purge:
                next_purge = time.monotonic() + PURGE_EVERY_S
                with _going_on("its old texts were not removed, and are due again in an hour"):
                    self.purge_expired_texts(datetime.now(UTC))

    def _take(self, timeout_s: float) -> tuple[list[_QueuedRow], bool]:
        """All rows that wait, at least one unless the time is over; and whether more may come."""
        batch: list[_QueuedRow] = []
        with suppress(queue.Empty):
            while len(batch) < BATCH:
                waiting = self._queue.get_nowait() if batch else self._queue.get(timeout=timeout_s)
                if waiting is None:
                    return batch, False
                batch.append(waiting)
        return batch, True

    def _write_all(self, batch: Sequence[_QueuedRow]) -> None:
        """Write the rows in one commit; then each future is done. A row that the database refuses fails alone."""
        try:
            with self._writing() as connection:
                outcomes = write_rows(connection, [(waiting.table, waiting.row) for waiting in batch], self._calls_each)
        except AbstainError as error:
            for waiting in batch:
                waiting.future.set_exception(AbstainError(error.code, error.message))
        except Exception as error:
            if len(batch) > 1:
                for one in batch:
                    self._write_all([one])
            else:
                cause = " ".join(str(getattr(error, "orig", error)).split())
                problem = f"the decision log refuses a row ({cause}): correct its ids and texts"
                batch[0].future.set_exception(AbstainError(Code.INVALID_ROW, problem))
        else:
            for waiting, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, AbstainError):
                    waiting.future.set_exception(outcome)
                else:
                    waiting.future.set_result(outcome)

    def _check(self) -> None:
        """Write a mark, and so learn whether rows can be written."""
        mark = update(PROPERTIES).where(PROPERTIES.c.name == "checked").values(content=datetime.now(UTC).isoformat())
        with _going_on("it is not known whether it takes rows"), self._writing() as connection:
            connection.execute(mark)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction of the database, which tells whether there is trouble with it."""
        try:
            with self.database.writing() as connection:
                yield connection
        except AbstainError as error:
            self.trouble = error.message_with_code
            raise
        self.trouble = None


@contextmanager
def _going_on(failed: str) -> Iterator[None]:
    """Go on after the block, whatever fails in it: without the thread that writes, every row would wait for ever.

    Args:
        failed: what is said in the server's log, of what is no error of the database.
    """
    try:
        yield
    except AbstainError:
        pass  # the database is away: it has said so
    except Exception:
        _log.exception("decision log: %s", failed)
