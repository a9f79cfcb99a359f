"""Milliseconds for one answer, of each scorer and of the probe at each layer and site: `python -m benchmarks.latency`.

It times a project's own answers under its params.yaml. Times are not part of the leaderboard, because they differ from
run to run.

Notes:

* Answers are timed one by one, as in a service, without the feature cache: everything that an answer needs is computed,
  and nothing is shared with another answer.
* Only the models are timed. What a live scorer makes of their results is timed apart (scorer_latency.py): a probe takes
  a fraction of a millisecond, a regressor some.
* Scorers are timed one after the other, the first answer once more than the others, so that no model is loaded in a
  timed run.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer
from rich.table import Column, Table

from abstain.config.params import Params
from abstain.config.settings import Settings, load_settings
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.scorer_names import FUSION, LENGTH_ONLY, WRITER
from abstain.llm.features.extraction import FeatureSource, PreparedRequest
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.features.feature_store import FeatureStore, OnProgress
from abstain.llm.signals.base import FeatureBatch, Scorer
from abstain.llm.signals.compute_features import FeatureWork, collect_feature_requests, expand_requests
from abstain.llm.signals.context_conditions import ContextConditions
from abstain.llm.signals.feature_plan import ProbeSite, get_served_site, list_sweep_sites, wants_regressors
from abstain.llm.signals.registry import build_scorers
from abstain_cli.entry import prepare_run, run_app
from abstain_cli.progress_bar import show_progress
from abstain_cli.terminal import console
from tasks.runs.workspace import open_workspace
from tasks.training.retrain_cost import read_labelled

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
Run = Callable[[Interaction], object]
TELLING = 100
"""With fewer times, the 99th percentile is the longest of them."""


@dataclass(frozen=True)
class Latency:
    """Milliseconds that answers took, one by one."""

    times: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.times))

    @property
    def p99(self) -> float:
        """The 99th percentile; of fewer than `TELLING` times, the longest."""
        return float(np.quantile(self.times, 0.99) if len(self.times) >= TELLING else max(self.times))


def latencies(
    params: Params, settings: Settings, rows: Sequence[Interaction], progress: OnProgress = lambda done, total: None
) -> dict[str, Latency]:
    """The times of `rows`, by what is timed:

    the exported probe and every other site of the ablation grid; each scorer of `scorers.enabled` but `writer`, which
    reads nothing; `perturbation` of the context where there is one, and `regressors`, which read it afterwards; and
    `fusion`, all of them together, without the perturbation.
    Rows that do not fit the base model's window are not timed; raises `AbstainError` where there are no others.
    """
    source = FeatureSource(params.llm, settings)
    rows = [row for row in rows if isinstance(source.prepare(row), PreparedRequest)]
    if not rows:
        raise AbstainError(
            Code.TOO_LONG, "there is no answer to time that fits the base model's window: `abstain ingest` some first"
        )
    with tempfile.TemporaryDirectory() as folder:
        runs = _runs(params, settings.model_copy(update={"features_url": folder}), rows)
        took = {}
        for at, (name, run) in enumerate(runs.items()):
            progress(at, len(runs))
            took[name] = Latency(tuple([_milliseconds(run, row) for row in (rows[0], *rows)][1:]))
        progress(len(runs), len(runs))
        return took


def _milliseconds(run: Run, row: Interaction) -> float:
    start = time.perf_counter()
    run(row)
    return 1000 * (time.perf_counter() - start)


def _runs(params: Params, settings: Settings, rows: Sequence[Interaction]) -> dict[str, Run]:
    base = FeatureStore(params.llm.model, settings)

    def asking(asked: Callable[[Interaction], Sequence[FeatureWork]]) -> Run:
        return lambda row: base.compute_uncached(expand_requests(params.llm, settings, asked(row)))

    def scoring(scorer: Scorer) -> Run:
        """Time a scorer with an auxiliary model: it caches the model's outputs, so the cache is emptied before."""

        def run(row: Interaction) -> None:
            shutil.rmtree(settings.features, ignore_errors=True)
            scorer.score(FeatureBatch([row], {}))

        return run

    scorers = [one for one in build_scorers(params, settings).scorers if one.name not in (LENGTH_ONLY, WRITER)]
    own = (get_served_site(params).make_feature_request(params.llm), *collect_feature_requests(scorers))
    runs = {
        _name(place): asking(_of((place.make_feature_request(params.llm),)))
        for place in (get_served_site(params), *list_sweep_sites(params))
    }
    runs |= {one.name: asking(_of(one.requires)) if one.requires else scoring(one) for one in scorers}
    all_runs = [asking(_of(own)), *(runs[one.name] for one in scorers if not one.requires)]
    if wants_regressors(params):
        conditions = ContextConditions(params.llm, params.perturbation, settings)
        copies = conditions.perturber.perturb(rows)
        changed = {row.interaction_id: [[copy[at]] for copy in copies] for at, row in enumerate(rows)}

        def under_conditions(row: Interaction) -> list[FeatureWork]:
            return conditions.get_work([row], changed[row.interaction_id])

        if copies:
            runs["perturbation"] = lambda row: conditions.perturber.run([row])
        runs["regressors"] = asking(under_conditions)
        all_runs[0] = asking(lambda row: [([row], own), *under_conditions(row)])
    return runs | {FUSION: lambda row: [run(row) for run in all_runs]}


def _of(readings: Sequence[FeatureRequest]) -> Callable[[Interaction], Sequence[FeatureWork]]:
    return lambda row: [([row], readings)]


def _name(place: ProbeSite) -> str:
    chunks = {None: "all chunks", 1: "best chunk"}.get(place.chunks, f"best {place.chunks} chunks")
    return f"probe: layer {place.layer}, {place.site}, {chunks}"


@app.command()
def time_scorers(
    answers: Annotated[int, typer.Option(min=1, help="labelled answers to time, evenly spaced")] = 10,
) -> None:
    """Time one answer at a time, nothing cached: every scorer of params.yaml, and the probe by layer and chunks."""
    settings = load_settings()
    with open_workspace() as workspace:
        params, labelled, _ = read_labelled(workspace)
    places = np.unique(np.linspace(0, len(labelled.rows), answers, endpoint=False, dtype=int))
    rows = [labelled.rows[at] for at in places if at < len(labelled.rows)]
    with show_progress(console, "latency") as progress:
        found = latencies(params, settings, rows, progress)
    figures = ("mean", "p99" if len(rows) >= TELLING else "longest")
    table = Table("ms for one answer", *(Column(name, justify="right") for name in figures))
    for name, took in found.items():
        table.add_row(name, f"{took.mean:,.0f}", f"{took.p99:,.0f}")
    console.print(table)
    for name, reason in build_scorers(params, settings).unavailable.items():
        console.print(f"skipped: {name}: {reason}")


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.latency", prepare_run)
