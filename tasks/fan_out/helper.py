"""A helper: one flow run that works off a batch, shard by shard, with the base model loaded once.

It takes what nobody else has claimed, so a slow GPU takes fewer. It ends when nothing is left to take, or when the run
that wants the batch has not been heard for a minute: nobody would use what it computes before the next run does.
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
from abstain.llm.features.shard_job import ShardJob, compute
from abstain.llm.features.store import open_store
from tasks.fan_out.todo import LOST_SECONDS, RUN, Heartbeat, LivenessMonitor, ShardQueue


def work_off(key: str, me: str) -> int:
    """Compute shards of the batch `key` until none is left, as the flow run `me`; how many those were.

    Raises `AbstainError` where the batch, or the base model that it wants, is not to be found here.
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
    """Bring one shard into the cache; what it cost is told to the run after that."""
    text = batch.read(name, "todo")
    if text is None:
        return  # another helper was at it, and is done
    done = compute(ShardJob.from_json(text), settings)
    batch.write(name, "done", json.dumps(asdict(done)))
    batch.delete(name, "todo")


def _unclaimed(batch: ShardQueue, me: str) -> Iterator[str]:
    """A shard that is at nobody's hands, chosen at random so that helpers seldom choose the same, time and again."""
    watch = LivenessMonitor()
    while watch.silent(RUN, batch.read(RUN, "beat")) < LOST_SECONDS:
        names = batch.names()
        claimed = {batch.claim_of(who) for who in names["beat"] - {RUN, me}}
        if not (free := sorted(names["todo"] - claimed)):
            return
        yield random.choice(free)
    get_run_logger().warning("the run that wanted this has not been heard for %.0f s: stopped", LOST_SECONDS)
