"""What many tests share: projects of their own to run commands in, never the checkout that holds the tests.

`trained_*` is the shipped sample after `abstain demo`, with the real embedded model, DVC and Prefect.
`small_project` has a part of the sample's answers as its data, for tests that must run it cold.
"""

import fcntl
import gc
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
import yaml
from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings

from abstain.config.yaml_editor import parse_yaml, update_yaml
from abstain_tasks.runs.shell import QUIET
from abstain_tasks.server.addresses import HEALTH, KEY
from abstain_tasks.server.processes import START_SECONDS, is_responding
from tests.checkout import ROOT, copy_checkout
from tests.opaque_messages import make_messages_opaque
from tests.ports import free_port
from tests.postgres import postgres
from tests.prefect_database import give_tables
from tests.warm import warm_commands

make_messages_opaque()
gc.set_threshold(200_000, 20, 100)  # else an eighth of the time of imports goes into looking through what they made

__all__ = ["ROOT", "postgres"]

MODELS = Path(os.environ.get("ABSTAIN_HOME", ROOT / ".abstain")) / "models"
"""The safetensors copy of the embedded model is made once and shared by the tests."""
SERVER_KEY = "5e" * 32
"""The key of every server that tests share."""
COSTLY = ("trained", "small_template", "finished")
"""Fixtures that take long. `make test` has several processes: what shares one of these stays in one of them."""
INHERITED = ("LANG", "CI", "SSL_CERT_FILE", "ABSTAIN_DTYPE")
THREADS = max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
"""Of each test process and each command that it starts, so that those of several do not wait for each other."""
os.environ[KEY] = SERVER_KEY  # of the requests of the tests themselves
os.environ["PREFECT_LOGGING_TO_API_ENABLED"] = "false"  # else a line of a log here starts a server
os.environ["PREFECT_SERVER_EPHEMERAL_ENABLED"] = "false"  # and no flow or task of a test does
os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))  # read when the first test imports numpy or torch

# A shell starts a job in the background to ignore SIGINT, and all that this starts: then nothing that is stopped by it is.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests assert work, not time: by default an example that takes 200 ms fails, and so do those that are slow to make.
hypothesis_settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A property has all its examples in the other runs; here a few show that its arithmetic holds.
hypothesis_settings.register_profile("older-cpu", hypothesis_settings.get_profile("untimed"), max_examples=10)
# Whether an example fails is enough for `make mutants`, and must be the same each time.
hypothesis_settings.register_profile(
    "mutants",
    hypothesis_settings.get_profile("untimed"),
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)
hypothesis_settings.load_profile(os.environ.get("ABSTAIN_TESTS_PROFILE", "untimed"))


def pytest_make_parametrize_id(val: object) -> str | None:
    """Shorten a long text in the name of a case."""
    return f"{val[:40]!r}..." if isinstance(val, str | bytes) and len(val) > 60 else None


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest starts first, fast tests last; otherwise a file stays in one process, for its fixtures' sake."""

    def rank(item: pytest.Item) -> int:
        wanted = getattr(item, "fixturenames", ())
        last = len(COSTLY) + ("slow" not in item.keywords)
        return next((at for at, name in enumerate(COSTLY) if name in wanted), last)

    for item in items:
        if "slow" not in item.keywords and {"np", "torch"} & vars(item.module).keys():  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.numeric)
        at = rank(item)
        item.add_marker(pytest.mark.xdist_group(COSTLY[at] if at < len(COSTLY) else item.nodeid.partition("::")[0]))
    items.sort(key=rank)
    gc.freeze()  # no later collection looks through what has been imported


