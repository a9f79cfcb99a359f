"""The decision log of a server: one thread writes the rows of all requests, and commits all queued rows at once.

Notes:

* A row is acknowledged when its future is done, which is after the commit: an acknowledged row survives the death of
  the process. A row that was not acknowledged may be stored or not; if it is sent again, it is identified by its id.
* A row is redacted by the thread that brings it, before it is queued, so a text that takes long to redact delays no
  other row.
* Requests bring rows faster than a failing disk takes them. So the queue is bounded, and a full one is an error at
  once.
* If there are no rows, the time is written regularly, so that a log that accepts no rows is noticed before one comes.
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
    RecordOutcome,
    Redact,
    SamplingRates,
    ShadowDecision,
    compute_feedback_digest,
    make_decision_row,
    make_feedback_fields,
    make_feedback_row,
    make_shadow_row,
)
from abstain.data.decision_log.schema import CALLS, DECISIONS, FEEDBACK, PROPERTIES, QUEUE, SHADOWS
from abstain.data.decision_log.writes import write_rows
from abstain.data.store.record_keys import to_microseconds

MAX_BATCH_ROWS = 1000
"""Maximum number of rows of one commit, for which other processes wait."""
PURGE_INTERVAL_S = 3600
CHECK_INTERVAL_S = 10
"""Interval at which the log tests that rows can be written, if none come."""
MAX_CALL_CHARS = 1 << 20
"""Maximum length of the content of a call."""
_log = logging.getLogger("abstain.serve")
OptionalFuture = Future[RecordOutcome] | None
"""The future that a method will return; None for a new one."""


class LogQueueFull(AbstainError):
    """The log does not accept a row now, because too many are queued for the database: try again later."""


@dataclass(frozen=True)
class _QueuedRow:
    """A row of `table` that is queued to be written."""

    table: Table
    row: dict[str, Any]
    future: Future[Any]


class DecisionLog:
    """A log that a server writes into. All methods are thread-safe; those that read wait for the database.

    Methods that record a row redact and queue it. They may be given the future that they return: a row whose future is
    cancelled before it is written is not recorded.

    Attributes:
        database: The database.
        last_error: Why the last rows could not be written; None if they could.
    """

    def __init__(
        self,
        database: LogDatabase,
        redact: Redact,
        pseudonym: Callable[[str], str],
        key: bytes,
        sampling_rates: SamplingRates,
        keep_days: float,
        calls_each: int,
        pending: int,
    ) -> None:
        self.database, self._redact, self._make_pseudonym, self._digest_key = database, redact, pseudonym, key
        self._sampling_rates, self._keep_days, self._max_calls_per_owner = sampling_rates, keep_days, calls_each
        self.last_error: str | None = None
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
        withheld_sampling_rate: float = 0.15,
        shown_sampling_rate: float = 0.05,
        keep_days: float = 90,
        calls_each: int = 2500,
        pending: int = 4096,
    ) -> DecisionLog:
        """Open the log at `url`, and create it if it does not exist.

        Args:
            url: `sqlite:///` and a path, or a PostgreSQL URL.
            redact: Returns a row as it may be stored, people by pseudonym; called by several threads.
            pseudonym: Makes the pseudonym of a user.
            key: Key of the digests that identify a repeated row, the same in all processes.
            withheld_sampling_rate: Probability with which a withheld answer is sampled, with or without feedback.
            shown_sampling_rate: The same for a shown answer.
            keep_days: Days for which texts are kept.
            calls_each: Maximum number of registered calls of one owner.
            pending: Maximum number of queued rows.

        Returns:
            The log, with its thread running.

        Raises:
            AbstainError: The database cannot be created or reached, or has the layout of another release.
        """
        sampling_rates = SamplingRates(withheld_sampling_rate, shown_sampling_rate)
        return cls(LogDatabase.open(url), redact, pseudonym, key, sampling_rates, keep_days, calls_each, pending)

    def record_decision(self, decision: LoggedDecision, future: OptionalFuture = None) -> Future[RecordOutcome]:
        """Record a decision.

        A decision replaces an "unavailable" one with the same id of which neither texts nor other input are known.

        Args:
            decision: The decision.
            future: The future to return.

        Returns:
            A future: "recorded", or "duplicate" if the same request was decided before, whose decision stays. It raises
            `AbstainError` if another request has this id, or one whose texts are gone, or if the database is
            unavailable.

        Raises:
            LogQueueFull: Too many rows are queued.
            ValueError: The ids of decision and interaction differ.
        """
        if decision.interaction is not None and decision.interaction.interaction_id != decision.interaction_id:
            raise ValueError("the interaction of a decision has its id")
        row = make_decision_row(decision, self._redact, self._make_pseudonym, self._sampling_rates, self._digest_key)
        return self._enqueue(DECISIONS, row, future)

    def record_feedback(
        self, feedback_id: str, row: Thumb | Review, future: OptionalFuture = None
    ) -> Future[RecordOutcome]:
        """Record a thumb or a review, once by its id.

        Args:
            feedback_id: Id by which a repeated row is identified.
            row: The thumb or review.
            future: The future to return.

        Returns:
            A future: "recorded", or "duplicate" if the same row was recorded before. It raises `AbstainError` if this
            id has other content, or if the database is unavailable.

        Raises:
            AbstainError: The id is one that the log itself assigns.
            LogQueueFull: Too many rows are queued.
        """
        return self._enqueue(
            FEEDBACK, make_feedback_row(feedback_id, row, self._redact, self._digest_key, datetime.now(UTC)), future
        )

    def record_review(self, row: Review, future: OptionalFuture = None) -> Future[RecordOutcome]:
        """Record a review that was given on the page, with the inclusion probability of its answer in the queue.

        Args:
            row: The review.
            future: The future to return.

        Returns:
            A future: "recorded", or "duplicate" if it equals its reviewer's last one of this answer. It raises
            `AbstainError` if the answer is neither in the queue nor in the log, or if the database is unavailable.

        Raises:
            LogQueueFull: Too many rows are queued.
        """
        digest = compute_feedback_digest(row, self._digest_key)
        return self._enqueue(QUEUE, make_feedback_fields(self._redact(row), digest, datetime.now(UTC)), future)

    def record_shadow_decision(self, decision: ShadowDecision) -> Future[RecordOutcome]:
        """Record the decision of a shadow, once for each answer, unless the answer's texts were erased.

        Args:
            decision: The decision.

        Returns:
            A future, which raises `AbstainError` if the database is unavailable.

        Raises:
            LogQueueFull: Too many rows are queued.
        """
        return self._enqueue(SHADOWS, make_shadow_row(decision))

    def register_call(
        self, owner: str, call_id: str, content: RegisteredCall, ttl_s: float, future: OptionalFuture = None
    ) -> Future[RecordOutcome]:
        """Register the data on which the answer of a call will rest; the last content of a call counts.

        Calls of two owners with the same id are different calls. For a user who was erased with their interactions,
        nothing is stored.

        Args:
            owner: API key that registers the call.
            call_id: Id of the call.
            content: Data of the call.
            ttl_s: Seconds for which it is kept.
            future: The future to return.

        Returns:
            A future, which raises `AbstainError` if the database is unavailable.

        Raises:
            AbstainError: The content has more than `MAX_CALL_CHARS` characters.
            LogQueueFull: Too many rows are queued.
        """
        if (length := len(content.to_json_line())) > MAX_CALL_CHARS:
            raise AbstainError(
                Code.TOO_LARGE,
                f"the contexts of a call have {length:,} characters, {MAX_CALL_CHARS:,} allowed: send less",
            )
        return self._enqueue(
            CALLS, make_call_row(owner, call_id, content, ttl_s, self._redact, self._make_pseudonym), future
        )

    def get_call(self, owner: str, call_id: str) -> RegisteredCall | None:
        """Return the data of a registered call.

        Args:
            owner: API key that registered it.
            call_id: Id of the call.

        Returns:
            The data, redacted; None if the call was not registered or has expired.
        """
        now, columns = to_microseconds(datetime.now(UTC)), CALLS.c
        query = select(columns.content).where(
            columns.owner == owner, columns.call_id == call_id, columns.expires_at > now
        )
        with self.database.read_transaction() as connection:
            content: str | None = connection.scalar(query)
        return RegisteredCall.model_validate_json(content) if content else None

    def erase_user(self, names: Collection[str], *, with_interactions: bool) -> int:
        """Erase a user, see `erasure.erase_user`.

        Args:
            names: Ids or pseudonyms of the user.
            with_interactions: Whether to remove the texts of the user's interactions as well.

        Returns:
            The number of rows.
        """
        pseudonyms = {self._make_pseudonym(name) for name in names}
        return erasure.erase_user(self.database, {*names, *pseudonyms}, pseudonyms, with_interactions=with_interactions)

    def purge_expired_texts(self, now: datetime) -> int:
        """Remove texts that are older than their days, see `erasure.purge_expired_texts`.

        The log also does so itself, every hour.

        Args:
            now: Current time in UTC.

        Returns:
            The number of rows.
        """
        return erasure.purge_expired_texts(self.database, now, self._keep_days)

    def close(self) -> None:
        """Write the queued rows and stop. Later rows are rejected."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if not was_closed:
            self._queue.put(None)
            self._thread.join()
            self.database.close()

    def _enqueue(self, table: Table, row: dict[str, Any], future: OptionalFuture = None) -> Future[Any]:
        queued_row = _QueuedRow(table, row, future or Future())
        with self._lock:  # nothing comes behind the mark of the end
            if self._is_closed:
                raise AbstainError(Code.NO_SERVICE, "the decision log is closed: the server is shutting down")
            try:
                self._queue.put_nowait(queued_row)
            except queue.Full:
                queue_state = f"{self._queue.maxsize:,} rows wait for the decision log"
                raise LogQueueFull(Code.BUSY, f"{queue_state}: send fewer requests, or see why it is slow") from None
        return queued_row.future

    # The thread that writes

    def _run(self) -> None:
        next_purge = time.monotonic()
        is_open = True
        while is_open:
            batch, is_open = self._take_batch(min(CHECK_INTERVAL_S, max(0.0, next_purge - time.monotonic())))
            if rows := [queued for queued in batch if queued.future.set_running_or_notify_cancel()]:
                self._write_batch(rows)
            elif is_open and not batch and time.monotonic() < next_purge:
                self._check_writable()
            if time.monotonic() >= next_purge:
                next_purge = time.monotonic() + PURGE_INTERVAL_S
                with _log_failures("its old texts were not removed, and are due again in an hour"):
                    self.purge_expired_texts(datetime.now(UTC))

    def _take_batch(self, timeout_s: float) -> tuple[list[_QueuedRow], bool]:
        """Return all queued rows, at least one unless the time is over, and whether more may come."""
        batch: list[_QueuedRow] = []
        with suppress(queue.Empty):
            while len(batch) < MAX_BATCH_ROWS:
                queued = self._queue.get_nowait() if batch else self._queue.get(timeout=timeout_s)
                if queued is None:
                    return batch, False
                batch.append(queued)
        return batch, True

    def _write_batch(self, batch: Sequence[_QueuedRow]) -> None:
        """Write rows in one commit, and complete their futures. If the database rejects a row, only this row fails."""
        try:
            with self._write_transaction() as connection:
                outcomes = write_rows(
                    connection, [(queued.table, queued.row) for queued in batch], self._max_calls_per_owner
                )
        except AbstainError as error:
            for queued in batch:
                queued.future.set_exception(AbstainError(error.code, error.message))
        except Exception as error:
            if len(batch) > 1:
                for queued in batch:
                    self._write_batch([queued])
            else:
                cause = " ".join(str(getattr(error, "orig", error)).split())
                problem = f"the decision log refuses a row ({cause}): correct its ids and texts"
                batch[0].future.set_exception(AbstainError(Code.INVALID_ROW, problem))
        else:
            for queued, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, AbstainError):
                    queued.future.set_exception(outcome)
                else:
                    queued.future.set_result(outcome)

    def _check_writable(self) -> None:
        """Write the time, to find out whether rows can be written."""
        mark = update(PROPERTIES).where(PROPERTIES.c.name == "checked").values(content=datetime.now(UTC).isoformat())
        with _log_failures("it is not known whether it takes rows"), self._write_transaction() as connection:
            connection.execute(mark)

    @contextmanager
    def _write_transaction(self) -> Iterator[Connection]:
        """Open a transaction for writing, and set `last_error`."""
        try:
            with self.database.write_transaction() as connection:
                yield connection
        except AbstainError as error:
            self.last_error = error.message_with_code
            raise
        self.last_error = None


@contextmanager
def _log_failures(consequence: str) -> Iterator[None]:
    """Continue after the block, whatever fails in it: without the thread that writes, every row would wait for ever.

    Args:
        consequence: Message for the server's log, for an error that is not the database's.
    """
    try:
        yield
    except AbstainError:
        pass  # the database is away: it has said so
    except Exception:
        _log.exception("decision log: %s", consequence)
