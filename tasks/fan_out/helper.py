"""A helper: one flow run that computes the shards of a batch one by one, with the base model loaded once.

It takes unclaimed shards, so a slow GPU takes fewer. It ends when no shard is left, or when the requesting run has sent
no heartbeat for a minute: no run would use its results before the next one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from abstain.config.settings import Settings, load_settings
from abstain.core.errors import AbstainError
from abstain.llm.features.cache_files import open_store
from abstain.llm.features.shard_job import ShardJob, compute
from tasks.fan_out.todo import LOST_SECONDS, RUN, Heartbeat, LivenessMonitor, ShardQueue


def work_off(key: str, me: str) -> int:
    """Compute shards of the batch `key` until none is left, as the flow run `me`; returns their number.

    Raises `AbstainError` where the batch, or its base model, is not found here.
    """
    settings = load_settings()
    batch = ShardQueue(open_store(settings.features), key)
    if batch.read(RUN, "beat") is None:
        raise AbstainError(
            f"{batch.store.url} has nothing of batch {key}: a worker's ABSTAIN_FEATURES (or ABSTAIN_HOME) must name "
            "the same cache as the run's"
        )
    done = 0
    with Heartbeat(batch, me) as pulse:
        for name in _unclaimed(batch, me):
            pulse.claim(name)
            compute_shard(batch, name, settings)
            done += 1
    return done


@task(task_run_name="{name}", cache_policy=NO_CACHE)
def compute_shard(batch: ShardQueue, name: str, settings: Settings) -> None:
    """Compute one shard into the cache, then report its cost to the run."""
    text = batch.read(name, "todo")
    if text is None:
        return  # another helper has computed it
    done = compute(ShardJob.from_json(text), settings)
    batch.write(name, "done", json.dumps(asdict(done)))
    batch.delete(name, "todo")


def _unclaimed(batch: ShardQueue, me: str) -> Iterator[str]:
    """Yield unclaimed shards, chosen at random so that helpers seldom choose the same one."""
    watch = LivenessMonitor()
    while watch.silent(RUN, batch.read(RUN, "beat")) < LOST_SECONDS:
        names = batch.names()
        claimed = {batch.claim_of(who) for who in names["beat"] - {RUN, me}}
        if not (free := sorted(names["todo"] - claimed)):
            return
        yield random.choice(free)
    get_run_logger().warning("the requesting run has sent no heartbeat for %.0f s: stopped", LOST_SECONDS)
