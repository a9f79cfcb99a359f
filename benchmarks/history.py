"""What commands cost after a year of nights compared with early on: CPU time, and counted work.

    python -m benchmarks.history .abstain/demo

The project, as `abstain demo` leaves it, is copied twice: one copy gets 10 versions in 70 nights, the other 52 versions
in 365 nights with about a hundred records (benchmarks/simulated_history.py). Each command runs in both in turns. CPU
time is that of the command with all processes that it has waited for; the calls of git and DVC are those of
tasks/runs/shell.py.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

OPEN, OTHER = "--open", "--other-candidate"
"""Words that `run_counted` takes: open what is served; have another candidate than production's judged."""
COMMANDS = (
    ("plan", ("plan",)),
    ("retrain, nothing new", ("retrain",)),
    ("promote, nothing new", ("promote",)),
    ("promote, judged", (OTHER, "promote", "--accept-new-holdout", "a year of nights")),
    ("status", ("status",)),
    ("score", ("score", "--question", "What is the charge?", "--answer", "2 euros.", "--context", "It is 2 euros.")),
    ("serve, until it is open", (OPEN,)),
    ("review export", ("review", "export", "-o", "{scratch}/reviews.xlsx", "--since", "{since}", "-n", "20")),
    ("kb search", ("kb", "search", "What is the charge?")),
    ("quarantine list", ("quarantine", "list")),
    ("ingest, nothing new", ("ingest",)),
    ("rollback", ("rollback", "--reason", "a benchmark")),
    ("erase-user", ("erase-user", "{user}")),
    ("retention", ("retention",)),
)
ROOT = Path(__file__).resolve().parents[1]
COUNTS = "ABSTAIN_BENCH_COUNTS"
HISTORIES = {"few": (70, 10, 10), "many": (365, 52, 48)}
"""Nights, versions and rejected candidates."""


@dataclass
class CommandCost:
    """Cost of the runs of a command: CPU seconds of each, and the calls that the last one made."""

    seconds: list[float] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Median of the CPU seconds."""
        return statistics.median(self.seconds)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", type=Path, help="a project after `abstain demo`")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="names of commands")
    options = parser.parse_args(arguments)
    print("| command | CPU, 10 versions | CPU, 52 versions | ratio | calls |\n| --- | --: | --: | --: | --- |")
    for name, few, many in compare(options.project, options.only or dict(COMMANDS), options.rounds):
        print(format_row(name, few, many), flush=True)


def compare(project: Path, names: Collection[str], rounds: int) -> Iterator[tuple[str, CommandCost, CommandCost]]:
    """Yield the cost of each command after few versions and after many, measured in turns."""
    with tempfile.TemporaryDirectory() as folder:
        copies = {history: copy_with_history(project, Path(folder) / history, history) for history in HISTORIES}
        for name, command in COMMANDS:
            if name not in names:
                continue
            costs = {history: CommandCost() for history in HISTORIES}
            for _ in range(rounds):
                for history, copy in copies.items():
                    measure(copy, command, costs[history])
            yield name, costs["few"], costs["many"]


def format_row(name: str, few: CommandCost, many: CommandCost) -> str:
    """Format a row of the table, with medians."""
    low, high = few.median, many.median
    calls = {
        history: ", ".join(f"{count} {call}" for call, count in sorted(cost.calls.items()))
        for history, cost in (("few", few), ("many", many))
    }
    same = calls["few"] if calls["few"] == calls["many"] else f"{calls['few']} -> {calls['many']}"
    return f"| {name} | {low:.1f} s | {high:.1f} s | {high / low:.2f} | {same} |"


def copy_with_history(project: Path, copy: Path, history: str) -> Path:
    """Copy the project with its home, and give it the history `HISTORIES[which]`."""
    shutil.copytree(project, copy, symlinks=True, ignore=shutil.ignore_patterns("workspace", "releases"))
    nights, versions, rejected = HISTORIES[history]
    script = (
        "from benchmarks.simulated_history import simulate; from abstain_tasks.runs.workspace import open_workspace\n"
        f"with open_workspace() as workspace: simulate(workspace, {nights}, {versions}, {rejected})"
    )
    subprocess.run([sys.executable, "-P", "-c", script], cwd=copy, env=environment(copy), check=True)
    return copy


def environment(project: Path) -> dict[str, str]:
    """Return the environment variables of a command in `project`."""
    return os.environ | {
        "ABSTAIN_HOME": str(project / ".abstain"),
        "PREFECT_HOME": str(project / ".abstain" / "prefect"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }


def measure(project: Path, command: tuple[str, ...], cost: CommandCost) -> None:
    """Run `abstain COMMAND`, which may change the git state and finds no bundle fetched; then restore the state."""
    shutil.rmtree(project / ".abstain" / "releases", ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("origin.git", "workspace"):
            shutil.copytree(project / ".abstain" / name, Path(scratch) / name, symlinks=True)
        counts = Path(scratch) / "counts.json"
        since = f"{datetime.now(UTC) - timedelta(days=80):%Y-%m-%d}"
        words = [word.format(scratch=scratch, since=since, user=find_user(project)) for word in command]
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from benchmarks.history import run_counted; run_counted()", *words],
            cwd=project,
            env=environment(project) | {COUNTS: str(counts)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"abstain {' '.join(words)} failed:\n{output[-2000:]}")
        cost.seconds.append(usage.ru_utime + usage.ru_stime)
        cost.calls = json.loads(counts.read_text())
        for name in ("origin.git", "workspace"):
            shutil.rmtree(project / ".abstain" / name)
            shutil.move(Path(scratch) / name, project / ".abstain" / name)


def find_user(project: Path) -> str:
    """Return a user with a thumb in the data."""
    file = next((project / ".abstain" / "workspace" / "data" / "feedback").glob("*.jsonl"))
    return str(json.loads(file.read_text().partition("\n")[0])["user"])


def run_counted() -> None:
    """Run `abstain` with the arguments of this process, and write its calls of git and DVC to the file in COUNTS."""
    from abstain_cli.app import main as abstain
    from abstain_tasks.runs import shell

    if sys.argv[1] == OTHER:
        del sys.argv[1]
        _replace_production_candidate()
    calls: Counter[str] = Counter()
    execute = shell._execute

    def execute_counted(command, *rest):  # type: ignore[no-untyped-def]
        calls[command[0]] += 1
        return execute(command, *rest)

    shell._execute = execute_counted
    try:
        if sys.argv[1:] == [OPEN]:
            _open_production()
        else:
            abstain()
    finally:
        Path(os.environ[COUNTS]).write_text(json.dumps(calls))


def _replace_production_candidate() -> None:
    """Make production come from another candidate than the workspace's."""
    from abstain.core import paths
    from abstain.release.registry import load_registry
    from abstain_tasks.runs.git_commit import commit, push
    from abstain_tasks.runs.workspace import open_workspace

    with open_workspace() as workspace:
        file = workspace.path / paths.REGISTRY
        registry = load_registry(file)
        event = registry.history[-1].model_copy(update={"candidate_sha256": "0" * 64})
        file.write_text(registry.model_copy(update={"history": (*registry.history[:-1], event)}).to_json())
        commit(workspace, "Another candidate", paths.REGISTRY)
        push(workspace)


def _open_production() -> None:
    """Do what `abstain serve` does before it answers: find, fetch and smoke-test the version in production."""
    from abstain_tasks.release.version_source import OriginVersionSource

    source = OriginVersionSource()
    version = source.get_production()
    assert version is not None
    source.fetch_bundle(version)


if __name__ == "__main__":
    main()
