"""Cost of ingesting feedback: `python -m benchmarks.ingest --rows 100000`.

Notes:

* The commands are those of a user: `abstain ingest rows.jsonl` in a new project with the sample's data and handbook,
  then `dvc repro validate dataset` in its workspace. Both end with commit and push, data included. The start of Python
  and of a Prefect server counts; making the workspace and writing the sample do not.
* Rows are generated from a seed in the import format: a question, an answer, three chunks of context, a thumb, a
  comment on every fifth, a review of every twentieth, 1,600 bytes together. One in a hundred is broken, and another one
  in a hundred is a duplicate.
* Each command is a process; its peak memory is the kernel's, of the largest process that it started.
* The project is the last commit of this checkout, with the shipped state: uncommitted changes are not measured.
  Personal data is redacted, and users become pseudonyms.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

# Nothing of the library is imported here: a process that is started inherits the peak of its parent.

ROOT = Path(__file__).resolve().parents[1]
WORDS = (
    "account annual balance branch card charge currency customer date deadline fee foreign gold insurance interest "
    "limit loan minimum month mortgage number overdraft payment premium rate savings silver statement transfer"
)
FIRST = datetime(2026, 6, 1, tzinfo=UTC)
USERS = 20_000
ABSTAIN = (sys.executable, "-m", "abstain_cli.app")
SHIP = "from pathlib import Path as P; from abstain.sample.shipped import copy_as_shipped as c; c(P(), (), P())"
REPRO = """set -e
dvc repro --quiet validate dataset
git add dvc.lock
git commit -q -m "Validate and label"
dvc push --quiet
git push -q origin HEAD:main
"""


@dataclass(frozen=True)
class CommandCost:
    """Output and cost of a command with the processes that it started and waited for.

    Attributes:
        output: What it printed.
        elapsed_s: Seconds by the clock.
        cpu_s: Seconds of CPU.
        peak_gib: Peak of memory in GiB.
    """

    output: str
    elapsed_s: float
    cpu_s: float
    peak_gib: float


@dataclass(frozen=True)
class Project:
    """A clone of this checkout, with a home of its own, in one folder."""

    folder: Path

    @property
    def root(self) -> Path:
        """Folder of the checkout."""
        return self.folder / "checkout"

    @property
    def workspace(self) -> Path:
        """Workspace of the home."""
        return self.folder / "home" / "workspace"

    @classmethod
    def make(cls, folder: Path) -> Project:
        """Clone the checkout into `folder` and make its workspace."""
        project = cls(folder)
        project.run(["git", "clone", "-q", str(ROOT), str(project.root)], ROOT)
        project.run([sys.executable, "-c", SHIP], project.root)
        project.run(["git", "commit", "-q", "--all", "--allow-empty", "-m", "As shipped"], project.root)
        project.run([*ABSTAIN, "quarantine", "list"], project.root)  # which makes the workspace
        return project

    def run(self, command: Sequence[str], cwd: Path) -> CommandCost:
        """Run `command`; exit with its last line if it fails."""
        log = self.folder / "log"
        started = time.perf_counter()
        with log.open("w") as file:
            process = subprocess.Popen(command, cwd=cwd, env=self._environment(cwd), stdout=file, stderr=file)
            _, status, used = os.wait4(process.pid, 0)
        elapsed_s = time.perf_counter() - started
        output = log.read_text()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"error: {' '.join(command[:4])}: {(output.strip().splitlines() or ['it printed nothing'])[-1]}")
        return CommandCost(output, elapsed_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20)

    def _environment(self, cwd: Path) -> dict[str, str]:
        source = cwd if (cwd / "src").is_dir() else ROOT
        identity = {
            f"GIT_{role}_{part}": "abstain@localhost" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")
        }
        return (
            os.environ
            | identity
            | {
                "ABSTAIN_HOME": str(self.folder / "home"),
                "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
                "PYTHONPATH": os.pathsep.join([str(source / "src"), str(source)]),
                "DVC_NO_ANALYTICS": "1",
            }
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000, help="rows of feedback (100000)")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where there is room")
    options = parser.parse_args()
    print("| rows | step | seconds | of CPU | peak, GiB | |\n|--:|:--|--:|--:|--:|:--|", flush=True)

    def print_step(step: str, costs: Sequence[CommandCost], note: str) -> None:
        seconds, cpu = (sum(values) for values in zip(*((cost.elapsed_s, cost.cpu_s) for cost in costs), strict=True))
        peak = max(cost.peak_gib for cost in costs)
        print(f"| {options.rows:,} | {step} | {seconds:.1f} | {cpu:.1f} | {peak:.2f} | {note} |", flush=True)

    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        project = Project.make(Path(name))
        rows = project.folder / "rows.jsonl"
        with rows.open("w", encoding="utf-8") as file:
            file.writelines(make_rows(options.rows, read_chunk_ids(project.workspace / "data")))
        ingest_cost = project.run([*ABSTAIN, "ingest", str(rows)], project.root)
        print_step("ingest", [ingest_cost], format_counts(ingest_cost.output))
        repro_cost = project.run(["sh", "-c", REPRO], project.workspace)
        dataset = json.loads((project.workspace / "artifacts/dataset.json").read_text())
        print_step(
            "validate, dataset",
            [repro_cost],
            f"{sum(split['answers'] for split in dataset['splits']):,} labelled answers",
        )
        print_step("together", [ingest_cost, repro_cost], "")


def format_counts(report: str) -> str:
    """Format the counts that `abstain ingest` printed."""
    lines = [line for line in report.splitlines() if line.startswith("|")]
    rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:])  # below the header
    return ", ".join(f"{count} {name}" for count, name in rows)


def read_chunk_ids(data: Path) -> list[str]:
    """Read the ids of the handbook's chunks in `data`."""
    return [json.loads(line)["chunk_id"] for line in (data / "chunks.jsonl").read_text(encoding="utf-8").splitlines()]


def make_rows(count: int, chunks: Sequence[str], seed: int = 1) -> Iterator[str]:
    """Yield `count` lines of the import format, whose contexts have ids from `chunks`.

    About one in a hundred is broken, and one in a hundred repeats the line before.
    """
    rng, words = random.Random(seed), WORDS.split()

    def text(count: int) -> str:
        return " ".join(rng.choices(words, k=count))

    previous = ""
    for number in range(count):
        asked_at = FIRST + timedelta(seconds=12 * number)
        row: dict[str, object] = {
            "interaction_id": f"int-{number:08d}",
            "asked_at": asked_at.isoformat(),
            "question": text(10),
            "answer": text(25),
            "contexts": [{"chunk_id": name, "text": text(60)} for name in rng.sample(chunks, 3)],
            "model": "m@1",
            "product": rng.choice(["cards", "loans", "savings"]),
            "group": f"topic-{rng.randrange(2000)}",
            "thumb": {
                "given_at": (asked_at + timedelta(minutes=1)).isoformat(),
                "thumb": rng.choice(["up", "down"]),
                "user": f"agent-{rng.randrange(USERS)}",
                "comment": text(8) if rng.random() < 0.2 else None,
            },
        }
        if rng.random() < 0.05:
            criteria = {"complete": True, "correct": rng.random() < 0.7, "truthful": True}
            row["review"] = {"reviewed_at": (asked_at + timedelta(days=1)).isoformat(), "reviewer": "sme-1", **criteria}
        line, kind = json.dumps(row) + "\n", rng.random()
        yield line[: rng.randrange(20, 200)] + "\n" if kind < 0.01 else previous if kind < 0.02 and previous else line
        previous = line


if __name__ == "__main__":
    main()
