"""Measurements that all benchmarks share: seconds in turns, and floating-point operations."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from abstain.llm.engine.loading import LoadedModel


def time_in_turns(baseline: Callable[[], Any], engine: Callable[[], Any], repeats: int) -> tuple[float, float, float]:
    """Return the median seconds of baseline and engine, and the median ratio of neighbouring runs."""
    durations = [(seconds(baseline), seconds(engine)) for _ in range(repeats)]
    ratio = statistics.median(a / b for a, b in durations)
    return statistics.median(a for a, _ in durations), statistics.median(b for _, b in durations), ratio


def seconds(run: Callable[[], Any]) -> float:
    """Return the seconds of one call, including work that it left running on a GPU."""
    start = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def flops(loaded: LoadedModel, token_layers: int) -> float:
    """Return the operations of the blocks' weight products for tokens times layers; attention's own are left out."""
    named = loaded.model.base_model.named_parameters()
    weights = sum(p.numel() for name, p in named if "layers." in name and p.ndim == 2)
    return 2.0 * token_layers * weights / loaded.model.config.num_hidden_layers


@lru_cache  # a property of the machine: measured once
def matrix_peak(dtype: torch.dtype, device: torch.device, budget: float = 0.3) -> float:
    """Return the operations per second of a large matrix product, the best of several sizes, as the attainable peak."""
    best = 0.0
    for n in (512, 1024, 2048) if device.type == "cpu" else (4096, 8192):
        a = torch.randn(n, n, dtype=dtype, device=device)
        once = max(seconds(lambda a=a: a @ a), seconds(lambda a=a: a @ a) / 2, 1e-6)  # type: ignore[misc]
        runs = max(int(budget / once), 1)
        elapsed = seconds(lambda a=a, runs=runs: [a @ a for _ in range(runs)][-1])  # type: ignore[misc]
        best = max(best, 2.0 * n**3 * runs / elapsed)
    return best
