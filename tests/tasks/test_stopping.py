"""Stopping means stopped: whatever ends a run, its commands end with it, and the next run goes on."""

from __future__ import annotations

import contextvars
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tasks.shell import run, succeeds
from tasks.stopping import Stopped, require_going_on, stopping_together
from tests.conftest import ROOT, Project

SECONDS = 100
"""In which an end is awaited: ten times the 10 s that are promised."""

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]

RUNS = """
import sys
from pathlib import Path
from tasks.shell import run
run(["sh", "-c", sys.argv[1]], Path())
"""
RETRAINS = """
import sys
from tasks.server import prepare_environment
prepare_environment()
from flows import cli, retrain
retrain.publish_validation = retrain.publish_artifacts = lambda workspace: None  # these stages leave nothing to see
sys.argv = ["abstain", "retrain", "--no-promote"]
cli.main()
"""
STAGE = """
import sys, time
from pathlib import Path
go, name = Path({go!r}), sys.argv[1]
Path("out").mkdir(exist_ok=True)
with Path(f"out/{{name}}").open("w") as out:
    out.write("half of it")
    out.flush()
    (go.parent / name).touch()
    while name != "first" and not go.exists():
        time.sleep(0.01)
    out.write(", and the rest")
"""


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def lives(process: psutil.Process) -> bool:
    """Whether the process does anything any more; what nobody has collected yet does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def none_lives(processes: list[psutil.Process]) -> bool:
    return not any(map(lives, processes))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_command_ends_with_its_process_and_all_it_started(number: signal.Signals, tmp_path: Path) -> None:
    shell = f"sh -c 'sleep 600 & sleep 600' & touch {tmp_path / 'begun'}; wait"
    holder = subprocess.Popen([sys.executable, "-c", RUNS, shell], cwd=ROOT, text=True, stderr=subprocess.DEVNULL)
    wait_until(lambda: (tmp_path / "begun").exists() and len(children_of(holder)) == 5)  # leash, shells, sleeps
    started = children_of(holder)
    holder.send_signal(number)
    holder.wait(SECONDS)
    wait_until(lambda: none_lives(started))


@pytest.mark.slow  # it waits for its seconds
def test_a_command_that_ignores_being_asked_is_killed(tmp_path: Path) -> None:
    shell = f"trap '' INT TERM; sleep 600 & touch {tmp_path / 'begun'}; wait; sleep 600"
    holder = subprocess.Popen([sys.executable, "-c", RUNS, shell], cwd=ROOT, text=True, stderr=subprocess.DEVNULL)
    wait_until(lambda: (tmp_path / "begun").exists() and len(children_of(holder)) == 3)
    started = children_of(holder)
    holder.kill()
    holder.wait(SECONDS)
    wait_until(lambda: none_lives(started))


def test_an_interrupted_run_ends_what_its_threads_are_at(tmp_path: Path) -> None:
    raised: list[BaseException] = []

    def command(name: str) -> None:
        try:
            run(["sh", "-c", f"touch {name}; exec sleep 600"], tmp_path)
        except BaseException as error:
            raised.append(error)

    threads = []
    with pytest.raises(KeyboardInterrupt), stopping_together():
        context = contextvars.copy_context()
        threads.append(threading.Thread(target=context.run, args=[command, "begun"], daemon=True))
        threads[0].start()
        wait_until((tmp_path / "begun").exists)
        raise KeyboardInterrupt
    threads[0].join(SECONDS)
    context.run(command, "later")
    assert [type(error) for error in raised] == [Stopped, Stopped]
    assert not (tmp_path / "later").exists()
    with pytest.raises(Stopped):
        context.run(require_going_on)
    assert succeeds(tmp_path, "true"), "another run has been stopped, too"


@pytest.fixture
def project(tmp_path: Path, prefect_server: str) -> Project:
    """Three stages: the first ends at once, the others, which want it, when there is a file `go`."""
    project = Project(tmp_path / "checkout", tmp_path / "home", prefect_server)
    (project.root / ".dvc").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    files = {
        ".dvc/config": "[core]\n    remote = local\n    analytics = false\n    check_update = false\n"
        "['remote \"local\"']\n    url = ../.abstain/dvc-remote\n",
        ".dvc/.gitignore": "/config.local\n/tmp\n/cache\n",
        ".gitignore": "/out\n",
        "stage.py": STAGE.format(go=str(tmp_path / "go")),
        "dvc.yaml": "stages:\n"
        "  first: {cmd: python stage.py first, deps: [stage.py], outs: [out/first]}\n"
        "  second: {cmd: python stage.py second, deps: [out/first], outs: [out/second]}\n"
        "  third: {cmd: python stage.py third, deps: [out/first], outs: [out/third]}\n",
    }
    for name, text in files.items():
        (project.root / name).write_text(text)
    (project.root / ".dvc" / "config.local").write_text(f"[cache]\n    dir = {project.home / 'dvc-cache'}\n")
    (project.root / "data").mkdir()
    (project.root / "data" / "row").write_text("a row")
    project.git("init", "-q", "--initial-branch=main")
    added = project.command(["dvc", "add", "--quiet", "data"])
    assert added.returncode == 0, added.stderr
    project.git("add", "--all")
    project.git("commit", "-qm", "Three stages")
    return project


@contextmanager
def retraining(project: Project) -> Iterator[subprocess.Popen[str]]:
    """`abstain retrain --no-promote` in `project`."""
    settings = [f"PYTHONPATH={ROOT / 'src'}:{ROOT}", "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL=CRITICAL"]
    command = ["env", *settings, sys.executable, "-c", RETRAINS]
    process = project.start(command, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()


def is_free(lock: Path) -> bool:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.mark.slow
def test_a_stopped_retrain_leaves_no_stage_and_the_next_goes_on(project: Project, tmp_path: Path) -> None:
    begun, go = [tmp_path / "second", tmp_path / "third"], tmp_path / "go"
    for number, status in zip(SIGNALS, (130, 143, -signal.SIGKILL), strict=True):
        with retraining(project) as process:
            wait_until(lambda: all(file.exists() for file in begun) or process.poll() is not None)  # noqa: B023
            started = children_of(process) if process.poll() is None else []
            os.kill(process.pid, number)
            output, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == status, output
        assert len(started) >= 6, "two stages, each with its DVC and its leash"
        wait_until(lambda: none_lives(started) and is_free(project.home / "workspace.lock"))  # noqa: B023
        if number != signal.SIGKILL:
            assert output.splitlines()[-1] == "stopped; run the same command again to go on where it was"
            print(output)
            assert "Traceback" not in output
        for file in begun:
            file.unlink()
    (tmp_path / "first").unlink()
    go.touch()
    with retraining(project) as process:
        output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    assert not (tmp_path / "first").exists(), "a finished stage was run again"
    for file in begun:
        assert (project.workspace / "out" / file.name).read_text() == "half of it, and the rest"
    assert "Retrain: second, third" in project.git("log", "--format=%s", "main", cwd=project.home / "origin.git")
