"""How much host memory it takes to assemble and to train on many wide rows: `python -m benchmarks.memory`.

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
    asked = parser.parse_args()
    if asked.part:
        print(json.dumps(measured(PARTS[asked.part], asked)))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: terminated"))  # so that the folder is removed, too
    needed = int(1.05 * asked.rows * (asked.answer_tokens + 1) * asked.width * BYTES) + 2**20
    free = shutil.disk_usage(asked.folder).free
    if free < needed:
        sys.exit(
            f"error: {needed / GIB:.1f} GiB are needed in {asked.folder}, {free / GIB:.1f} GiB are free: "
            "name another --folder, or fewer --rows"
        )
    print("| rows | file, GiB | step | peak, GiB | of it anonymous | seconds | CPU seconds | per 1,000 rows |")
    print("|--:|--:|:--|--:|--:|--:|--:|--:|", flush=True)
    for rows in sorted({max(asked.rows // 100, 20), max(asked.rows // 10, 20), asked.rows}):
        with tempfile.TemporaryDirectory(prefix="abstain-memory-", dir=asked.folder) as folder:
            for part in ("assemble", *(f"train {name}" for name in asked.architectures)):
                print(line(rows, part, run(part, rows, asked, folder)), flush=True)


def run(part: str, rows: int, asked: argparse.Namespace, folder: str) -> dict[str, Any]:
    """`part` in a fresh process; what it printed last."""
    numbers = ["--rows", rows, "--width", asked.width, "--answer-tokens", asked.answer_tokens]
    numbers += ["--epochs", asked.epochs, "--folds", asked.folds]
    command = [sys.executable, "-m", "benchmarks.memory", "--part", part, *map(str, numbers), "--folder", folder]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: {part} of {rows} rows ended with {done.returncode}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def line(rows: int, part: str, figures: dict[str, Any]) -> str:
    cells = [
        f"{rows:,}",
        f"{figures['bytes'] / GIB:.2f}",
        f"{part}{figures['note']}",
        f"{figures['peak'] / GIB:.2f}",
        f"{figures['anonymous'] / GIB:.2f}",
        f"{figures['seconds']:.1f}",
        f"{figures['cpu']:.1f}",
        f"{figures['cpu'] / rows * 1000:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def measured(part: Callable[[argparse.Namespace], str], asked: argparse.Namespace) -> dict[str, Any]:
    """`part`, done here, and what it took; imports are in the memory and not in the time."""
    import torch

    import abstain.data.store.state_table
    import abstain.learning.estimators.cross_validation  # noqa: F401

    torch.set_num_threads(1)  # as training does: threads that wait for each other would be in the CPU time
    highest, stop = [anonymous()], threading.Event()

    def sample() -> None:
        while not stop.wait(0.02):
            highest[0] = max(highest[0], anonymous())

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    start, start_cpu = time.perf_counter(), time.process_time()
    note = part(asked)
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    stop.set()
    sampler.join()
    return {
        "seconds": seconds,
        "cpu": cpu,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "anonymous": highest[0],
        "bytes": table(asked).stat().st_size,
        "note": note,
    }


def anonymous() -> int:
    """Bytes of this process that no file stands behind; 0 on a system that does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(entry.split()[1]) * 1024 for entry in lines if entry.startswith("RssAnon:"))


def table(asked: argparse.Namespace) -> Path:
    return Path(asked.folder) / "features.npy"


def plan(asked: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of every row, answer and EOS, and whether it is right; both int64 (rows,)."""
    import torch

    generator = torch.Generator().manual_seed(0)
    answers = torch.randint(1, 2 * asked.answer_tokens, (asked.rows,), generator=generator)
    return answers + 1, torch.randint(0, 2, (asked.rows,), generator=generator)


def assemble(asked: argparse.Namespace) -> str:
    """Generate the rows and write them, in an order as batches of similar length would come."""
    import torch

    from abstain.data.store.state_table import write_table

    lengths, correct = plan(asked)
    direction = torch.zeros(asked.width)
    direction[:: max(asked.width // 64, 1)] = 1

    def rows() -> Iterator[tuple[int, torch.Tensor]]:
        for index in lengths.argsort(stable=True).tolist():
            generator = torch.Generator().manual_seed(index)
            row = torch.randn(int(lengths[index]), asked.width, generator=generator)
            row[-1] += direction * (2 * correct[index] - 1)
            yield index, row.bfloat16()

    write_table(table(asked), lengths.tolist(), asked.width, torch.bfloat16, rows(), "synthetic@0")
    return ""


def train(architecture: Architecture, asked: argparse.Namespace) -> str:
    """Fit a probe as the stage does, out-of-fold confidences included, on four of five rows in groups of four."""
    import numpy as np
    import torch

    from abstain.config.params import load_params
    from abstain.data.store.state_table import StateTable
    from abstain.learning.estimators.cross_validation import fit_probe
    from abstain.learning.estimators.training_rows import TrainingRows

    _, correct = plan(asked)
    index = (torch.arange(asked.rows) % 5 > 0).nonzero().flatten()
    rows = TrainingRows(StateTable(table(asked)).subset(index.tolist()), correct[index], torch.ones(len(index)))
    params = load_params().probe.model_copy(update={"max_epochs": asked.epochs, "folds": asked.folds})
    history = fit_probe(architecture, rows, np.arange(len(index)) // 4, params).history
    return f", {len(history.step_values)} step(s), held-out loss {min(history.held_out_loss):.3f}"


ARCHITECTURES: tuple[Architecture, ...] = ("linear", "attention", "pca", "lstm")
PARTS: dict[str, Callable[[argparse.Namespace], str]] = {
    "assemble": assemble,
    **{f"train {name}": partial(train, name) for name in ARCHITECTURES},
}

if __name__ == "__main__":
    main()
