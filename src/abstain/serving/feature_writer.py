"""A writer that adds the features that the gate computed for decisions to the feature cache.

A retraining finds them there instead of reading again, and monitoring uses them to detect drift of hidden states.

Notes:

* Features are stored only for answers whose texts the decision log keeps unchanged. If a text was redacted before it
  was stored, the features are of another text, and they would contain what must not be kept.
* A thread of its own writes them after the decision. What is lost on the way is computed again when it is needed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime

from torch import Tensor

from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.llm.features.cache import CacheNamespace, write_rows
from abstain.llm.features.extraction import FeatureSource, PreparedRequest
from abstain.llm.features.file_store import FileStore
from abstain.llm.features.shard_job import row_key

MAX_QUEUED = 256
"""Maximum number of answers whose features wait in memory."""
LOG_DELAY_S = 2.0
"""Age after which a decision is in the log."""
FLUSH_INTERVAL_S = 10.0

_log = logging.getLogger("abstain.serve")


@dataclass
class _QueuedFeatures:
    """The features of one answer that wait to be written.

    Attributes:
        queued_at: When the first one was added, by `time.monotonic`.
        results: Source, cache key and tensor of each feature.
    """

    queued_at: float
    results: list[tuple[FeatureSource, str, Tensor]] = field(default_factory=list)


class FeatureCacheWriter:
    """Writes features that the gate computed to the feature cache, in a background thread.

    Use it as a context manager: leaving the block flushes the queue.

    Args:
        get_logged: Returns the interactions whose texts the decision log keeps, by id.
        max_per_day: Maximum number of answers per UTC day whose features are kept.

    Attributes:
        counts: Number of answers that were written, left out (text not kept) and dropped (queue full or error).
    """

    def __init__(self, get_logged: Callable[[Sequence[str]], Mapping[str, Interaction]], max_per_day: int) -> None:
        self._get_logged, self._max_per_day = get_logged, max_per_day
        self._lock, self._stop_event = threading.Lock(), threading.Event()
        self._queue: dict[str, _QueuedFeatures] = {}
        self._day, self._day_count = date.min, 0
        self.counts = Counter[str]()
        self._thread = threading.Thread(target=self._run, name="feature cache", daemon=True)

    def __enter__(self) -> FeatureCacheWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_event.set()
        self._thread.join()

    def add(self, interaction_id: str, source: FeatureSource, key: str, result: Tensor) -> None:
        """Queue a feature of an answer that is being decided about. This neither blocks nor fails.

        Args:
            interaction_id: Id of the answer.
            source: Source of the feature.
            key: Its key in the source's cache.
            result: The feature.
        """
        with self._lock:
            if interaction_id not in self._queue:
                if len(self._queue) >= MAX_QUEUED:
                    self.counts["dropped"] += 1
                    return
                if not self._take_daily_slot():
                    return
                self._queue[interaction_id] = _QueuedFeatures(time.monotonic())
            self._queue[interaction_id].results.append((source, key, result))

    def _take_daily_slot(self) -> bool:
        """Count one more answer of this UTC day; return whether it is within the limit."""
        today = datetime.now(UTC).date()
        if today != self._day:
            self._day, self._day_count = today, 0
        self._day_count += 1
        return self._day_count <= self._max_per_day

    def _run(self) -> None:
        while not self._stop_event.wait(FLUSH_INTERVAL_S):
            self._write(LOG_DELAY_S)
        self._write(0.0)

    def _write(self, older_than_s: float) -> None:
        queued_until = time.monotonic() - older_than_s
        with self._lock:
            due = {
                interaction_id: queued
                for interaction_id, queued in self._queue.items()
                if queued.queued_at <= queued_until
            }
            self._queue = {
                interaction_id: queued for interaction_id, queued in self._queue.items() if interaction_id not in due
            }
        if not due:
            return
        try:
            rows_by_namespace, n_written = self._select_rows(due)
            for source, features_by_key in rows_by_namespace.values():
                write_rows(FileStore(source.settings.features), source.get_namespace(), features_by_key)
            self.counts.update(written=n_written, left_out=len(due) - n_written)
        except AbstainError as error:  # log or cache are unavailable: decisions go on
            self.counts["dropped"] += len(due)
            _log.warning("what was read for %d decisions is not kept: %s", len(due), error.message_with_code)

    def _select_rows(
        self, due: Mapping[str, _QueuedFeatures]
    ) -> tuple[dict[CacheNamespace, tuple[FeatureSource, dict[str, Tensor]]], int]:
        """Return the features to write, by cache namespace, and the number of their answers."""
        rows_by_namespace: dict[CacheNamespace, tuple[FeatureSource, dict[str, Tensor]]] = {}
        interactions = self._get_logged(list(due))
        written_ids: set[str] = set()
        for interaction_id, interaction in interactions.items():
            for source, key, result in due[interaction_id].results:
                prepared = source.prepare(interaction)
                if isinstance(prepared, PreparedRequest) and row_key(prepared.request) == key:
                    rows_by_namespace.setdefault(source.get_namespace(), (source, {}))[1][key] = result
                    written_ids.add(interaction_id)
        return rows_by_namespace, len(written_ids)
