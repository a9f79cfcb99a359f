"""The fan-out: missing shards of the feature cache are computed by what `ABSTAIN_RUNNER` names.

Distribution is cache warming: other processes write results to the cache before the unchanged stage reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from abstain.config.settings import Settings

if TYPE_CHECKING:
    from abstain.llm.features.shard_job import ShardRunner


def runner_for(settings: Settings) -> ShardRunner:
    """The runner that `settings.runner` names. Nothing is started before it gets work."""
    if settings.runner == "local":
        from abstain.llm.features.shard_job import LocalRunner

        return LocalRunner(settings)
    from tasks.training.fan_out.shards import DistributedRunner

    return DistributedRunner(settings)
