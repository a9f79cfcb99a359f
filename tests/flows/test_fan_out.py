"""The fan-out on Prefect: a real server, real workers, and flow runs that are killed, frozen, or say what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tasks.server.addresses import post
from tests.conftest import Project, Up, new_project, processes_of
from tests.fan_out import contents, rows, shards, source_in
from tests.llm.builders import save_tiny_model
from tests.tasks.test_server import wait_until

pytestmark = pytest.mark.slow

RUN = """
import sys
from pathlib import Path
from prefect import flow, task
from abstain.core.errors import AbstainError
from abstain.llm.features.shard_job import ShardJob
from tasks.fan_out.on_prefect import PrefectRunner
from tests.fan_out import rows, source_in
home, model, count, workers, lost_after, revision = sys.argv[1:]

@task
def fan_out():
    source = source_in(Path(home), Path(model), runner="prefect", workers=int(workers))
    runner = PrefectRunner(source.settings, float(lost_after))
    try:
        if revision:
            requests = tuple(source.prepare(row).request for row in rows(int(count)))
            list(runner.run([ShardJob(model, revision, "float32", 24, requests)]))
        else:
            source.compute_missing(
                rows(int(count)), lambda done, total: print(f"progress {done}/{total}", flush=True), runner
            )
        print("finished", flush=True)
    except AbstainError as error:
        print(f"error {error.coded}", flush=True)

@flow
def run():
    fan_out.submit().result()

run()
"""

HOOK = """
from prefect import flow, task
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from flows import retrain
STEP = "fan_out"

def stub(name):
    @task(name=name)
    def said(workspace, stage, is_stale=True, force=False):
        print("at", name, stage, flush=True)
        if workspace == name:
            raise AbstainError(Code.NO_SERVICE, "no worker")
        return stage
    return said

retrain.read_graph = lambda workspace: {"dataset": set(), "features": {"dataset"}, "report": {"features"}}
retrain.find_stale = lambda workspace, graph: dict.fromkeys(graph, ["changed"])
retrain.run_stage, retrain.fan_out = stub("stage"), stub(STEP)
print("returned", flow(retrain.run_dag, validate_parameters=False)("nothing"))
try:
    flow(retrain.run_dag, validate_parameters=False)(STEP)
except AbstainError as error:
    print("error:", error)
"""


class Cluster:
    """Machines that share a cache, with workers of the pool `gpu` as `make worker` starts them, and their server."""

    def __init__(self, project: Project, up: Up, model: Path) -> None:
        self.project, self.up, self.model = replace(project, server=up.api), up, model
        self.jobs = self.project.home / "features" / "jobs"
        self.workers: list[subprocess.Popen[bytes]] = []

    def start_worker(self) -> None:
        with (self.project.home / f"gpu-{len(self.workers)}.log").open("wb") as log:
            environment = self.project.environment | {
                "ABSTAIN_DEVICE": "cpu",
                "OMP_NUM_THREADS": "1",
                "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
            }
            command = [sys.executable, "-m", "tasks.server", "worker"]
            self.workers.append(
                subprocess.Popen(command, cwd=self.project.root, env=environment, stdout=log, stderr=log)
            )

    def start_run(self, shards: int, workers: int = 1, lost_after: float = 600, revision: str = "") -> Run:
        script = [sys.executable, "-c", RUN, str(self.project.home), str(self.model)]
        arguments = [str(shards * 64), str(workers), str(lost_after), revision]
        return Run(self.project.start([*script, *arguments], stderr=subprocess.STDOUT))

    def flow_runs(self) -> list[dict[str, Any]]:
        """The flow runs that compute shards."""
        found: list[dict[str, Any]] = post(
            f"{self.up.api}/flow_runs/filter", {"flows": {"name": {"any_": ["extract"]}}}
        )
        return found

    def states(self) -> Counter[str]:
        return Counter(flow_run["state_type"] for flow_run in self.flow_runs())

    def process_at_work(self) -> psutil.Process:
        """The process of a flow run that is running."""
        found: list[psutil.Process] = []

        def look() -> bool:
            running = {flow_run["id"] for flow_run in self.flow_runs() if flow_run["state_type"] == "RUNNING"}
            for worker in self.workers:
                for process in psutil.Process(worker.pid).children(recursive=True):
                    with suppress(psutil.Error):
                        if process.environ().get("PREFECT__FLOW_RUN_ID") in running:
                            found.append(process)
            return bool(found)

        wait_until(look, 30)
        return found[-1]


class Run:
    """A run that waits for its shards."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.patience = threading.Timer(1200, process.kill)
        self.patience.daemon = True
        self.patience.start()

    def until(self, sign: str) -> str:
        """Its output up to the line that matches `sign`."""
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if re.search(sign, line):
                return "".join(seen)
        raise AssertionError(f"{sign} was never seen:\n{''.join(seen[-40:])}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny-bank")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, up: Up, model: Path) -> Iterator[Cluster]:
    cluster = Cluster(new_project(tmp_path_factory.mktemp("cluster")), up, model)
    try:
        yield cluster
    finally:
        for worker in cluster.workers:
            worker.terminate()  # SIGINT is ignored by all that a background job starts
        for worker in cluster.workers:
            worker.wait(300)
    assert processes_of(cluster.project) == []


