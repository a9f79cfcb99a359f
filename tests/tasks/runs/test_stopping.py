"""However a run ends, its commands end with it, and the next run goes on."""

import contextvars
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from abstain_tasks.runs.shell import run, succeeds
from abstain_tasks.runs.stopping import Stopped, raise_if_stopped, stop_threads_on_error
from tests.checkout import SHIPPED
from tests.conftest import ROOT, Project
from tests.tasks.server.test_server import wait_until

SECONDS = 100
"""Limit for an end: ten times the 10 s that are guaranteed."""

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]

RUNS = """
import sys
from pathlib import Path
from abstain_tasks.runs.shell import run
run(["sh", "-c", sys.argv[1]], Path())
"""
RETRAIN_DAG = """
import sys
from abstain_tasks.server import prepare_environment
prepare_environment()
from abstain_cli import app
from abstain_flows import retrain
from abstain_tasks.runs.progress import register_observer
retrain.publish_validation = retrain.publish_artifacts = lambda workspace: None  # of a DAG that leaves nothing to see
sys.argv = ["abstain", "retrain", "--no-promote"]
with register_observer(lambda step, says: print(f"{step}: {says}", flush=True)):
    app.main()
"""
STAGE = """
import sys, time
from pathlib import Path
name, go, begun = sys.argv[1], Path({folder!r}, "go"), Path({folder!r}, sys.argv[1])
Path("out").mkdir(exist_ok=True)
with Path("out", name).open("w") as out:
    out.write("half of it")
    out.flush()
    begun.touch()
    while not go.exists():
        time.sleep(0.01)
    out.write(", and the rest")
"""
STAGES = ("one", "two", "three")
SOURCES = f"{ROOT / 'src'}:{ROOT}"


def list_children(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def have_ended(processes: list[psutil.Process]) -> bool:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                return False
    return True


@pytest.mark.heavy
def test_run_ends_with_its_process_and_descendants(tmp_path: Path) -> None:
    cases = {number.name: (number, "") for number in SIGNALS} | {"ignoring": (signal.SIGKILL, "trap '' INT TERM; ")}
    holders = {}
    for name, (_, first) in cases.items():
        shell = f"{first}sh -c 'sleep 600 & sleep 600' & touch {tmp_path / name}; wait; sleep 600"
        command = [sys.executable, "-c", RUNS, shell]
        holders[name] = subprocess.Popen(command, cwd=ROOT, text=True, stderr=subprocess.DEVNULL)
    started = {}
    for name, holder in holders.items():
        wait_until((tmp_path / name).exists)
        wait_until(lambda: len(list_children(holder.pid)) == 5)  # noqa: B023  # supervisor, shells, sleeps
        started[name] = list_children(holder.pid)
    for name, (number, _) in cases.items():
        holders[name].send_signal(number)
    for name, holder in holders.items():
        holder.wait(SECONDS)
        wait_until(lambda: have_ended(started[name]))  # noqa: B023


def test_stop_threads_on_error_ends_commands_of_threads(tmp_path: Path) -> None:
    def command(name: str) -> None:
        run(["sh", "-c", f"touch {name}; exec sleep 600"], tmp_path)

    with ThreadPoolExecutor() as threads:
        with pytest.raises(KeyboardInterrupt), stop_threads_on_error():
            context = contextvars.copy_context()
            at_work = threads.submit(context.run, command, "begun")
            wait_until((tmp_path / "begun").exists)
            raise KeyboardInterrupt
        with pytest.raises(Stopped):
            at_work.result(SECONDS)
    with pytest.raises(Stopped):
        context.run(command, "later")
    assert not (tmp_path / "later").exists()
    with pytest.raises(Stopped):
        context.run(raise_if_stopped)
    assert succeeds(tmp_path, "true"), "another run is not stopped"


@pytest.fixture
def project(tmp_path: Path, prefect_server: str) -> Project:
    """Three stages, of which two run at a time; they end when there is a file `go`."""
    project = Project(tmp_path / "checkout", tmp_path / "home", prefect_server)
    (project.root / ".dvc").mkdir(parents=True)
    (project.root / "data").mkdir()
    (tmp_path / "empty").mkdir()
    stages = "".join(f"  {name}: {{cmd: python stage.py {name}, outs: [out/{name}]}}\n" for name in STAGES)
    files = {
        ".dvc/config": SHIPPED[".dvc/config"],
        "params.yaml": SHIPPED["params.yaml"],
        ".dvc/.gitignore": "/config.local\n/tmp\n/cache\n",
        ".dvc/config.local": f"[cache]\n    dir = {project.home / 'dvc-cache'}\n",
        ".gitignore": "/out\n",
        "stage.py": STAGE.format(folder=str(tmp_path)),
        "dvc.yaml": f"stages:\n{stages}",
        "data/row": "a row",
    }
    for name, text in files.items():
        (project.root / name).write_text(text)
    project.git("init", "-q", "--initial-branch=main")
    project.run("dvc", "add", "--quiet", "data")
    project.git("add", "--all")
    project.git("commit", "-qm", "Three stages")
    return project


def start_retrain(project: Project) -> subprocess.Popen[str]:
    settings = {
        "PYTHONPATH": SOURCES,
        "PATH": f"{project.commands}:{project.environment['PATH']}",
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    }
    return subprocess.Popen(
        [sys.executable, "-c", RETRAIN_DAG],
        cwd=project.root,
        env=project.environment | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "statuses",
    [
        {signal.SIGTERM: 143},
        pytest.param(
            {signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL},
            marks=pytest.mark.soak(twin="test_retrain_stopped_leaves_no_stage_and_resumes"),
        ),
    ],
    ids=["SIGTERM", "SIGINT-SIGKILL"],
)
def test_retrain_stopped_leaves_no_stage_and_resumes(project: Project, tmp_path: Path, statuses: dict) -> None:
    def list_begun() -> list[Path]:
        return [file for name in STAGES if (file := tmp_path / name).exists()]

    for number, status in statuses.items():
        retrain = start_retrain(project)
        wait_until(lambda: len(list_begun()) == 2)
        started = list_children(retrain.pid)
        assert len(started) >= 6, "two stages, each with its DVC and its supervisor"
        retrain.send_signal(number)
        output, _ = retrain.communicate(timeout=SECONDS)
        assert retrain.returncode == status, output
        wait_until(lambda: have_ended(started))  # noqa: B023
        if number != signal.SIGKILL:
            assert output.splitlines()[-1].startswith("stopped; ") and "Traceback" not in output
        begun = list_begun()
        assert len(begun) == 2, "the third has begun when the run was stopped"
        for file in begun:
            file.unlink()
    (tmp_path / "go").touch()
    project.run("env", f"PYTHONPATH={SOURCES}", "python", "-c", RETRAIN_DAG)
    for name in STAGES:
        assert (project.workspace / "out" / name).read_text() == "half of it, and the rest"
    assert "Retrain: " in project.git("log", "--format=%s", "main", cwd=project.home / "origin.git")
