"""What a confidence costs once the states are there: `python -m benchmarks.probe`.

Notes:

* Latency is measured as by the gate (`abstain.serving.scorer_latency`), of the probe alone: an answer of 128 tokens on
  one core.
* Throughput is that of `OnnxProbe.confidence` on answers of many lengths, one at a time, in one thread. It is measured
  in turns with torch's eager mode, one answer at a time without padding and in padded batches of 32.
* Weights are random, because time does not depend on them. Each export needs a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from abstain.config.params import Architecture, load_params
from abstain.learning.estimators.onnx_probe import OnnxProbe, export_probe, measure_parity
from abstain.learning.estimators.probe_registry import PROBES, load_probe, save_probe
from abstain.learning.estimators.probes.base import Probe, logits_to_confidence
from abstain.learning.estimators.training_rows import pad
from abstain.serving.scorer_latency import measure_p99_ms
from benchmarks.measure import in_turns

ANSWERS, TOKENS, BATCH = 128, 128, 32
ARCHITECTURES: tuple[Architecture, ...] = ("linear", "attention", "pca", "lstm")


def drawn(architecture: Architecture, width: int) -> Probe:
    """An untrained probe of the shape that `params.yaml` asks for, with means and deviations of some states."""
    torch.manual_seed(0)
    probe = PROBES[architecture].kind.from_params(width, load_params().probe)
    probe.fit_standardization([5 + 3 * torch.randn(64, width)])
    for name, buffer in probe.named_buffers():
        if name not in ("mean", "scale"):
            buffer.copy_(torch.randn_like(buffer) / width**0.5)
    probe.architecture = architecture
    return probe.eval()


def answers(width: int) -> list[Tensor]:
    """`ANSWERS` answers of 1 to `TOKENS` tokens, every length as often."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, TOKENS + 1, (ANSWERS,), generator=generator)
    return [5 + 3 * torch.randn(int(length), width, generator=generator) for length in lengths]


def measured(architecture: Architecture, width: int, folder: Path, repeats: int) -> Iterator[str]:
    """Lines of both tables: latency and size; then answers a second, of torch in both ways and of ONNX."""
    weights, file = folder / "probe.safetensors", folder / "probe.onnx"
    save_probe(drawn(architecture, width), weights)
    subprocess.run([sys.executable, "-m", "benchmarks.probe", "--export", str(weights), str(file)], check=True)
    probe, served, rows = load_probe(weights), OnnxProbe(file), answers(width)
    row = [torch.randn(TOKENS, width, generator=torch.Generator().manual_seed(0))]
    latency = measure_p99_ms(lambda: served.confidence(row))
    yield (
        f"| {architecture} | {width} | {latency:.2f} | {file.stat().st_size / 2**20:.2f} | "
        f"{measure_parity(probe, served):.0e} |"
    )

    @torch.inference_mode()
    def alone() -> None:
        for row in rows:
            logits_to_confidence(probe(row, None)).numpy()

    @torch.inference_mode()
    def in_batches() -> None:
        for at in range(0, len(rows), BATCH):
            logits_to_confidence(probe(*pad(rows[at : at + BATCH]))).numpy()

    def onnx() -> None:
        served.confidence(rows)

    cells = []
    for eager in (alone, in_batches):
        eager(), onnx()
        torch_seconds, onnx_seconds, ratio = in_turns(eager, onnx, repeats)
        cells += [f"{ANSWERS / torch_seconds:,.0f}", f"{ANSWERS / onnx_seconds:,.0f}", f"**{ratio:.1f}**"]
    yield f"| {architecture} | {width} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.probe", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--widths", type=int, nargs="*", default=[576, 4096], help="of the base model's states")
    parser.add_argument("--architectures", nargs="*", choices=ARCHITECTURES, default=ARCHITECTURES)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--export", type=Path, nargs=2, metavar=("WEIGHTS", "FILE"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.export:
        weights, file = asked.export
        export_probe(load_probe(weights), file, {})
        return
    torch.set_num_threads(1)
    latencies, throughputs = [], []
    with tempfile.TemporaryDirectory() as folder:
        for width in asked.widths:
            for architecture in asked.architectures:
                latency, throughput = measured(architecture, width, Path(folder), asked.repeats)
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
