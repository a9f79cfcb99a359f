"""The flow that a GPU worker runs for `ABSTAIN_RUNNER=prefect`: deployment extract/gpu, started by a retrain."""

from __future__ import annotations

from prefect import flow

from abstain.config.settings import load_settings
from abstain_tasks.runs.failures import coded_failures
from abstain_tasks.training.fan_out.shards import compute_shard


@flow(validate_parameters=False)
@coded_failures()
def extract(names: list[str]) -> None:
    """Compute shards one by one, with the base model loaded once.

    Args:
        names: Names of the jobs.
    """
    settings = load_settings()
    for name in names:
        compute_shard(name, settings.features)
