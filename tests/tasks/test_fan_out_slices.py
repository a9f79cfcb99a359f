"""What a run does with the flow runs that compute its slices, by the states that a stand-in for the server reports."""

from __future__ import annotations

import contextvars
import json
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Cancelled, Completed, Crashed, Failed, Running

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.features.file_store import FileStore
from tasks.fan_out import on_prefect
from tasks.fan_out.batch import Batch
from tasks.stopping import Stopped, stopping_together

pytestmark = pytest.mark.heavy

COST = {"rows": 64, "pass_tokens": 9, "forward_tokens": 5}


class Server:
    """Ends each flow run with the next of `outcomes`; one that is completed has computed its slice."""

    def __init__(self, batch: Batch, *outcomes: State) -> None:
        self.batch, self.outcomes = batch, list(outcomes)
        self.flow_runs: dict[uuid.UUID, FlowRun] = {}
        self.slices: list[list[str]] = []

    def run_deployment(self, name: str, parameters: dict[str, Any], **_: Any) -> FlowRun:
        assert parameters["batch"] == self.batch.key
        state, names = self.outcomes.pop(0), parameters["shards"]
        for shard in names if state.is_completed() else ():
            self.batch.store.write(f"jobs/{self.batch.key}.{shard}.cost", json.dumps(COST).encode())
        started = FlowRun(flow_id=uuid.uuid4(), name=f"run-{len(self.slices)}", state=state)
        self.flow_runs[started.id] = started
        self.slices.append(names)
        return started

    def read_deployment_by_name(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(work_pool_name="gpu")

    def read_flow_runs(self, flow_run_filter: Any) -> list[FlowRun]:
        return [self.flow_runs[key] for key in flow_run_filter.id.any_]

    def read_events(self, *_: Any, **__: Any) -> SimpleNamespace:
        return SimpleNamespace(events=[])

    def set_flow_run_state(self, key: uuid.UUID, state: State, force: bool) -> None:
        self.flow_runs[key].state = state


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Server, on_prefect._Slices]]:
    def build(*outcomes: State, workers: int = 1) -> tuple[Server, on_prefect._Slices]:
        server = Server(Batch(FileStore(tmp_path)), *outcomes)
        monkeypatch.setattr(on_prefect, "run_deployment", server.run_deployment)
        return server, on_prefect._Slices(server, server.batch, workers, timedelta(seconds=60))  # type: ignore[arg-type]

    monkeypatch.setattr(on_prefect, "POLL_SECONDS", 0.01)
    return build


def shards(count: int) -> dict[str, str]:
    return {f"{number:x}": f"i-{number} to i-{number + 63}" for number in range(count)}


def test_died_flow_runs_slices_are_cut_again(serve: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    server, slices = serve(
        Completed(), Crashed(message="killed"), *[Completed()] * 3, Failed(message="CUDA"), Completed()
    )
    with caplog.at_level(logging.WARNING):
        costs = list(slices.compute(shards(9)))
    assert [cost.rows for cost in costs] == [64] * 9
    assert server.slices == [["0", "4", "8"], ["1", "5"], ["2", "6"], ["3", "7"], ["1"], ["5"], ["5"]]
    assert "run-1 died, its slice is computed again: killed" in caplog.text and "run-5 died" in caplog.text
    assert [entry.name for entry in server.batch.store.list()] == []


def test_three_rounds_without_progress_are_one_line(serve: Callable[..., Any]) -> None:
    server, slices = serve(Completed(), *[Crashed(message="out of\nmemory")] * 6)
    with pytest.raises(
        AbstainError, match=r"^3 times .* at shard 1 \(i-1 to i-64\), of: out of memory: .*BATCH_TOKENS"
    ):
        list(slices.compute(shards(2)))
    assert server.slices == [["0"], ["1"], ["1"], ["1"], ["1"]]


@pytest.mark.parametrize(
    ("outcome", "code", "line"),
    [
        (Cancelled(), Code.NOT_PUBLISHED, "flow run run-0 of extract/gpu was cancelled: run again to go on"),
        (
            Failed(message="Flow run failed. CodedFailure: A205: the shard wants a@1: fetch"),
            Code.OTHER_VERSION,
            "the shard wants a@1: fetch",
        ),
    ],
    ids=["cancelled", "failed"],
)
def test_what_cannot_be_computed_is_not_tried_again(
    serve: Callable[..., Any], outcome: State, code: Code, line: str
) -> None:
    server, slices = serve(outcome)
    with pytest.raises(AbstainError) as raised:
        list(slices.compute(shards(1)))
    assert (raised.value.code, str(raised.value)) == (code, line) and len(server.slices) == 1


def test_a_silent_flow_run_is_cancelled_and_its_slice_computed_again(serve: Callable[..., Any]) -> None:
    silent = Running(timestamp=datetime.now(UTC) - timedelta(seconds=61))
    server, slices = serve(silent, Completed())
    assert len(list(slices.compute(shards(1)))) == 1
    assert [flow_run.state.name for flow_run in server.flow_runs.values()] == ["Cancelling", "Completed"]


def test_a_fan_out_that_waits_is_stopped(serve: Callable[..., Any]) -> None:
    server, slices = serve(Running())
    with ThreadPoolExecutor() as threads:
        with pytest.raises(KeyboardInterrupt), stopping_together():
            at_work = threads.submit(contextvars.copy_context().run, next, slices.compute(shards(1)))
            while not server.slices:
                assert not at_work.done(), at_work.exception()
            raise KeyboardInterrupt
        with pytest.raises(Stopped):
            at_work.result(100)


def test_a_worker_with_another_cache_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match=r"has nothing of batch [0-9a-f]{32}: a worker's ABSTAIN_FEATURES"):
        Batch(FileStore(tmp_path)).compute("1f", Settings(home=tmp_path))