@pytest.fixture
def worker(cluster: Cluster) -> None:
    """A worker polls the pool."""
    if not cluster.workers:
        cluster.start_worker()


def test_a_killed_run_leaves_no_flow_run_and_no_file(cluster: Cluster) -> None:
    before, run = cluster.states(), cluster.start_run(shards=2)
    run.until("no worker polls the work pool gpu: .*`make worker`")
    assert cluster.states() - before == {"SCHEDULED": 1} and len(list(cluster.jobs.iterdir())) == 2
    run.process.kill()
    wait_until(lambda: cluster.states() - before == {"CANCELLED": 1}, 20)
    wait_until(lambda: list(cluster.jobs.iterdir()) == [], 10)


def test_a_worker_computes_the_bytes_of_one_process(cluster: Cluster, worker: None, tmp_path: Path) -> None:
    alone = source_in(tmp_path / "local", cluster.model)
    alone.compute_missing(rows(2 * 64))
    run = cluster.start_run(shards=2)
    run.until("^finished")
    assert run.process.wait(60) == 0
    computed = contents(source_in(cluster.project.home, cluster.model))
    assert contents(alone).items() <= computed.items()
    assert list(cluster.jobs.iterdir()) == []


def test_what_a_worker_cannot_do_is_the_same_line_here(cluster: Cluster, worker: None) -> None:
    run = cluster.start_run(shards=1, revision="tiny-bank@0")
    said = run.until("^error ")
    assert re.search(r"^error A205: the shard wants tiny-bank@0, but this machine has tiny-bank@\w+: fetch", said, re.M)
    assert "died" not in said, "it was tried again"
    assert run.process.wait(60) == 0 and list(cluster.jobs.iterdir()) == []


@pytest.mark.soak(twin="test_a_worker_computes_the_bytes_of_one_process")
def test_killed_and_frozen_flow_runs_cost_a_shard_each_and_the_bytes_are_those_of_one_process(
    cluster: Cluster, tmp_path: Path
) -> None:
    here, alone = source_in(cluster.project.home, cluster.model), source_in(tmp_path / "local", cluster.model)
    alone.compute_missing(rows(10 * 64))
    run = cluster.start_run(shards=10, workers=2, lost_after=150)
    cluster.start_worker()
    run.until("progress 64/")
    process, before = cluster.process_at_work(), shards(here)
    process.kill()
    run.until("flow run .* died, its slice is computed again: ")

    cluster.start_worker()
    frozen = cluster.process_at_work()
    frozen.suspend()
    said = run.until("flow run .* died, .*: no heartbeat for 150 s") + run.until("^finished")
    assert "no worker polls" not in said
    assert run.process.wait(60) == 0
    wait_until(lambda: not frozen.is_running(), 10)  # killed by its worker
    wait_until(lambda: not cluster.states() & Counter(("SCHEDULED", "PENDING", "RUNNING", "CANCELLING")), 10)

    after = shards(here)
    assert len(before) >= 1 and before.items() <= after.items(), "a finished shard was computed again"
    assert contents(here) == contents(alone) and list(cluster.jobs.iterdir()) == []


def test_a_retrain_fans_out_after_what_the_features_wait_for_and_before_them(cluster: Cluster) -> None:
    done = cluster.project.command(["env", "ABSTAIN_RUNNER=prefect", sys.executable, "-c", HOOK])
    said = [line for line in done.stdout.splitlines() if line.startswith(("at ", "returned", "error: "))]
    first = ["at stage dataset", "at fan_out features", "at stage features", "at stage report"]
    assert said[: len(first) + 1] == [*first, "returned ['dataset', 'features', 'report']"], done.stdout + done.stderr
    assert said[len(first) + 1 :] == ["at stage dataset", "at fan_out features", "error: no worker"]