@dataclass(frozen=True)
class Project:
    """A checkout in a temporary folder, with a home of its own; its runs report to `server`, or start one each.

    `warm`: its commands find what they import of other people's code imported (tests/warm). `empty`: their HOME, by
    default beside the home.
    """

    root: Path
    home: Path
    server: str | None = None
    warm: bool = True
    empty: Path | None = None

    @property
    def demo(self) -> Self:
        """The project that `abstain demo` makes of this one."""
        root = self.home / "demo"
        return replace(self, root=root, home=root / ".abstain", empty=self.home.parent / "empty")

    @property
    def workspace(self) -> Path:
        return self.home / "workspace"

    @property
    def environment(self) -> dict[str, str]:
        """A bare environment: an empty HOME, no git identity, this interpreter's tools, the project's own code."""
        return {key: value for key, value in os.environ.items() if key in INHERITED} | {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin",
            "HOME": str(self.empty or self.home.parent / "empty"),
            "PYTHONPATH": os.pathsep.join([str(self.root / "src"), str(self.root)]),
            "ABSTAIN_HOME": str(self.home),
            "HF_HUB_OFFLINE": "1",
            "DVC_NO_ANALYTICS": "1",
            "COLUMNS": "160",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "OMP_NUM_THREADS": str(THREADS),
            **({"PREFECT_API_URL": self.server, KEY: SERVER_KEY} if self.server else {}),
        }

    @property
    def commands(self) -> Path:
        """The folder of the `python` and the `dvc` that `command` finds first."""
        if not self.warm:
            return Path(sys.executable).parent
        own = ("PYTHONPATH", "ABSTAIN_HOME", "PREFECT_API_URL", KEY)
        return warm_commands({name: value for name, value in self.environment.items() if name not in own})

    def enter(self, patch: pytest.MonkeyPatch) -> None:
        """Make this process one of the project's commands."""
        for name, value in self.environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "executable", str(self.commands / "python"))  # the `dvc` beside it is found
        patch.chdir(self.root)

    def abstain(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """`abstain ARGUMENTS`, ended by itself, output captured."""
        return self.command(["python", "-m", "abstain_cli.app", *arguments], cwd)

    def command(self, command: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """`command`, ended by itself, output captured; where the project is `warm`, with the libraries imported."""
        return subprocess.run(
            command,
            cwd=cwd or self.root,
            env=self._with_commands(),
            capture_output=True,
            text=True,
            timeout=3600,
        )

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """What `command`, which must succeed, prints; `abstain` is that of the project."""
        done = self.abstain(*command[1:], cwd=cwd) if command[0] == "abstain" else self.command(command, cwd)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
        return done.stdout

    def start(self, command: Sequence[str], stderr: int) -> subprocess.Popen[str]:
        """`command`, left running, to be spoken with line by line; for what is to be killed.

        `python` is warm, as in `command`, and a kill of it kills what it stands for; other signals do not reach that.
        """
        return subprocess.Popen(
            command,
            cwd=self.root,
            env=self._with_commands(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def _with_commands(self) -> dict[str, str]:
        environment = self.environment
        return environment | {"PATH": f"{self.commands}{os.pathsep}{environment['PATH']}"}

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        return self.run("git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments, cwd=cwd)

    def edit_params(self, old: str, new: str) -> None:
        """Change `params.yaml` and commit it, as a person would."""
        file = self.root / "params.yaml"
        text = file.read_text()
        assert old in text, f"{old!r} is not in params.yaml"
        file.write_text(text.replace(old, new))
        self.git("commit", "-qam", f"{old} -> {new}")

    def compare_with(self, *names: str) -> None:
        """Compare the probes with these scorers."""
        enabled = yaml.safe_load((self.root / "params.yaml").read_text())["scorers"]["enabled"]
        self.edit_params(f"enabled: [{', '.join(enabled)}]", f"enabled: [{', '.join(names)}]")


def list_processes(project: Project) -> list[tuple[psutil.Process, list[str]]]:
    """The processes with this project's home in their environment, and their commands."""
    running = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("ABSTAIN_HOME") == str(project.home):
                running.append((process, process.cmdline()))
    return running


def processes_of(project: Project) -> list[str]:
    return [" ".join(command) for _, command in list_processes(project)]


def new_project(folder: Path) -> Project:
    """A git repository with this checkout's files as they are now, and a home with the model copy and Prefect's tables."""
    project = Project(folder / "checkout", folder / "home")
    (folder / "empty").mkdir(parents=True)
    copy_checkout(project.root)
    project.home.mkdir()
    MODELS.mkdir(parents=True, exist_ok=True)
    (project.home / "models").symlink_to(MODELS)
    give_tables(project.home, MODELS.parent)
    project.git("init", "-q", "--initial-branch=main")
    project.git("add", "--all")
    project.git("commit", "-qm", "The project as it is")
    return project


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project as it is shipped, but with a third of the sample; for `trained`.

    Two probes, no signals and no regressors: most of the base model's work is those. `small_project` has some, the
    stages' own tests have all, and `make soak` runs the demo as it is shipped.
    """
    project = new_project(tmp_path_factory.mktemp("trained"))
    limits = "newest_drop coverage_drop precision_drop error_rate_excess slice_drop ece"  # that few answers may miss
    params: dict[str, dict[str, Any]] = {
        "llm": {"layer": 4},
        "validation": {"min_failed_rows": 7},  # the six that are broken are more than a fifth now
        "scorers": {"enabled": ["entailment"]},
        "probe": {"architectures": ["linear", "attention"], "export": "linear", "max_epochs": 10},
        "regressors": {"kinds": []},
        "sweep": {"layers": [2], "sites": ["residual", "mlp"]},
        # So few answers guarantee little, and no probe is surely better than another: the machinery is what is tested.
        "threshold": {"target": 0.25},
        "calibration": {"method": "isotonic"},
        "evaluation": {"min_n_eff": 5},
        "promotion": {"bootstrap_confidence": 0.001, "false_promotion_rate": 60}
        | {f"max_{limit}": 1.0 for limit in limits.split()},
    }
    sample = project.root / "src" / "abstain" / "sample"
    answers = project.root / "benchmarks" / "sample" / "answers.jsonl"
    answers.write_text("".join(answers.read_text().splitlines(keepends=True)[::3]))
    differing = parse_yaml(yaml.safe_dump(params, default_flow_style=None))
    (sample / "params.yaml").write_text(update_yaml((sample / "params.yaml").read_text(), differing))
    project.run("python", "-m", "benchmarks.sample")
    project.run("python", "-m", "abstain.sample", "data")
    project.run("dvc", "add", "--quiet", "data")
    project.run("cp", "data.dvc", str(sample / "data.yaml"))
    project.run("python", "-m", "abstain.sample.shipped")
    shutil.rmtree(project.root / "data")
    shutil.rmtree(project.root / ".dvc" / "cache")
    project.git("commit", "-qam", "A third of the sample")
    return project


@pytest.fixture(scope="session")
def trained(shipped: Project) -> tuple[Project, str]:
    """The demo's project after `abstain demo`, and what was printed; with the embedded model.

    Tests read it; `copy_of` makes one that may be changed.
    """
    printed = shipped.run("abstain", "demo")
    return shipped.demo, printed


def copy_of(project: Project, folder: Path) -> Project:
    """A checkout and a home of its own, with what `project` has recorded; it reads the same caches."""
    copy = Project(folder / "checkout", folder / "home", project.server)
    (folder / "empty").mkdir(parents=True)
    project.git("clone", "-q", str(project.root), str(copy.root))
    copy.home.mkdir()
    shutil.copytree(project.home / "origin.git", copy.home / "origin.git")
    for name in ("models", "features", "dvc-cache", "dvc-remote"):
        (copy.home / name).symlink_to(project.home / name)
    return copy


SLEEPER = """
from pathlib import Path
from prefect import flow, task
from prefect.futures import wait
from abstain_tasks.runs.shell import run
from abstain_tasks.runs.stopping import stop_threads_on_error

@task
def sleep():
    run(["sh", "-c", "sleep 6000; true"], Path())

@flow
def sleeper():
    with stop_threads_on_error():
        wait([sleep.submit()])
"""


@dataclass(frozen=True)
class Up:
    """What `make up` serves for a project, and what it printed."""

    project: Project
    ui: int
    reports: int
    gate: int
    printed: str = ""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.ui}"

    @property
    def api(self) -> str:
        return f"{self.address}/api"

    def call(self, what: str, alerts_to: str | None = "", **others: str) -> subprocess.CompletedProcess[str]:
        """`python -m abstain_tasks.server up|down|automations`; `alerts_to`: None where the variable is not set."""
        variables = others | self._ports | {"ABSTAIN_ALERT_URL": alerts_to}
        unset = [f"--unset={name}" for name, value in variables.items() if value is None]
        settings = [f"{name}={value}" for name, value in variables.items() if value is not None]
        return self.project.command(["env", *unset, *settings, sys.executable, "-m", "abstain_tasks.server", what])

    @property
    def _ports(self) -> dict[str, str]:
        names = ("ABSTAIN_UI_PORT", "ABSTAIN_REPORTS_PORT", "ABSTAIN_GATE_PORT")
        return dict(zip(names, map(str, (self.ui, self.reports, self.gate)), strict=True))

    def start_in_terminal(self) -> str:
        """Run `make up` in a terminal that is closed afterwards, and return what it printed."""
        terminal, inside = pty.openpty()
        shell = subprocess.Popen(
            ["sh", "-c", f"{sys.executable} -m abstain_tasks.server up; echo ended with $?.; exec sleep 600"],
            cwd=self.project.root,
            env=self.project.environment | self._ports,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inside)
        printed = b""
        while not re.search(rb"ended with \d+\.", printed):
            printed += os.read(terminal, 65536)
        os.close(terminal)
        shell.send_signal(signal.SIGHUP)  # the kernel's own waits where a process elsewhere still has the other end
        assert shell.wait(60) == -signal.SIGHUP
        assert b"ended with 0." in printed, printed
        return printed.decode().replace("\r\n", "\n")


@contextmanager
def start_up(project: Project) -> Iterator[Up]:
    """`make up` in a terminal that is closed, with a deployment that sleeps; at the end nothing is left."""
    (project.home / "server.key").write_text(SERVER_KEY)
    (project.root / "flows" / "sleeper.py").write_text(SLEEPER)
    deployment = "  - {name: now, description: sleep, entrypoint: flows/sleeper.py:sleeper, work_pool: {name: local}}\n"
    with (project.root / "prefect.yaml").open("a") as file:
        file.write(deployment)
    project.git("add", "--all")
    project.git("commit", "-qm", "A flow that sleeps")
    served = Up(project, free_port(), free_port(), free_port())
    try:
        yield replace(served, printed=served.start_in_terminal())
    finally:
        down = served.call("down")
    assert down.returncode == 0 and down.stdout in ("stopped\n", "nothing is up\n"), down.stdout + down.stderr
    assert processes_of(project) == []
    for port in (served.ui, served.reports):
        with socket.create_server(("127.0.0.1", port)):
            pass


@pytest.fixture(scope="session")
def up(trained: tuple[Project, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Up for all tests that look at it or report to it: a copy of the project that the demo has run in."""
    project = copy_of(trained[0], tmp_path_factory.mktemp("up"))
    shutil.copytree(trained[0].home / "prefect", project.home / "prefect")
    with start_up(project) as served:
        yield served


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API of one Prefect server that many tests report to: each of their commands would start one of its own."""
    home = tmp_path_factory.mktemp("server")
    give_tables(home, MODELS.parent)
    project = Project(ROOT, home)
    with socket.create_server(("127.0.0.1", 0)) as listener, (home / "log").open("wb") as log:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = subprocess.Popen(
            [project.commands / "python", "-m", "abstain_tasks.server", "child", str(listener.fileno())],
            env=project.environment | QUIET | {"PREFECT_SERVER_API_AUTH_STRING": SERVER_KEY},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
        )
    try:
        assert is_responding(address + HEALTH, START_SECONDS), (home / "log").read_text()
        yield f"{address}/api"
    finally:
        process.stdin.close()
        process.wait(30)


@pytest.fixture(scope="session")
def small_template(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a sixth of the sample's answers as its data, which lie in a DVC remote as a team's would.

    Its base model is tiny, with random weights: these tests are about the machinery.
    """
    from tests.llm.builders import save_speaking_model  # torch: pytest starts without it

    folder = tmp_path_factory.mktemp("small")
    save_speaking_model(folder / "model", max_position_embeddings=8192)
    project = new_project(folder)
    make_data = (
        "import json, sys; from pathlib import Path; from datetime import UTC, datetime\n"
        "from abstain.ingest.pipeline.run import ingest; from abstain.config.params import load_params\n"
        "from abstain.ingest.sources.files import make_explicit_sources\n"
        "from abstain.sample.files import HANDBOOK, HISTORY\n"
        "rows = [json.loads(line) for line in HISTORY.open()][::6]\n"
        "late = [row for row in rows if row['asked_at'] >= '2026-10-08']\n"
        "[row.pop('review', None) for row in late]\n"  # so that there is something to review
        "history = Path(sys.argv[1]); history.write_text(''.join(json.dumps(row) + '\\n' for row in rows))\n"
        "sources = make_explicit_sources([str(HANDBOOK), str(history)])\n"
        "ingest(sources, Path('data'), load_params().validation, datetime.now(UTC))\n"
    )
    project.run("python", "-c", make_data, str(folder / "history.jsonl"))
    project.run("dvc", "add", "--quiet", "data")
    project.run("dvc", "remote", "add", "--default", "tests", str(folder / "remote"))
    project.run("dvc", "push", "--quiet", "data.dvc")
    project.git("add", "--all")
    project.git("commit", "-qm", "Our own data")
    for old, new in (
        ("  model: smollm2-135m-instruct ", f"  model: {folder / 'model'} "),
        ("  layer: 20 ", "  layer: 3 "),
        ("  target: 0.1 ", "  target: 0.25 "),  # lenient where so few answers can guarantee nothing
        ("on_infeasible: fail", "on_infeasible: heuristic"),
        ("architectures: [linear, lstm, attention]", "architectures: [linear]"),
        ("kinds: [gradient_boosting]", "kinds: [random_forest]"),
        ("trees: 2100", "trees: 100"),
        ("  tokens: 15 ", "  tokens: 2 "),
        ("  n_copies: 0 ", "  n_copies: 1 "),  # both of its models are asked
    ):
        project.edit_params(old, new)
    # A second way of asking is enough of them: most of the base model's work is these.
    project.compare_with("sequence_log_prob", "yes_score_fused")
    return project


def clone_small(template: Project, server: str, folder: Path) -> Project:
    """A clone of `small_template` that nothing has run in yet."""
    project = Project(folder / "checkout", folder / "home", server)
    template.git("clone", "-q", str(template.root), str(project.root))
    (folder / "empty").mkdir()
    project.home.mkdir()
    (project.home / "models").symlink_to(MODELS)
    give_tables(project.home, MODELS.parent)
    return project


@pytest.fixture
def small_project(small_template: Project, prefect_server: str, tmp_path: Path) -> Project:
    return clone_small(small_template, prefect_server, tmp_path / "small")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from tests.browser import headless  # playwright: pytest starts without it

    with headless() as opened:
        yield opened


def read_lock(root: Path) -> dict:
    return yaml.safe_load((root / "dvc.lock").read_text())


def read_json(file: Path) -> dict:
    return json.loads(file.read_text())
