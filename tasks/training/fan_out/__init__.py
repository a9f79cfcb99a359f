"""The fan-out: the runner that `ABSTAIN_RUNNER` names computes missing shards of the feature cache.

Distribution is cache warming: other processes write results to the cache before the unchanged stage reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from abstain.config.settings import Settings

if TYPE_CHECKING:
    from abstain.llm.features.shard_job import ShardRunner


def make_runner(settings: Settings) -> ShardRunner:
    """Make the runner that `settings.runner` names; it starts nothing before it gets work.

    Args:
        settings: Settings of this machine.

    Returns:
        The runner.
    """
    if settings.runner == "local":
        from abstain.llm.features.shard_job import LocalRunner

        return LocalRunner(settings)
    from abstain_tasks.training.fan_out.shards import DistributedRunner

    return DistributedRunner(settings)
