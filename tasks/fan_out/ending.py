"""The end of a batch: its flow runs are cancelled and its files removed, however its run ends.

`python -m tasks.fan_out.ending BATCH` waits until its standard input closes, which the kernel does for a killed run,
too, and then ends the batch. It imports what that takes only then.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from abstain.config.settings import load_settings

if TYPE_CHECKING:
    from tasks.fan_out.batch import Batch


@contextmanager
def ending_with_this_process(batch: Batch, features: str, api_url: str) -> Iterator[None]:
    """End `batch` when the block is left, and when this process is killed in it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tasks.fan_out.ending", batch.key],
        env=os.environ
        | {"ABSTAIN_FEATURES": features, "PREFECT_API_URL": api_url, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the run, which then ends the batch itself
    )
    try:
        yield
    finally:
        end(batch)
        process.kill()
        process.communicate()


def end(batch: Batch) -> None:
    """Cancel the flow runs of `batch` that have not ended, and remove its files."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.states import Cancelled, Cancelling

    unfinished = {"tags": {"all_": [batch.key]}, "state": {"type": {"any_": ["SCHEDULED", "PENDING", "RUNNING"]}}}
    with get_client(sync_client=True) as client:
        for flow_run in client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(unfinished)):
            is_waiting = flow_run.state is not None and flow_run.state.is_scheduled()
            ended = Cancelled if is_waiting else Cancelling
            client.set_flow_run_state(flow_run.id, ended(message="the run that wanted it has ended"), force=True)
    batch.remove()


def main(key: str) -> None:
    sys.stdin.read()
    from abstain.llm.features.file_store import FileStore
    from tasks.fan_out.batch import Batch

    end(Batch(FileStore(load_settings().features), key))


if __name__ == "__main__":
    main(sys.argv[1])
