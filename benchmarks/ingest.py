"""What taking in feedback costs: `python -m benchmarks.ingest --rows 100000`.

Notes:

* The commands are those of a user: `abstain ingest rows.jsonl` in a new project with the sample's data and handbook,
  then `dvc repro validate dataset` in its workspace. Both end with commit and push, data included. The start of Python
  and of a Prefect server counts; making the workspace and writing the sample do not.
* Rows are generated from a seed in the import format: a question, an answer, three chunks of context, a thumb, a
  comment on every fifth, a review of every twentieth, 1,600 bytes together. One in a hundred is broken, and another one
  in a hundred is a duplicate.
* Each command is a process; its peak memory is the kernel's, of the largest process that it started.
* The project is the last commit of this checkout, with the state that is shipped: uncommitted changes are not measured.
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
class Cost:
    """What a command said and took: seconds by the clock and of processors, and the peak of memory in GiB, both with
    the processes that it started and waited for."""

    said: str
    seconds: float
    cpu: float
    peak: float


@dataclass(frozen=True)
class Project:
    """A clone of this checkout, with a home of its own, in one folder."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "checkout"

    @property
    def workspace(self) -> Path:
        return self.folder / "home" / "workspace"

    @classmethod
    def make(cls, folder: Path) -> Project:
        project = cls(folder)
        project.run(["git", "clone", "-q", str(ROOT), str(project.root)], ROOT)
        project.run([sys.executable, "-c", SHIP], project.root)
        project.run(["git", "commit", "-q", "--all", "--allow-empty", "-m", "As shipped"], project.root)
        project.run([*ABSTAIN, "quarantine", "list"], project.root)  # which makes the workspace
        return project

    def run(self, command: Sequence[str], cwd: Path) -> Cost:
        """Run `command`, and exit with its last line where it fails."""
        log = self.folder / "log"
        started = time.perf_counter()
        with log.open("w") as file:
            process = subprocess.Popen(command, cwd=cwd, env=self._environment(cwd), stdout=file, stderr=file)
            _, status, used = os.wait4(process.pid, 0)
        took = time.perf_counter() - started
        said = log.read_text()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"error: {' '.join(command[:4])}: {(said.strip().splitlines() or ['it printed nothing'])[-1]}")
        return Cost(said, took, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20)

    def _environment(self, cwd: Path) -> dict[str, str]:
        source = cwd if (cwd / "src").is_dir() else ROOT
        who = {
            f"GIT_{role}_{part}": "abstain@localhost" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")
        }
        return (
            os.environ
            | who
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
    asked = parser.parse_args()
    print("| rows | step | seconds | of CPU | peak, GiB | |\n|--:|:--|--:|--:|--:|:--|", flush=True)

    def tell(step: str, costs: Sequence[Cost], says: str) -> None:
        seconds, cpu = (sum(figures) for figures in zip(*((one.seconds, one.cpu) for one in costs), strict=True))
        peak = max(one.peak for one in costs)
        print(f"| {asked.rows:,} | {step} | {seconds:.1f} | {cpu:.1f} | {peak:.2f} | {says} |", flush=True)

    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        project = Project.make(Path(name))
        rows = project.folder / "rows.jsonl"
        with rows.open("w", encoding="utf-8") as file:
            file.writelines(drawn_rows(asked.rows, chunk_ids(project.workspace / "data")))
        taken = project.run([*ABSTAIN, "ingest", str(rows)], project.root)
        tell("ingest", [taken], counted(taken.said))
        checked = project.run(["sh", "-c", REPRO], project.workspace)
        labelled = json.loads((project.workspace / "artifacts/dataset.json").read_text())
        tell("validate, dataset", [checked], f"{sum(one['answers'] for one in labelled['splits']):,} labelled answers")
        tell("together", [taken, checked], "")


def counted(report: str) -> str:
    """The counts of what `abstain ingest` prints."""
    lines = [line for line in report.splitlines() if line.startswith("|")]
    rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:])  # below the header
    return ", ".join(f"{count} {name}" for count, name in rows)


def chunk_ids(data: Path) -> list[str]:
    """The chunks of the handbook in `data`."""
    return [json.loads(line)["chunk_id"] for line in (data / "chunks.jsonl").read_text(encoding="utf-8").splitlines()]


def drawn_rows(count: int, chunks: Sequence[str], seed: int = 1) -> Iterator[str]:
    """`count` lines of the import format, with contexts called like `chunks`.

    About one in a hundred is broken, one in a hundred a repetition.
    """
    rng, words = random.Random(seed), WORDS.split()

    def text(count: int) -> str:
        return " ".join(rng.choices(words, k=count))

    previous = ""
    for number in range(count):
        asked = FIRST + timedelta(seconds=12 * number)
        row: dict[str, object] = {
            "interaction_id": f"int-{number:08d}",
            "asked_at": asked.isoformat(),
            "question": text(10),
            "answer": text(25),
            "contexts": [{"chunk_id": name, "text": text(60)} for name in rng.sample(chunks, 3)],
            "model": "m@1",
            "product": rng.choice(["cards", "loans", "savings"]),
            "group": f"topic-{rng.randrange(2000)}",
            "thumb": {
                "given_at": (asked + timedelta(minutes=1)).isoformat(),
                "thumb": rng.choice(["up", "down"]),
                "user": f"agent-{rng.randrange(USERS)}",
                "comment": text(8) if rng.random() < 0.2 else None,
            },
        }
        if rng.random() < 0.05:
            verdict = {"complete": True, "correct": rng.random() < 0.7, "truthful": True}
            row["review"] = {"reviewed_at": (asked + timedelta(days=1)).isoformat(), "reviewer": "sme-1", **verdict}
        line, kind = json.dumps(row) + "\n", rng.random()
        yield line[: rng.randrange(20, 200)] + "\n" if kind < 0.01 else previous if kind < 0.02 and previous else line
        previous = line


if __name__ == "__main__":
    main()
