"""Distributed features with real processes that are killed: each shard is computed once, with the bytes of one process."""

from __future__ import annotations

import json
import multiprocessing
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client
from prefect import flow, task
from prefect.settings import PREFECT_API_URL, temporary_settings

from abstain.config.settings import Settings
from abstain.core.contracts import Context, Interaction
from abstain.llm.features.extraction import FeatureSource
from abstain_tasks.runs.stopping import Stopped, stop_threads_on_error
from abstain_tasks.server.addresses import post
from abstain_tasks.training.fan_out import make_runner, shards
from tests.conftest import Project, new_project, processes_of
from tests.factories import interaction
from tests.llm.builders import make_params
from tests.llm.conftest import tiny_folder
from tests.ports import free_port
from tests.tasks.server.test_server import wait_until

__all__ = ["tiny_folder"]

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


def rows(count: int) -> list[Interaction]:
    """Different answers, each on a context of its own."""
    contexts = [Context(chunk_id=f"doc#{n}", text=f"{n:04} " + "c" * (7 * n % 40 + 80)) for n in range(count)]
    return [
        interaction(f"i-{n}", question=f"Question {n}?", answer="yes " * (n % 5 + 1), contexts=(context,))
        for n, context in enumerate(contexts)
    ]


def source_in(home: Path, model: Path) -> FeatureSource:
    """A base model that reads a few tokens at a time, so that a shard takes long enough to be interrupted."""
    return FeatureSource(make_params(model), Settings(home=home, device="cpu", dtype="float32", batch_tokens=24))


def read_shards(source: FeatureSource) -> dict[str, tuple[bytes, int]]:
    root = Path(source.settings.features)
    files = root.rglob("*.safetensors")
    return {file.relative_to(root).as_posix(): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


class Host:
    """A home whose features are computed by other processes."""

    def __init__(self, project: Project, model: Path) -> None:
        self.project, self.model = project, model
        self.jobs = project.home / "features" / "jobs"
        self.source = source_in(project.home, model)
        self.environment = {"ABSTAIN_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.open = ExitStack()

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a service that `open` ends."""
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

    def require_result(self, before: dict[str, tuple[bytes, int]], folder: Path, shards: int = 5) -> None:
        """Require that no finished shard was computed again, and that the bytes are those of one process."""
        after, alone = read_shards(self.source), source_in(folder / "alone", self.model)
        assert before.items() <= after.items(), "a finished shard was computed again"
        alone.compute_missing(rows(shards * 64))
        expected = {name: content for name, (content, _) in read_shards(alone).items()}
        assert {name: content for name, (content, _) in after.items()} == expected
        assert list(self.jobs.glob("*.job")) == []


class Run:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        patience = threading.Timer(1200, process.kill)
        patience.daemon = True
        patience.start()

    def until(self, sign: str) -> str:
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if re.search(sign, line):
                return "".join(lines)
        raise AssertionError(f"{sign} was never printed:\n{''.join(lines[-40:])}")

    def finish(self) -> dict[str, int]:
        cost: dict[str, int] = json.loads(self.until("^finished").splitlines()[-1].removeprefix("finished "))
        assert self.process.wait(60) == 0
        return cost

    def list_processes(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


@pytest.fixture
def host(tmp_path: Path, prefect_server: str, tiny_folder: Path) -> Iterator[Host]:
    host = Host(replace(new_project(tmp_path), server=prefect_server, warm=False), tiny_folder)
    with host.open:
        yield host
    # The tracker of resources of a killed run ends a moment after it.
    wait_until(lambda: processes_of(host.project) == [], 20)


@pytest.mark.soak(twin="test_work_pool_writes_the_bytes_of_one_process")
def test_process_runner_killed_process_and_run(host: Host, tmp_path: Path) -> None:
    run = host.run("processes", shards=5)
    run.until("^progress 64/")
    before = read_shards(host.source)
    run.list_processes()[0].kill()
    assert "error" not in run.until("shards are computed again, because a process ended: BrokenProcessPool")
    run.until("^progress ")
    pool = run.list_processes()
    run.process.kill()
    _, alive = psutil.wait_procs(pool, 20)
    assert before and pool and alive == []
    before = {**before, **read_shards(host.source)}
    assert host.run("processes", shards=5).finish()["rows"] == 64 * (5 - len(before))
    host.require_result(before, tmp_path)


def never_end(name: str, features: str) -> None:
    (Path(features) / f"{name}.begun").touch()
    time.sleep(300)


hanging = task(name="hanging")(never_end)


def test_process_runner_stopped_leaves_no_process(
    prefect_server: str, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "compute_shard", hanging)
    runner = make_runner(Settings(home=tmp_path, runner="processes", workers=1))

    @task
    def fan_out() -> None:
        list(runner.run(source_in(tmp_path, tiny_folder).iter_shards(rows(4 * 64))))

    @flow
    def stopped() -> None:
        with pytest.raises(KeyboardInterrupt), stop_threads_on_error():
            future = fan_out.submit()
            wait_until(lambda: bool(list(tmp_path.glob("features/*.begun"))) or future.state.is_final(), 20)
            raise KeyboardInterrupt
        with pytest.raises(Stopped):
            future.result()
        assert multiprocessing.active_children() == []

    with temporary_settings({PREFECT_API_URL: prefect_server}):
        stopped()
    assert list((tmp_path / "features" / "jobs").iterdir()) == []


def list_restrictions(dask_scheduler: Any) -> list[Any]:
    return [task.resource_restrictions for task in dask_scheduler.tasks.values()]


@pytest.mark.soak(twin="test_work_pool_writes_the_bytes_of_one_process")
def test_dask_runner_killed_worker(host: Host, tmp_path: Path) -> None:
    port = str(free_port())
    options = ("--host", "127.0.0.1", "--port", port, "--no-dashboard")
    host.start(sys.executable, "-m", "distributed.cli.dask_scheduler", *options)
    address = f"tcp://127.0.0.1:{port}"
    worker = (sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-dashboard", "--no-nanny")
    workers = [host.start(*worker, "--nthreads", "4", "--resources", "GPU=1") for _ in range(2)]
    host.environment["ABSTAIN_DASK_SCHEDULER"] = address
    run = host.run("dask", shards=5)
    run.until("^progress 64/")
    with Client(address) as client:
        wanted = client.run_on_scheduler(list_restrictions)
    assert wanted and all(one == {"GPU": 1} for one in wanted)
    before = read_shards(host.source)
    workers[0].kill()
    assert before and "computed again" not in run.until("^finished"), "the scheduler gives the shard to another worker"
    host.require_result(before, tmp_path)
    refused = host.run("dask", shards=6, revision="tiny-bank@0")
    assert "computed again" not in refused.until("^error A205: the shard wants tiny-bank@0")
    assert refused.process.wait(60) == 0


def test_work_pool_writes_the_bytes_of_one_process(host: Host, tmp_path: Path) -> None:
    post(f"{host.project.server}/work_pools/", {"name": "gpu", "type": "process"})
    host.project.run("prefect", "--no-prompt", "deploy", "--name", "gpu")
    host.start(sys.executable, "-m", "abstain_tasks.server", "worker")
    assert host.run("prefect", shards=2, workers=1).finish()["rows"] == 2 * 64
    host.require_result({}, tmp_path, shards=2)
