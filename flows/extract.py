"""The flow that a GPU worker runs for `ABSTAIN_RUNNER=prefect`: deployment extract/gpu, started by a retrain."""

from __future__ import annotations

from prefect import flow

from abstain.config.settings import load_settings
from abstain.llm.features.file_store import FileStore
from tasks.failures import coded_failures
from tasks.fan_out.batch import Batch, compute_shard


@flow(validate_parameters=False)
@coded_failures()
def extract(batch: str, shards: list[str]) -> None:
    """Compute `shards` of `batch` one by one, with the base model loaded once."""
    settings = load_settings()
    for name in shards:
        compute_shard(Batch(FileStore(settings.features), batch), name, settings)
