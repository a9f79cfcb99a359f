"""Run through `benchmarks/gpu.sh`, which prepares what a bare machine lacks."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterable

import torch
import transformers

from benchmarks.gpu.equality import check_equality
from benchmarks.gpu.models import LLAMA_8B, TINY, random_model
from benchmarks.gpu.speed import measure_latency, measure_memory, measure_throughput

PARTS = ("equality", "throughput", "latency", "memory")


def main() -> int:
    """Print the requested tables and return the exit status: 1 if a result differs by more than its limit."""
    parser = argparse.ArgumentParser(prog="benchmarks/gpu.sh")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--small", action="store_true", help="a small model, which a CPU runs too")
    parser.add_argument("--runs", type=int, default=100, help="answers for a line of the latency table")
    arguments = parser.parse_args()
    parts = arguments.parts or PARTS
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"no part {unknown[0]!r}: there are {', '.join(PARTS)}")
    on_cuda = torch.cuda.is_available()
    if not on_cuda and not arguments.small:
        parser.error("torch sees no CUDA device: run it where there is one, or with --small")
    device = torch.device("cuda" if on_cuda else "cpu")
    if not on_cuda:
        torch.set_num_threads(1)  # small matrices: threads would wait for each other
    chip = torch.cuda.get_device_name() if on_cuda else "CPU"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{chip}, {versions}, {datetime.date.today()}, random weights")
    is_violated = False
    if "equality" in parts:
        print("\n## Equality\n")
        for line, is_within in check_equality(device):
            print(line, flush=True)
            is_violated = is_violated or not is_within
    if set(parts) & {"throughput", "latency", "memory"}:
        torch.manual_seed(0)
        small = arguments.small
        loaded = random_model("8B", "LlamaConfig", TINY if small else LLAMA_8B, device, torch.bfloat16)
        if "throughput" in parts:
            _print(
                "Throughput", measure_throughput(loaded, (100, 400) if small else (1000, 4000), 4 if small else 16, 3)
            )
        if "latency" in parts:
            _print("Latency", measure_latency(loaded, 50 if small else 500, 3 if small else arguments.runs))
        if "memory" in parts:
            _print("Memory", measure_memory(loaded, 400 if small else 4000, 1600 if small else 1 << 19))
    return int(is_violated)


def _print(title: str, lines: Iterable[str]) -> None:
    print(f"\n## {title}\n", flush=True)
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
