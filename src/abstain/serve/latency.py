"""How long one answer takes each scorer: what the leaderboard cannot say, because a time differs from run to run.

Three decisions:

* An answer comes alone, as a service has it, and the feature cache is empty: everything that it needs is computed, and
  nothing is shared with another answer.
* What is timed ends where a scorer has what it asked the base model for. What it makes of that takes microseconds, and
  a served probe a fraction of a millisecond (probe_latency.py).
* One scorer after the other, the first answer once more than the others, so that no model is loaded in a timed run.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from abstain.contracts import Interaction
from abstain.errors import AbstainError
from abstain.features.extract import FeatureSource, Prepared
from abstain.features.rows import Progress
from abstain.params import Params
from abstain.scorers.asked import Listening, served, swept
from abstain.scorers.base import Scorer
from abstain.scorers.catalogue import compared
from abstain.scorers.conditions import Conditions
from abstain.scorers.reading import Asked, fill, read_answers, readings_of
from abstain.scorers.together import FUSION, LENGTH_ONLY
from abstain.settings import Settings

Run = Callable[[Interaction], object]


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one answer: the mean, and the 99th percentile."""

    mean: float
    p99: float


def latencies(
    params: Params, settings: Settings, rows: Sequence[Interaction], progress: Progress = lambda done, total: None
) -> dict[str, Latency]:
    """What each of `rows` takes, by what is timed:

    the served probe and every other place where it might listen; each scorer of `scorers.compare`; `perturbation` of
    the context and `regressors`, which read it afterwards; and what all of them need together, `fusion`, the
    perturbation left out. Rows that do not fit the base model's window are not timed; raises `AbstainError` where there
    are no others.
    """
    source = FeatureSource(params.llm, settings)
    rows = [row for row in rows if isinstance(source.prepare(row), Prepared)]
    if not rows:
        raise AbstainError("there is no answer to time that fits the base model's window: `abstain ingest` some first")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "features"
        runs = _runs(params, settings.model_copy(update={"features_url": str(scratch)}), rows)
        took = {}
        for at, (name, run) in enumerate(runs.items()):
            progress(at, len(runs))
            times = [_milliseconds(run, row, scratch) for row in (rows[0], *rows)][1:]
            took[name] = Latency(float(np.mean(times)), float(np.quantile(times, 0.99)))
        progress(len(runs), len(runs))
        return took


def _milliseconds(run: Run, row: Interaction, cache: Path) -> float:
    shutil.rmtree(cache, ignore_errors=True)
    start = time.perf_counter()
    run(row)
    return 1000 * (time.perf_counter() - start)


def _runs(params: Params, settings: Settings, rows: Sequence[Interaction]) -> dict[str, Run]:
    def asking(asked: Callable[[Interaction], Sequence[Asked]]) -> Run:
        return lambda row: fill(params.llm, settings, asked(row))

    def listening(place: Listening) -> Run:
        return asking(lambda row: [([row], (place.reading,))])

    def scoring(scorer: Scorer) -> Run:
        return lambda row: scorer.score(read_answers(params.llm, settings, [row], scorer.readings))

    scorers = [one for one in compared(params, settings).scorers if one.name != LENGTH_ONLY]
    runs = {_name(place): listening(place) for place in (served(params), *swept(params))}
    runs |= {one.name: scoring(one) for one in scorers}
    own = (served(params).reading, *readings_of(scorers))
    if not params.regressors.any:
        return runs | {FUSION: asking(lambda row: [([row], own)])}
    conditions = Conditions(params.llm, params.perturbation, settings)
    copies = zip(*conditions.perturber.perturb(rows), strict=True)
    changed = {row.interaction_id: [[one] for one in of] for row, of in zip(rows, copies, strict=True)}

    def under_conditions(row: Interaction) -> list[Asked]:
        return conditions.asked([row], changed[row.interaction_id])

    return runs | {
        "perturbation": lambda row: conditions.perturber.fill([row]),
        "regressors": asking(under_conditions),
        FUSION: asking(lambda row: [([row], own), *under_conditions(row)]),
    }


def _name(place: Listening) -> str:
    chunks = "all" if place.chunks is None else f"best {place.chunks}"
    return f"probe: layer {place.layer}, {place.site}, {chunks} chunks"
