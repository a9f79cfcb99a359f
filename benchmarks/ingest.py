"""What taking in feedback costs: `python -m benchmarks.ingest --rows 100000`.

Three decisions:

* Rows are drawn from a seed, in the import format: a question, an answer, three chunks of context, a thumb, a comment
  on every fifth, a review of every twentieth, 1,600 bytes together. A hundredth is broken, and another comes twice.
* Each step is a process of its own, as in a run, and its peak is the kernel's (`ru_maxrss`); imports count.
* The parameters are those of params.yaml, personal data is looked for, and users are given pseudonyms.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

# The library is imported in the processes that are measured: one that is started inherits the peak of its parent.

WORDS = (
    "account annual balance branch card charge currency customer date deadline fee foreign gold insurance interest "
    "limit loan minimum month mortgage number overdraft payment premium rate savings silver statement transfer"
)
FIRST = datetime(2026, 6, 1, tzinfo=UTC)
DOCUMENTS = 500
USERS = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000, help="rows of feedback (100000)")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where there is room")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.step:
        print(json.dumps(measured(asked.step, asked.folder)))
        return
    print("| rows | step | seconds | peak, GiB | |\n|--:|:--|--:|--:|:--|", flush=True)
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(drawn_rows(asked.rows))
        total = 0.0
        for step in STEPS:
            command = [sys.executable, "-m", "benchmarks.ingest", "--step", step, "--folder", str(folder)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"error: {step}: {done.stderr.strip().splitlines()[-1]}")
            took = json.loads(done.stdout.splitlines()[-1])
            total += took["seconds"]
            print(
                f"| {asked.rows:,} | {step} | {took['seconds']:.1f} | {took['gib']:.2f} | {took['says']} |", flush=True
            )
        print(f"| {asked.rows:,} | together | {total:.1f} | | |")


def drawn_rows(count: int, seed: int = 1) -> Iterator[str]:
    """`count` lines of the import format; about one in a hundred is broken, one in a hundred a repetition."""
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
            "contexts": [{"chunk_id": f"doc-{rng.randrange(DOCUMENTS)}#{n}", "text": text(60)} for n in range(3)],
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


def measured(step: str, folder: Path) -> dict[str, object]:
    """Run one step in this process: seconds, GiB at the peak, and what it did."""
    started = time.perf_counter()
    says = STEPS[step](folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": time.perf_counter() - started, "gib": peak, "says": says}


def take_in(folder: Path) -> str:
    """Ingest, with Great Expectations and redaction."""
    from abstain.config.params import load_params
    from abstain.config.settings import Settings
    from abstain.feedback.ingest import ingest
    from abstain.feedback.privacy import Privacy
    from abstain.feedback.sources.files import by_hand

    params = load_params()
    privacy = Privacy.open(params.privacy, Settings(home=folder))
    now = datetime(2028, 1, 1, tzinfo=UTC)
    report = ingest(by_hand([str(folder / "rows.jsonl")]), folder / "data", params.validation, now, privacy=privacy)
    return f"{report.accepted:,} accepted, {report.duplicate:,} duplicate, {report.quarantined:,} quarantined"


def take_in_again(folder: Path) -> str:
    """The same file once more: everything is known."""
    return take_in(folder)


def check(folder: Path) -> str:
    """Stage `validate`: everything that was accepted."""
    from abstain.config.params import load_params
    from abstain.feedback.store import Store
    from abstain.feedback.store_validation import validate_store

    store = Store(folder / "data")
    result = validate_store(store, load_params().validation, store.batches()[-1].arrived_at)
    return f"{len(result.checks)} expectations, {len(result.reasons)} rows fail"


def label(folder: Path) -> str:
    """Stage `dataset`: labels and splits."""
    from abstain.config.params import load_params
    from abstain.feedback.dataset import training_table
    from abstain.feedback.frames import read_frames
    from abstain.feedback.store import Store

    params, frames = load_params(), read_frames(Store(folder / "data"))
    table, _ = training_table(frames.interactions, frames.feedback, frames.reviews, params.labels, params.split)
    return f"{len(table):,} labelled answers, {int((table['source'] == 'sme').sum()):,} by experts"


STEPS = {"ingest": take_in, "ingest again": take_in_again, "validate": check, "label": label}


if __name__ == "__main__":
    main()
