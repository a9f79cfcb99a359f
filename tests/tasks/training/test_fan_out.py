import contextvars
import json
import logging
import multiprocessing
import os
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Cancelled, Completed, Crashed, Failed, Pending, Running

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.prompts import Segment
from abstain.llm.engine.requests import HiddenStates, Request
from abstain.llm.features.shard_job import JobStats, LocalRunner, ShardJob, compute_shard
from abstain_flows import retrain
from abstain_tasks.runs.stopping import Stopped, stop_threads_on_error
from abstain_tasks.runs.workspace import Workspace
from abstain_tasks.training.fan_out import make_runner, shards
from tests.llm.builders import save_tiny_model

pytestmark = pytest.mark.heavy

COST = JobStats(64, 9, 5)


class Server:
    """A stub that ends each flow run with the next of `outcomes`; a completed one has computed its part."""

    api_url = "http://127.0.0.1"

    def __init__(self, folder: Path, *outcomes: State) -> None:
        self.jobs, self.outcomes = folder / shards.JOBS, list(outcomes)
        self.flow_runs: dict[uuid.UUID, FlowRun] = {}
        self.parts: list[list[str]] = []

    def run_deployment(self, name: str, parameters: dict[str, Any], **_: Any) -> FlowRun:
        state, names = self.outcomes.pop(0), parameters["names"]
        for shard in names if state.is_completed() else ():
            (self.jobs / f"{shard}.cost").write_text(json.dumps(vars(COST)))
            (self.jobs / f"{shard}.job").unlink()
        started = FlowRun(flow_id=uuid.uuid4(), name=f"run-{len(self.parts)}", state=state)
        self.flow_runs[started.id] = started
        self.parts.append(names)
        return started

    def read_deployment_by_name(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(work_pool_name="gpu")

    def read_work_pool(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, status=SimpleNamespace(value="NOT_READY"))

    def read_flow_runs(self, flow_run_filter: Any) -> list[FlowRun]:
        return [self.flow_runs[key] for key in flow_run_filter.id.any_ if key in self.flow_runs]


Serve = Callable[..., tuple[Server, shards.DistributedRunner]]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    def build(*outcomes: State, workers: int = 1) -> tuple[Server, shards.DistributedRunner]:
        server = Server(tmp_path, *outcomes)
        monkeypatch.setattr(shards, "get_client", lambda **_: nullcontext(server))
        monkeypatch.setattr(shards, "run_deployment", server.run_deployment)
        settings = Settings(home=tmp_path, features_url=str(tmp_path), runner="prefect", workers=workers)
        return server, shards.DistributedRunner(settings)

    monkeypatch.setattr(shards, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(shards, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(shards, "get_run_logger", logging.getLogger)
    return build


def make_job(number: int) -> ShardJob:
    request = Request((Segment("answer", f"Answer {number}"),), HiddenStates(1), f"i-{number}")
    return ShardJob("m", "m@1", "float32", 24, (request,))


def make_jobs(count: int) -> list[ShardJob]:
    return [make_job(number) for number in range(count)]


def test_compute_shard_of_other_revision_raises(tmp_path: Path) -> None:
    job = replace(make_job(0), model=str(save_tiny_model(tmp_path / "tiny-bank")), revision="tiny-bank@0")
    with pytest.raises(
        AbstainError, match="wants tiny-bank@0", check=lambda error: error.code is Code.VERSION_MISMATCH
    ):
        compute_shard(job, Settings(home=tmp_path, device="cpu", dtype="float32"))


def test_make_runner_local_creates_nothing(tmp_path: Path) -> None:
    assert isinstance(make_runner(Settings(home=tmp_path)), LocalRunner)
    assert list(tmp_path.iterdir()) == []


def test_dask_runner_names_missing_requirement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner(Settings(home=tmp_path, runner="dask"))
    with pytest.raises(AbstainError, match="ABSTAIN_DASK_SCHEDULER"):
        list(runner.run([make_job(0)]))
    monkeypatch.setitem(sys.modules, "prefect_dask.task_runners", None)
    with pytest.raises(AbstainError, match=r"abstain\[dask\]"):
        list(runner.run([make_job(0)]))
    assert list((tmp_path / "features" / "jobs").iterdir()) == []


def test_distributed_runner_repeats_shards_of_dead_process(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    died, failed = Crashed(message="killed"), Failed(message="CUDA")
    server, runner = serve(Completed(), died, Completed(), failed, Completed(), workers=2)
    work = make_jobs(5)
    names = [one.name for one in work]
    with caplog.at_level(logging.WARNING):
        assert list(runner.run(work)) == [COST] * 5
    assert server.parts == [names[::2], names[1::2], names[1:2], names[3:4], names[3:4]]
    assert "no worker polls the work pool gpu: " in caplog.text
    assert "2 shards are computed again, because a process ended: killed" in caplog.text
    assert list(server.jobs.iterdir()) == []


def test_distributed_runner_repeats_deleted_flow_run(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server, runner = serve(Pending(), Completed())
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor() as threads:
        run = threads.submit(list, runner.run(make_jobs(1)))
        while "run-0 of extract/gpu have not begun: " not in caplog.text:
            assert not run.done(), run.exception()
        server.flow_runs.clear()
        assert run.result(100) == [COST]
    assert caplog.text.count("have not begun") == 1
    assert "1 shards are computed again, because a process ended: a flow run of extract/gpu was deleted" in caplog.text


def test_distributed_runner_deletes_only_own_old_jobs(serve: Serve) -> None:
    server, runner = serve()
    server.jobs.mkdir()
    digest = make_job(0).name
    mine, young = {"batch-17.job", f"{digest}.txt"}, f"{digest}.job"
    for name in (*mine, f"{digest}.cost", f".{digest}.job.{'5e' * 8}", young):
        (server.jobs / name).touch()
        if name != young:
            os.utime(server.jobs / name, (0, 0))
    assert list(runner.run([])) == []
    assert {file.name for file in server.jobs.iterdir()} == {*mine, young}


def test_distributed_runner_stops_after_three_rounds(serve: Serve) -> None:
    server, runner = serve(Completed(), *[Crashed(message="out of\nmemory")] * 6, workers=2)
    with pytest.raises(AbstainError, match=r"^3 times .* shard \w+ \(i-1 to i-1\), of: out of memory: .*BATCH_TOKENS"):
        list(runner.run(make_jobs(2)))
    assert len(server.parts) == 5 and list(server.jobs.iterdir()) == []


@pytest.mark.parametrize(
    ("outcome", "code", "line"),
    [
        (Cancelled(), Code.NOT_PUBLISHED, "run-0"),
        (Failed(message="Flow run failed. CodedFailure: A205: a@1: fetch"), Code.VERSION_MISMATCH, "^a@1: fetch$"),
    ],
    ids=["cancelled", "failed"],
)
def test_distributed_runner_lasting_failure_raises_at_once(serve: Serve, outcome: State, code: Code, line: str) -> None:
    server, runner = serve(outcome)
    with pytest.raises(AbstainError, match=line) as error:
        list(runner.run(make_jobs(1)))
    assert error.value.code is code and len(server.parts) == 1


def test_distributed_runner_other_cache_is_named(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server, runner = serve(Completed())
    elsewhere = FlowRun(flow_id=uuid.uuid4(), name="run", state=Completed())
    server.flow_runs[elsewhere.id] = elsewhere
    monkeypatch.setattr(shards, "run_deployment", lambda *_, **__: elsewhere)
    with pytest.raises(AbstainError, match="ABSTAIN_FEATURES"):
        list(runner.run(make_jobs(1)))


def test_distributed_runner_finished_shard_costs_nothing(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "compute_shard", lambda *_: pytest.fail("it was computed twice"))
    server, runner = serve(Running())
    run = ThreadPoolExecutor().submit(list, runner.run(make_jobs(1)))
    while not server.parts:
        assert not run.done(), run.exception()
    (server.jobs / f"{make_job(0).name}.job").unlink()
    shards.compute_job(make_job(0).name, str(server.jobs.parent))
    next(iter(server.flow_runs.values())).state = Completed()
    assert run.result(100) == [JobStats(0, 0, 0)]


def test_distributed_runner_waiting_is_stopped(serve: Serve) -> None:
    server, runner = serve(Running())
    with ThreadPoolExecutor() as threads:
        with pytest.raises(KeyboardInterrupt), stop_threads_on_error():
            at_work = threads.submit(contextvars.copy_context().run, list, runner.run(make_jobs(1)))
            while not server.parts:
                assert not at_work.done(), at_work.exception()
            raise KeyboardInterrupt
        with pytest.raises(Stopped):
            at_work.result(100)
    assert list(server.jobs.iterdir()) == []


def test_run_dag_fans_out_before_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[tuple[str, list[str]]] = []

    def make_step(kind: str, outcome: Callable[[], None] = lambda: None) -> SimpleNamespace:
        def submit(_: Workspace, stage: str, wait_for: list[SimpleNamespace], **options: bool) -> SimpleNamespace:
            submitted.append((f"{kind} {stage}", [future.name for future in wait_for]))
            state = SimpleNamespace(result=outcome)
            return SimpleNamespace(name=f"{kind} {stage}", state=state, result=lambda: stage)

        return SimpleNamespace(submit=submit)

    graph = {"dataset": set[str](), "features": {"dataset"}, "report": {"features"}}
    monkeypatch.setenv("ABSTAIN_RUNNER", "prefect")
    monkeypatch.setattr(retrain, "read_graph", lambda _: graph)
    monkeypatch.setattr(retrain, "find_stale", lambda *_: dict.fromkeys(graph, True))
    monkeypatch.setattr(retrain, "wait", lambda _: None)
    monkeypatch.setattr(retrain, "run_stage", make_step("stage"))
    monkeypatch.setattr(retrain, "fan_out", make_step("fan_out"))
    assert retrain.run_dag(Workspace(tmp_path, 0)) == ["dataset", "features", "report"]
    assert submitted == [
        ("stage dataset", []),
        ("fan_out features", ["stage dataset"]),
        ("stage features", ["stage dataset", "fan_out features"]),
        ("stage report", ["stage features"]),
    ]
    away = Mock(side_effect=AbstainError(Code.NO_SERVICE, "no worker"))
    monkeypatch.setattr(retrain, "fan_out", make_step("fan_out", away))
    with pytest.raises(AbstainError, match="no worker"):
        retrain.run_dag(Workspace(tmp_path, 0))


@pytest.mark.parametrize(
    ("device", "visible", "count", "gpus"),
    [
        ("auto", "", 2, ["0", "1"]),
        ("cuda", "3,GPU-5e", 2, ["3", "GPU-5e"]),
        ("cuda:1", "", 2, []),
        ("auto", "", 1, []),
        ("auto", "0,1", 0, []),
        ("cpu", "", 2, []),
    ],
)
def test_list_shared_gpus(monkeypatch: pytest.MonkeyPatch, device: str, visible: str, count: int, gpus: list) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert shards.list_shared_gpus(Settings(device=device)) == gpus


def test_begin_process_takes_turns_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "init", lambda: taken.append(os.environ["CUDA_VISIBLE_DEVICES"]))
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    started = multiprocessing.get_context("spawn").Value("i", 0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for _ in range(2):
        shards.begin_process(started, 3, ["4", "7"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shards.begin_process(started, 3, ["4", "7"])
    assert taken == ["4", "7", "4"] and threads == [3, 3], "what is set already wins"
    monkeypatch.setattr(os, "_exit", sys.exit)
    started.value = -5
    with pytest.raises(SystemExit):
        shards.begin_process(started, 3, ["4", "7"])
