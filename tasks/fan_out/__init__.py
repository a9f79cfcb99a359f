"""The fan-out: who computes the shards that the feature cache lacks (`ABSTAIN_RUNNER`).

Distribution is cache-warming: what other processes compute lies in the cache by the time the unchanged stage looks
there. A runner is imported only where it is asked for, because Dask is an optional extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from abstain.config.settings import Settings

if TYPE_CHECKING:
    from abstain.llm.features.shard_job import ShardRunner


def runner_for(settings: Settings) -> ShardRunner:
    """The runner that `settings.runner` names. Nothing is started before it is given work."""
    match settings.runner:
        case "dask":
            from tasks.fan_out.on_dask import DaskRunner

            return DaskRunner(settings)
        case "prefect":
            from tasks.fan_out.on_prefect import PrefectRunner

            return PrefectRunner(settings)
    from abstain.llm.features.shard_job import LocalRunner

    return LocalRunner(settings)
