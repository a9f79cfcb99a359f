"""What a confidence costs in time: `python -m benchmarks.latency`. Two tables, of answers of the shipped sample.

One answer at a time, nothing cached, nothing shared with other answers, as a service has it. What is timed are the base
model's passes: what a scorer does with their results takes microseconds, the ONNX probe a fraction of a millisecond
(`python -m benchmarks.probe`). Each answer is read `--repeats` times, everybody taking turns.

1. Every scorer that asks the base model anything.
2. The probe by layer and number of retrieved chunks (Huang et al., table 5).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from abstain.contracts import ImportedInteraction, Interaction
from abstain.features.extract import FeatureSource, Prepared
from abstain.features.readings import Reading
from abstain.llm.asks import Request
from abstain.params import Params, load_params
from abstain.sample.write import write_sample
from abstain.scorers.asked import Listening, served
from abstain.scorers.catalogue import compared
from abstain.settings import Settings, load_settings

ROOT = Path(__file__).resolve().parents[1]
CHUNKS = (1, 2, None)


def main(answers: int, repeats: int) -> None:
    params, settings = load_params(ROOT / "params.yaml"), load_settings()
    rows = [row for row in sample_answers() if len(row.contexts) == max(filter(None, CHUNKS)) + 1][:answers]
    scorers = {one.name: one.readings for one in compared(params, settings).scorers if one.readings}
    here = served(params).reading
    fused = tuple(dict.fromkeys((here, *(reading for of in scorers.values() for reading in of))))
    show("scorer", took(params, settings, rows, {"probe": (here,), **scorers, "fusion": fused}, repeats))
    depth = max(params.sweep.layers)
    places = {
        f"layer {layer}, {chunks or 'all'} chunks": (Listening(layer, params.llm.site, chunks).reading,)
        for layer in (params.llm.layer, depth)
        for chunks in CHUNKS
    }
    show("probe at", took(params, settings, rows, places, repeats))


def sample_answers() -> list[Interaction]:
    with tempfile.TemporaryDirectory() as folder:
        write_sample(Path(folder))
        lines = (Path(folder) / "history.jsonl").read_text(encoding="utf-8").splitlines()
    return [ImportedInteraction.model_validate_json(line).split()[0] for line in lines]


def took(
    params: Params,
    settings: Settings,
    rows: Sequence[Interaction],
    wanted: Mapping[str, Sequence[Reading]],
    repeats: int,
) -> dict[str, np.ndarray]:
    """Milliseconds of every answer's readings, (repeats x answers,), by name."""
    engine = FeatureSource(params.llm, settings).engine()
    found: dict[str, list[float]] = {name: [] for name in wanted}
    for turn in range(repeats + 1):
        for row in rows:
            for name, readings in wanted.items():
                start = time.perf_counter()
                list(engine.run(requests(params, settings, row, readings)))
                if turn:  # the first warms up
                    found[name].append(1000 * (time.perf_counter() - start))
    return {name: np.array(of) for name, of in found.items()}


def requests(params: Params, settings: Settings, row: Interaction, readings: Sequence[Reading]) -> dict[str, Request]:
    prepared = [FeatureSource(params.llm, settings, reading).prepare(row) for reading in readings]
    return {str(at): one.request for at, one in enumerate(prepared) if isinstance(one, Prepared)}


def show(what: str, times: Mapping[str, np.ndarray]) -> None:
    print(f"\n| {what} | mean, ms | p99, ms |\n| --- | --: | --: |")
    for name, of in times.items():
        print(f"| {name} | {of.mean():.0f} | {np.quantile(of, 0.99):.0f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answers", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    main(arguments.answers, arguments.repeats)
