"""A batch: the shards that a run sends to flow runs, as small files beside the features in their shared store.

The files are `jobs/BATCH.NAME.KIND`: a shard to compute, and what a computed one cost. The results are in the cache, by
content, so a shard that two flow runs compute is written twice, with the same bytes. Files of a host that was lost with
its run are removed after a week.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from prefect import task
from prefect.cache_policies import NO_CACHE

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.features.file_store import FileStore
from abstain.llm.features.shard_job import JobStats, ShardJob, compute

FOLDER = "jobs"
LEFT_BEHIND = timedelta(days=7)


@dataclass(frozen=True)
class Batch:
    """The shards of one run. `key` is also the tag of its flow runs."""

    store: FileStore
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def send(self, job: ShardJob) -> None:
        """Write the file of a shard to compute."""
        self.store.write(self._file(job.name, "job"), job.to_json().encode())

    def compute(self, name: str, settings: Settings) -> None:
        """Compute a shard into the cache, then write what it cost.

        Raises `AbstainError` where the shard, or its base model, is not found here.
        """
        try:
            text = self.store.read(self._file(name, "job")).decode()
        except FileNotFoundError:
            raise AbstainError(
                Code.BAD_SETTING,
                f"{self.store.url} has nothing of batch {self.key}: a worker's ABSTAIN_FEATURES (or ABSTAIN_HOME) must "
                "name the same cache as the run's",
            ) from None
        cost = compute(ShardJob.from_json(text), settings)
        self.store.write(self._file(name, "cost"), json.dumps(asdict(cost)).encode())

    def take_costs(self) -> Iterator[tuple[str, JobStats]]:
        """The name and the cost of each shard that was computed since the last call."""
        for entry in self.store.list(FOLDER):
            if entry.name.startswith(f"{FOLDER}/{self.key}.") and entry.name.endswith(".cost"):
                cost = JobStats(**json.loads(self.store.read(entry.name)))
                self.store.delete(entry.name)
                yield entry.name.split(".")[1], cost

    def remove(self) -> None:
        """Remove the files of this batch, and those that were left behind."""
        before = datetime.now(UTC) - LEFT_BEHIND
        for entry in self.store.list(FOLDER):
            if entry.name.startswith(f"{FOLDER}/{self.key}.") or entry.written < before:
                self.store.delete(entry.name)

    def _file(self, name: str, kind: Literal["job", "cost"]) -> str:
        return f"{FOLDER}/{self.key}.{name}.{kind}"


@task(task_run_name="{name}", cache_policy=NO_CACHE)
def compute_shard(batch: Batch, name: str, settings: Settings) -> None:
    """A shard of a flow run's slice."""
    batch.compute(name, settings)
