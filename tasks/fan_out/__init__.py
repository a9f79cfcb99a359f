"""The fan-out: runners that compute missing shards of the feature cache (`ABSTAIN_RUNNER`).

Distribution is cache warming: other processes write results to the cache before the unchanged stage reads it. A runner
is imported only where it is configured, because Dask is an optional extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from abstain.config.settings import Settings

if TYPE_CHECKING:
    from abstain.llm.features.shard_job import ShardRunner


def runner_for(settings: Settings) -> ShardRunner:
    """The runner that `settings.runner` names. Nothing is started before it gets work."""
    match settings.runner:
        case "dask":
            from tasks.fan_out.on_dask import DaskRunner

            return DaskRunner(settings)
        case "prefect":
            from tasks.fan_out.on_prefect import PrefectRunner

            return PrefectRunner(settings)
    from abstain.llm.features.shard_job import LocalRunner

    return LocalRunner(settings)
