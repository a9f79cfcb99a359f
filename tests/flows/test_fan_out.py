"""The fan-out with real processes that are killed: nothing is lost or computed twice, and the bytes are those of one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from distributed import Client
from prefect import task

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Context, Interaction
from abstain.llm.features.extraction import FeatureSource
from abstain_tasks.server.addresses import post
from tests.conftest import Project, new_project, processes_of
from tests.llm.builders import save_tiny_model
from tests.ports import free_port
from tests.tasks.server.test_server import wait_until

pytestmark = pytest.mark.slow

RUN = """
import json, sys
from dataclasses import asdict, replace
from pathlib import Path
from prefect import flow, task
from abstain.config.settings import load_settings
from abstain.core.errors import AbstainError
from abstain_tasks.training.fan_out import make_runner
from tests.flows.test_fan_out import rows, source_in
home, model, count, revision = sys.argv[1:]

@task
def fan_out():
    source, runner = source_in(Path(home), Path(model)), make_runner(load_settings())
    try:
        if revision:
            runner = list(runner.run(replace(shard, revision=revision) for shard in source.iter_shards(rows(int(count)))))
        progress = lambda done, total: print(f"progress {done}/{total}", flush=True)
        print("finished", json.dumps(asdict(source.compute_missing(rows(int(count)), progress, runner))), flush=True)
    except AbstainError as error:
        print(f"error {error.message_with_code}", flush=True)

@flow
def run():
    fan_out.submit().result()

run()
"""

STOP = """
import multiprocessing, sys, time
from contextlib import suppress
from pathlib import Path
from prefect import flow, task
from abstain.config.settings import load_settings
from abstain_tasks.training.fan_out import make_runner
from abstain_tasks.training.fan_out import shards
from abstain_tasks.runs.stopping import stop_threads_on_error
from tests.flows.test_fan_out import hanging, rows, source_in
home, model = map(Path, sys.argv[1:])
shards.compute_shard = hanging

@task
def fan_out():
    list(make_runner(load_settings()).run(source_in(home, model).iter_shards(rows(4 * 64))))

@flow
def run():
    with suppress(KeyboardInterrupt), stop_threads_on_error():
        future = fan_out.submit()
        while not (list(home.glob("features/*.begun")) or future.state.is_final()):
            time.sleep(0.1)
        raise KeyboardInterrupt
    future.wait(60)
    error = future.result(raise_on_failure=False) if future.state.is_final() else None
    print("found", future.state.name, type(error).__name__, multiprocessing.active_children(), flush=True)

run(return_state=True)
"""

HOOK = """
from prefect import flow, task
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_flows import retrain
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


def rows(count: int) -> list[Interaction]:
    """Different answers, each on a context of its own."""
    return [
        Interaction(
            interaction_id=f"i-{n}",
            asked_at="2026-09-01T12:00:00Z",
            question=f"Question {n}?",
            answer="yes " * (n % 5 + 1),
            contexts=(Context(chunk_id=f"doc#{n}", text=f"{n:04} " + "c" * (7 * n % 40 + 80)),),
            model="m@1",
        )
        for n in range(count)
    ]


def source_in(home: Path, model: Path) -> FeatureSource:
    """A base model that reads a few tokens at a time, so that a shard takes long enough to be interrupted."""
    params = LLMParams(
        model=str(model), layout="rag-plain-v1", layer=2, site="residual", too_long="refuse", includes_eos=True
    )
    return FeatureSource(params, Settings(home=home, device="cpu", dtype="float32", batch_tokens=24))


