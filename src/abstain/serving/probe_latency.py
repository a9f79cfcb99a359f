"""Latency of the probe per answer: `python -m abstain.serving.probe_latency probe.onnx` prints the p99 in ms.

It is a separate process, because the threads of the caller (a flow, a server) would be measured, too.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch

from abstain.learning.estimators.onnx_probe import OnnxProbe


def latency_p99_ms(served: OnnxProbe, tokens: int = 128, blocks: int = 25, runs: int = 100) -> float:
    """The 99th percentile, in ms, of scoring one answer of `tokens` tokens on one core, the LLM left out.

    Taken from the fastest of several blocks: other load on a shared machine is not the probe's latency.
    """
    row = [torch.randn(tokens, served.width, generator=torch.Generator().manual_seed(0))]
    served.confidence(row)
    took = np.empty((blocks, runs))
    for at in np.ndindex(took.shape):
        start = time.perf_counter()
        served.confidence(row)
        took[at] = time.perf_counter() - start
    return float(np.quantile(took, 0.99, axis=1).min() * 1000)


if __name__ == "__main__":
    print(f"{latency_p99_ms(OnnxProbe(Path(sys.argv[1]))):.4f}")
