"""Cost of a confidence once the states are computed: `python -m benchmarks.probe`.

Notes:

* Latency is measured as by the promotion checks (`abstain.serving.scorer_latency`), of the probe only: an answer of 128
  tokens on one core.
* Throughput is that of `OnnxProbe.confidence` on answers of many lengths, one at a time, in one thread. It is measured
  in turns with torch's eager mode, one answer at a time without padding and in padded batches of 32.
* Weights are random, because time does not depend on them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from abstain.config.params import Architecture, load_params
from abstain.learning.estimators.onnx_probe import OnnxProbe, export_probe, measure_parity
from abstain.learning.estimators.probe_registry import PROBES
from abstain.learning.estimators.probes.base import Probe, logits_to_confidence
from abstain.learning.estimators.training_rows import pad
from abstain.serving.scorer_latency import measure_p99_ms
from benchmarks.measure import time_in_turns

ANSWERS, TOKENS, BATCH = 128, 128, 32
ARCHITECTURES: tuple[Architecture, ...] = ("linear", "attention", "pca", "lstm")


def make_untrained_probe(architecture: Architecture, width: int) -> Probe:
    """Return an untrained probe of the shape in `params.yaml`, standardized by some states."""
    torch.manual_seed(0)
    probe = PROBES[architecture].probe_class.from_params(width, load_params().probe)
    probe.fit_standardization([5 + 3 * torch.randn(64, width)])
    for name, buffer in probe.named_buffers():
        if name not in ("mean", "scale"):
            buffer.copy_(torch.randn_like(buffer) / width**0.5)
    probe.architecture = architecture
    return probe.eval()


def make_answers(width: int) -> list[Tensor]:
    """Return `ANSWERS` answers of 1 to `TOKENS` tokens, with all lengths equally likely."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, TOKENS + 1, (ANSWERS,), generator=generator)
    return [5 + 3 * torch.randn(int(length), width, generator=generator) for length in lengths]


def measure_architecture(architecture: Architecture, width: int, folder: Path, repeats: int) -> Iterator[str]:
    """Yield a line of each table: latency and size; answers per second of torch in both ways and of ONNX."""
    probe, file, rows = make_untrained_probe(architecture, width), folder / "probe.onnx", make_answers(width)
    export_probe(probe, file, {})
    onnx_probe = OnnxProbe(file)
    row = [torch.randn(TOKENS, width, generator=torch.Generator().manual_seed(0))]
    latency = measure_p99_ms(lambda: onnx_probe.predict(row))
    yield (
        f"| {architecture} | {width} | {latency:.2f} | {file.stat().st_size / 2**20:.2f} | "
        f"{measure_parity(probe, onnx_probe):.0e} |"
    )

    @torch.inference_mode()
    def run_singly() -> None:
        for row in rows:
            logits_to_confidence(probe(*pad([row]))).numpy()

    @torch.inference_mode()
    def in_batches() -> None:
        for start in range(0, len(rows), BATCH):
            logits_to_confidence(probe(*pad(rows[start : start + BATCH]))).numpy()

    def onnx() -> None:
        onnx_probe.predict(rows)

    cells = []
    for eager in (run_singly, in_batches):
        eager(), onnx()
        torch_seconds, onnx_seconds, ratio = time_in_turns(eager, onnx, repeats)
        cells += [f"{ANSWERS / torch_seconds:,.0f}", f"{ANSWERS / onnx_seconds:,.0f}", f"**{ratio:.1f}**"]
    yield f"| {architecture} | {width} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.probe", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--widths", type=int, nargs="*", default=[576, 4096], help="of the base model's states")
    parser.add_argument("--architectures", nargs="*", choices=ARCHITECTURES, default=ARCHITECTURES)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    latencies, throughputs = [], []
    with tempfile.TemporaryDirectory() as folder:
        for width in options.widths:
            for architecture in options.architectures:
                latency, throughput = measure_architecture(architecture, width, Path(folder), options.repeats)
                latencies.append(latency)
                throughputs.append(throughput)
    print(
        f"| probe | width | p99, ms, {TOKENS} tokens | file, MiB | parity |",
        "| --- | --: | --: | --: | --: |",
        sep="\n",
    )
    print(*latencies, sep="\n")
    print(f"\nAnswers a second, of 1 to {TOKENS} tokens, one thread; torch and ONNX beside it were run in turns.\n")
    print(f"| probe | width | torch, alone | ONNX, alone | times | torch, in {BATCH}s | ONNX, alone | times |")
    print(f"| --- |{' --: |' * 7}")
    print(*throughputs, sep="\n")


if __name__ == "__main__":
    main()