def written(source: FeatureSource) -> dict[str, tuple[bytes, int]]:
    """Every shard's bytes, and when it was written."""
    root = Path(source.settings.features)
    files = root.rglob("*.safetensors")
    return {file.relative_to(root).as_posix(): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def contents(source: FeatureSource) -> dict[str, bytes]:
    return {name: content for name, (content, _) in written(source).items()}


class Host:
    """A home whose features are computed by others, and what was started in it."""

    def __init__(self, project: Project, model: Path) -> None:
        self.project, self.model = project, model
        self.jobs = project.home / "features" / "jobs"
        self.source = source_in(project.home, model)
        self.environment = {"ABSTAIN_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.open = ExitStack()

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """A service that `open` ends."""
        with (self.project.home / "services.log").open("ab") as log:
            environment = self.project.environment | self.environment
            process = subprocess.Popen(command, cwd=self.project.root, env=environment, stdout=log, stderr=log)
        self.open.callback(process.wait, 300)
        self.open.callback(process.terminate)
        return process

    def run(self, runner: str, shards: int, workers: int = 2, revision: str = "") -> Run:
        variables = self.environment | {"ABSTAIN_RUNNER": runner, "ABSTAIN_WORKERS": str(workers)}
        words = [sys.executable, "-c", RUN, str(self.project.home), str(self.model), str(shards * 64), revision]
        setting = ["env", *(f"{name}={value}" for name, value in variables.items())]
        return Run(self.project.start([*setting, *words], stderr=subprocess.STDOUT))

    def at_work(self) -> psutil.Process:
        """The process of a flow run on the work pool that has begun to compute."""
        found: list[psutil.Process] = []

        def look() -> bool:
            filter_ = {
                "flows": {"name": {"any_": ["extract"]}},
                "flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}},
            }
            running = {one["id"] for one in post(f"{self.project.server}/flow_runs/filter", filter_)}
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    if process.environ().get("PREFECT__FLOW_RUN_ID") in running:
                        found.append(process)
            return bool(found)

        wait_until(look, 60)
        return found[-1]


class Run:
    """A run that waits for its shards."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        patience = threading.Timer(1200, process.kill)
        patience.daemon = True
        patience.start()

    def until(self, sign: str) -> str:
        """Its output up to the line that matches `sign`."""
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if re.search(sign, line):
                return "".join(seen)
        raise AssertionError(f"{sign} was never seen:\n{''.join(seen[-40:])}")

    def finish(self) -> dict[str, int]:
        """What was computed, as the run counts it."""
        cost: dict[str, int] = json.loads(self.until("^finished").splitlines()[-1].removeprefix("finished "))
        assert self.process.wait(60) == 0
        return cost

    def fail(self) -> str:
        """What it said, up to its error."""
        said = self.until("^error ")
        assert self.process.wait(60) == 0
        return said

    def processes(self) -> list[psutil.Process]:
        """The processes of its pool."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny-bank")


@pytest.fixture
def host(tmp_path: Path, prefect_server: str, model: Path) -> Iterator[Host]:
    host = Host(replace(new_project(tmp_path), server=prefect_server, warm=False), model)
    with host.open:
        yield host
    # The tracker of resources of a killed run ends a moment after it.
    wait_until(lambda: processes_of(host.project) == [], 20)


@pytest.fixture
def alone(tmp_path: Path, model: Path) -> FeatureSource:
    """What one process computes."""
    source = source_in(tmp_path / "alone", model)
    source.compute_missing(rows(5 * 64))
    return source


def test_a_killed_process_of_the_pool(host: Host, alone: FeatureSource) -> None:
    run = host.run("processes", shards=5)
    run.until("^progress 64/")
    before = written(host.source)
    run.processes()[0].kill()
    said = run.until("shards are computed again, because a process ended: BrokenProcessPool")
    assert "error" not in said and run.finish()["rows"] == 5 * 64
    assert before and before.items() <= written(host.source).items(), "a finished shard was computed again"
    assert contents(host.source) == contents(alone) and list(host.jobs.glob("*.job")) == []


def test_a_killed_run_goes_on(host: Host, alone: FeatureSource) -> None:
    run = host.run("processes", shards=5)
    run.until("^progress 64/")
    pool = run.processes()
    run.process.kill()
    _, alive = psutil.wait_procs(pool, 20)
    assert len(pool) == 2 and alive == []
    before = written(host.source)
    assert host.run("processes", shards=5).finish()["rows"] == 64 * (5 - len(before))
    assert before.items() <= written(host.source).items(), "a finished shard was computed again"
    assert contents(host.source) == contents(alone) and list(host.jobs.glob("*.job")) == []


def never_end(name: str, features: str) -> None:
    (Path(features) / f"{name}.begun").touch()
    time.sleep(300)


hanging = task(name="hanging")(never_end)


def test_a_stopped_run_leaves_no_process(host: Host) -> None:
    variables = [f"{name}={value}" for name, value in host.environment.items()]
    words = [sys.executable, "-c", STOP, str(host.project.home), str(host.model)]
    done = host.project.command(["env", *variables, "ABSTAIN_RUNNER=processes", "ABSTAIN_WORKERS=2", *words])
    assert "found Failed Stopped []\n" in done.stdout, done.stdout + done.stderr
    assert list(host.jobs.iterdir()) == []


def restrictions(dask_scheduler: Any) -> list[Any]:
    """What the shards on a scheduler ask of a worker."""
    return [task.resource_restrictions for task in dask_scheduler.tasks.values()]


def test_a_killed_dask_worker(host: Host, alone: FeatureSource) -> None:
    port = str(free_port())
    at = ("--host", "127.0.0.1", "--port", port, "--no-dashboard")
    host.start(sys.executable, "-m", "distributed.cli.dask_scheduler", *at)
    address = f"tcp://127.0.0.1:{port}"
    worker = (sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-dashboard", "--no-nanny")
    workers = [host.start(*worker, "--nthreads", "4", "--resources", "GPU=1") for _ in range(2)]
    host.environment["ABSTAIN_DASK_SCHEDULER"] = address
    run = host.run("dask", shards=5)
    run.until("^progress 64/")
    with Client(address) as client:
        wanted = client.run_on_scheduler(restrictions)
    assert wanted and all(one == {"GPU": 1} for one in wanted)
    before = written(host.source)
    workers[0].kill()
    said = run.until("^finished")
    assert "computed again" not in said, "the scheduler gives the shard to another worker"
    assert before and before.items() <= written(host.source).items(), "a finished shard was computed again"
    assert contents(host.source) == contents(alone) and list(host.jobs.glob("*.job")) == []
    failed = host.run("dask", shards=6, revision="tiny-bank@0").fail()
    assert re.search(
        r"^error A205: the shard wants tiny-bank@0, but this machine has tiny-bank@\w+: fetch", failed, re.M
    )


@pytest.fixture
def pool(host: Host) -> Host:
    """A server with the deployment extract/gpu."""
    with suppress(OSError):  # another test has made it
        post(f"{host.project.server}/work_pools/", {"name": "gpu", "type": "process"})
    deployed = host.project.command(["prefect", "--no-prompt", "deploy", "--name", "gpu"])
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    return host


def start_worker(host: Host) -> subprocess.Popen[bytes]:
    return host.start(sys.executable, "-m", "abstain_tasks.server", "worker")


def test_a_work_pool_goes_on_with_the_work_of_a_killed_run(pool: Host, alone: FeatureSource) -> None:
    run = pool.run("prefect", shards=5)
    run.until("no worker polls the work pool gpu: .*`make worker`")
    wait_until(lambda: len(list(pool.jobs.iterdir())) == 5, 20)
    run.process.kill()
    start_worker(pool)
    again = pool.run("prefect", shards=5)
    assert again.finish()["rows"] == 5 * 64
    assert contents(pool.source) == contents(alone) and list(pool.jobs.glob("*.job")) == []
    failed = pool.run("prefect", shards=6, revision="tiny-bank@0").fail()
    assert re.search(
        r"^error A205: the shard wants tiny-bank@0, but this machine has tiny-bank@\w+: fetch", failed, re.M
    )
    assert "computed again" not in failed and list(pool.jobs.glob("*.job")) == []


@pytest.mark.soak(twin="test_a_work_pool_goes_on_with_the_work_of_a_killed_run")
def test_a_killed_flow_run_of_the_work_pool(pool: Host, alone: FeatureSource) -> None:
    for _ in range(2):
        start_worker(pool)
    run = pool.run("prefect", shards=5)
    run.until("^progress 64/")
    process, before = pool.at_work(), written(pool.source)
    process.kill()
    run.until("shards are computed again, because a process ended: ")
    assert run.finish()["rows"] == 5 * 64
    assert before and before.items() <= written(pool.source).items(), "a finished shard was computed again"
    assert contents(pool.source) == contents(alone) and list(pool.jobs.glob("*.job")) == []


def test_a_retrain_fans_out_just_before_the_features(host: Host) -> None:
    done = host.project.command(["env", "ABSTAIN_RUNNER=prefect", sys.executable, "-c", HOOK])
    said = [line for line in done.stdout.splitlines() if line.startswith(("at ", "returned", "error: "))]
    first = ["at stage dataset", "at fan_out features", "at stage features", "at stage report"]
    assert said[: len(first) + 1] == [*first, "returned ['dataset', 'features', 'report']"], done.stdout + done.stderr
    assert said[len(first) + 1 :] == ["at stage dataset", "at fan_out features", "error: no worker"]
