"""The flow that a GPU worker runs for `ABSTAIN_RUNNER=prefect`: deployment extract/gpu, started by a retrain."""

from tasks.fan_out.shards import extract

__all__ = ["extract"]
