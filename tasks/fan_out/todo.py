"""The work queue of a run and its helpers: small files beside the features, in their shared store.

Notes:

* A batch's files are `todo/BATCH.NAME.KIND`: a shard to compute, the cost of a finished one, a heartbeat. No other
  channel is needed: several hosts work together as soon as they share a cache.
* A claim is the shard that a heartbeat names. Two helpers that claim one at the same moment write the same bytes twice.
* Clocks of different hosts are not compared: each process measures by its own clock how long a heartbeat has not
  changed.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Literal, Self

from abstain.core.errors import AbstainError
from abstain.llm.features.cache_files import FileStore, StoredFile

Kind = Literal["todo", "done", "beat"]

FOLDER = "todo"
FILE = re.compile(rf"{FOLDER}/(?P<batch>[0-9a-f]{{32}})\.(?P<name>[0-9a-z-]+)\.(?P<kind>todo|done|beat)")
RUN = "run"
"""The name of the heartbeat of the run that requested the batch."""
BEAT_SECONDS = 3.0
LOST_SECONDS = 60.0
LEFT_BEHIND = timedelta(days=1)


@dataclass(frozen=True)
class ShardQueue:
    """The shards that one run has queued, under its own key."""

    store: FileStore
    key: str

    def names(self) -> dict[Kind, set[str]]:
        """The names of the files of each kind."""
        found: dict[Kind, set[str]] = {"todo": set(), "done": set(), "beat": set()}
        for match in _files(self.store.list(FOLDER))[self.key]:
            found[match["kind"]].add(match["name"])  # type: ignore[index]
        return found

    def read(self, name: str, kind: Kind) -> str | None:
        """The file's text; None where it is gone."""
        with suppress(FileNotFoundError):
            return self.store.read(self._file(name, kind)).decode()
        return None

    def write(self, name: str, kind: Kind, text: str) -> None:
        self.store.write(self._file(name, kind), text.encode())

    def delete(self, name: str, kind: Kind) -> None:
        self.store.delete(self._file(name, kind))

    def clean(self) -> None:
        """Remove all files of the batch."""
        for match in _files(self.store.list(FOLDER))[self.key]:
            self.store.delete(match[0])

    def claim_of(self, who: str) -> str | None:
        """The shard that the heartbeat of `who` names."""
        beat = self.read(who, "beat")
        shard: str | None = json.loads(beat)["shard"] if beat else None
        return shard

    def _file(self, name: str, kind: Kind) -> str:
        return f"{FOLDER}/{self.key}.{name}.{kind}"


def sweep(store: FileStore) -> None:
    """Remove the batches of killed runs: those of which no file, not even a heartbeat, was written for a day."""
    before = datetime.now(UTC) - LEFT_BEHIND
    entries = store.list(FOLDER)
    young = {entry.name for entry in entries if entry.written >= before}
    for files in _files(entries).values():
        if not any(match[0] in young for match in files):
            for match in files:
                store.delete(match[0])


class Heartbeat:
    """Rewrites a heartbeat from a thread for as long as this process can."""

    def __init__(self, batch: ShardQueue, who: str, every: float = BEAT_SECONDS) -> None:
        self._batch, self._who, self._every = batch, who, every
        self._count = 0
        self._shard: str | None = None
        self._alone, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)

    def claim(self, shard: str) -> None:
        """Claim `shard` for this process; the claim is written before the call returns."""
        self._shard = shard
        self._beat()

    def __enter__(self) -> Self:
        self._beat()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        self._batch.delete(self._who, "beat")

    def _beat_on(self) -> None:
        while not self._end.wait(self._every):
            with suppress(AbstainError):  # the store failed once; if it keeps failing, the work itself raises the error
                self._beat()

    def _beat(self) -> None:
        with self._alone:
            self._count += 1
            text = {"shard": self._shard, "count": self._count, "pid": os.getpid(), "host": socket.gethostname()}
            self._batch.write(self._who, "beat", json.dumps(text))


class LivenessMonitor:
    """How long something has not changed, by this process's clock."""

    def __init__(self) -> None:
        self._seen: dict[object, tuple[object, float]] = {}

    def silent(self, key: object, content: object) -> float:
        """Seconds since `content` of `key` was first seen as it is."""
        now = time.monotonic()
        if key not in self._seen or self._seen[key][0] != content:
            self._seen[key] = (content, now)
        return now - self._seen[key][1]


def _files(entries: list[StoredFile]) -> defaultdict[str, list[re.Match[str]]]:
    """The files of every batch."""
    batches: defaultdict[str, list[re.Match[str]]] = defaultdict(list)
    for entry in entries:
        if match := FILE.fullmatch(entry.name):
            batches[match["batch"]].append(match)
    return batches
