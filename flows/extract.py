"""The flow that a GPU worker runs for `ABSTAIN_RUNNER=prefect`: deployment extract/gpu, started by a retrain."""

from __future__ import annotations

from prefect import flow
from prefect.runtime import flow_run

from tasks.fan_out.helper import work_off


@flow(validate_parameters=False)
def extract(batch: str) -> int:
    """Compute shards of `batch` until none is left; returns their number."""
    return work_off(batch, str(flow_run.id))
