"""What the gate's base model has read for decisions, kept in the feature cache.

A retraining finds it there instead of reading again, and monitoring watches the drift of hidden states by it.

Notes:

* Only of answers whose texts the decision log keeps, word for word: what was redacted before it was stored is another
  text, and its states would hold what must not be kept.
* It is written by a thread of its own, after the decision. What is lost on the way is read again when it is needed.
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
"""The most answers whose results wait in memory."""
LOG_DELAY_S = 2.0
"""A decision is in the log by then."""
FLUSH_INTERVAL_S = 10.0

_log = logging.getLogger("abstain.serve")


@dataclass
class _QueuedFeatures:
    """The results for one answer, each with its source and its key."""

    since: float
    results: list[tuple[FeatureSource, str, Tensor]] = field(default_factory=list)


class FeatureCacheWriter:
    """Keeps the results of at most `most_a_day` answers (UTC); `logged` gives the texts that the log keeps, by id.

    A context: at its end what waits is written. `counts`: answers that were written, left out and dropped.
    """

    def __init__(self, logged: Callable[[Sequence[str]], Mapping[str, Interaction]], most_a_day: int) -> None:
        self._logged, self._most = logged, most_a_day
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._waiting: dict[str, _QueuedFeatures] = {}
        self._day, self._today = date.min, 0
        self.counts = Counter[str]()
        self._thread = threading.Thread(target=self._run, name="kept results", daemon=True)

    def __enter__(self) -> FeatureCacheWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def add(self, interaction_id: str, source: FeatureSource, key: str, result: Tensor) -> None:
        """Take a result of an answer that is being decided about. It neither waits nor fails."""
        with self._lock:
            if interaction_id not in self._waiting:
                if len(self._waiting) >= MAX_QUEUED:
                    self.counts["dropped"] += 1
                    return
                if not self._is_within_day():
                    return
                self._waiting[interaction_id] = _QueuedFeatures(time.monotonic())
            self._waiting[interaction_id].results.append((source, key, result))

    def _is_within_day(self) -> bool:
        today = datetime.now(UTC).date()
        if today != self._day:
            self._day, self._today = today, 0
        self._today += 1
        return self._today <= self._most

    def _run(self) -> None:
        while not self._ended.wait(FLUSH_INTERVAL_S):
            self._write(LOG_DELAY_S)
        self._write(0.0)

    def _write(self, older_than_s: float) -> None:
        before = time.monotonic() - older_than_s
        with self._lock:
            taken = {key: one for key, one in self._waiting.items() if one.since <= before}
            self._waiting = {key: one for key, one in self._waiting.items() if key not in taken}
        if not taken:
            return
        try:
            rows, written = self._rows(taken)
            for source, of_source in rows.values():
                write_rows(FileStore(source.settings.features), source.get_namespace(), of_source)
            self.counts.update(written=written, left_out=len(taken) - written)
        except AbstainError as error:  # the log or the cache is away: decisions go on
            self.counts["dropped"] += len(taken)
            _log.warning("what was read for %d decisions is not kept: %s", len(taken), error.message_with_code)

    def _rows(
        self, taken: Mapping[str, _QueuedFeatures]
    ) -> tuple[dict[CacheNamespace, tuple[FeatureSource, dict[str, Tensor]]], int]:
        """What is to be written, by cache space, and of how many answers it is."""
        rows: dict[CacheNamespace, tuple[FeatureSource, dict[str, Tensor]]] = {}
        logged = self._logged(list(taken))
        found: set[str] = set()
        for interaction_id, text in logged.items():
            for source, key, result in taken[interaction_id].results:
                prepared = source.prepare(text)
                if isinstance(prepared, PreparedRequest) and row_key(prepared.request) == key:
                    rows.setdefault(source.get_namespace(), (source, {}))[1][key] = result
                    found.add(interaction_id)
        return rows, len(found)
