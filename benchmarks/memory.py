"""Host memory that assembling and training need for many wide rows: `python -m benchmarks.memory`.

Notes:

* Rows are generated from a seed while they are written, so no data set is needed. Correct and incorrect answers differ
  in one direction of one token, so there is something to learn.
* Writing and training run in a process each. The peak is the kernel's (`ru_maxrss`), reported with the sampled
  anonymous memory (`RssAnon`): pages of a memory map count in the first only.
* There are three sizes, each ten times the one before: CPU time per interaction must not grow with their number. CPU
  time, unlike seconds, leaves out the other load of a shared machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

# The library is imported in the processes that are measured and not here: one that is started inherits the peak of
# the one that starts it.
if TYPE_CHECKING:
    import torch

    from abstain.config.params import Architecture

GIB = 2**30
BYTES = 2  # of a bfloat16


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000, help="interactions of the largest run (100000)")
    parser.add_argument("--width", type=int, default=4096, help="width of the base model's states (4096)")
    parser.add_argument("--answer-tokens", type=int, default=12, help="tokens of an answer on average (12)")
    parser.add_argument("--epochs", type=int, default=1, help="passes over the training rows (1)")
    parser.add_argument("--folds", type=int, default=2, help="of groups, for out-of-fold confidences (2)")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where there is room")
    parser.add_argument("--architectures", nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES, help="probes (all)")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(measure_part(PARTS[options.part], options)))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: terminated"))  # so that the folder is removed, too
    needed_bytes = int(1.05 * options.rows * (options.answer_tokens + 1) * options.width * BYTES) + 2**20
    free_bytes = shutil.disk_usage(options.folder).free
    if free_bytes < needed_bytes:
        sys.exit(
            f"error: {needed_bytes / GIB:.1f} GiB are needed in {options.folder}, {free_bytes / GIB:.1f} GiB are free: "
            "name another --folder, or fewer --rows"
        )
    print("| rows | file, GiB | step | peak, GiB | of it anonymous | seconds | CPU seconds | per 1,000 rows |")
    print("|--:|--:|:--|--:|--:|--:|--:|--:|", flush=True)
    for rows in sorted({max(options.rows // 100, 20), max(options.rows // 10, 20), options.rows}):
        with tempfile.TemporaryDirectory(prefix="abstain-memory-", dir=options.folder) as folder:
            for part in ("assemble", *(f"train {name}" for name in options.architectures)):
                print(format_row(rows, part, run(part, rows, options, folder)), flush=True)


def run(part: str, rows: int, options: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Run `part` in a fresh process and return what it printed last."""
    numbers = ["--rows", rows, "--width", options.width, "--answer-tokens", options.answer_tokens]
    numbers += ["--epochs", options.epochs, "--folds", options.folds]
    command = [sys.executable, "-m", "benchmarks.memory", "--part", part, *map(str, numbers), "--folder", folder]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if process.returncode:
        sys.exit(f"error: {part} of {rows} rows ended with {process.returncode}")
    return dict(json.loads(process.stdout.splitlines()[-1]))


def format_row(rows: int, part: str, cost: dict[str, Any]) -> str:
    """Format a row of the table."""
    cells = [
        f"{rows:,}",
        f"{cost['bytes'] / GIB:.2f}",
        f"{part}{cost['note']}",
        f"{cost['peak'] / GIB:.2f}",
        f"{cost['anonymous'] / GIB:.2f}",
        f"{cost['seconds']:.1f}",
        f"{cost['cpu']:.1f}",
        f"{cost['cpu'] / rows * 1000:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def measure_part(part: Callable[[argparse.Namespace], str], options: argparse.Namespace) -> dict[str, Any]:
    """Run `part` in this process and return its cost; imports count for memory and not for time."""
    import torch

    import abstain.data.store.state_table
    import abstain.learning.estimators.cross_validation  # noqa: F401

    torch.set_num_threads(1)  # as training does: threads that wait for each other would be in the CPU time
    highest, stop = [read_anonymous_bytes()], threading.Event()

    def sample() -> None:
        while not stop.wait(0.02):
            highest[0] = max(highest[0], read_anonymous_bytes())

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    start, start_cpu = time.perf_counter(), time.process_time()
    note = part(options)
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    stop.set()
    sampler.join()
    return {
        "seconds": seconds,
        "cpu": cpu,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "anonymous": highest[0],
        "bytes": get_table_path(options).stat().st_size,
        "note": note,
    }


def read_anonymous_bytes() -> int:
    """Return the bytes of this process that no file backs; 0 if the system does not report them."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(entry.split()[1]) * 1024 for entry in lines if entry.startswith("RssAnon:"))


def get_table_path(options: argparse.Namespace) -> Path:
    """Return the path of the table of states."""
    return Path(options.folder) / "features.npy"


def make_plan(options: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens of every row (answer and EOS) and whether it is correct, both int64 (rows,)."""
    import torch

    generator = torch.Generator().manual_seed(0)
    answers = torch.randint(1, 2 * options.answer_tokens, (options.rows,), generator=generator)
    return answers + 1, torch.randint(0, 2, (options.rows,), generator=generator)


def assemble(options: argparse.Namespace) -> str:
    """Generate the rows and write them in the order in which batches of similar length would arrive."""
    import torch

    from abstain.data.store.state_table import write_table

    lengths, correct = make_plan(options)
    direction = torch.zeros(options.width)
    direction[:: max(options.width // 64, 1)] = 1

    def rows() -> Iterator[tuple[int, torch.Tensor]]:
        for index in lengths.argsort(stable=True).tolist():
            generator = torch.Generator().manual_seed(index)
            row = torch.randn(int(lengths[index]), options.width, generator=generator)
            row[-1] += direction * (2 * correct[index] - 1)
            yield index, row.bfloat16()

    write_table(get_table_path(options), lengths.tolist(), options.width, torch.bfloat16, rows(), "synthetic@0")
    return ""


def train(architecture: Architecture, options: argparse.Namespace) -> str:
    """Fit a probe as the stage does, with out-of-fold confidences, on four of five rows in groups of four."""
    import numpy as np
    import torch

    from abstain.config.params import load_params
    from abstain.data.store.state_table import StateTable
    from abstain.learning.estimators.cross_validation import fit_probe
    from abstain.learning.estimators.training_rows import TrainingRows

    _, correct = make_plan(options)
    index = (torch.arange(options.rows) % 5 > 0).nonzero().flatten()
    rows = TrainingRows(
        StateTable(get_table_path(options)).subset(index.tolist()), correct[index], torch.ones(len(index))
    )
    params = load_params().probe.model_copy(update={"max_epochs": options.epochs, "folds": options.folds})
    history = fit_probe(architecture, rows, np.arange(len(index)) // 4, params).history
    return f", {len(history.step_values)} step(s), held-out loss {min(history.held_out_loss):.3f}"


ARCHITECTURES: tuple[Architecture, ...] = ("linear", "attention", "pca", "lstm")
PARTS: dict[str, Callable[[argparse.Namespace], str]] = {
    "assemble": assemble,
    **{f"train {name}": partial(train, name) for name in ARCHITECTURES},
}

if __name__ == "__main__":
    main()
