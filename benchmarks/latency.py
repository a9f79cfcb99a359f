"""Milliseconds for one answer, by scorer, and by layer and site of the probe: `python -m benchmarks.latency`.

It times a project's own answers under its params.yaml. Times are not part of the leaderboard, because they differ from
run to run.

Notes:

* Answers are timed one by one, as in a service, without the feature cache: everything that an answer needs is computed,
  and nothing is shared with another answer.
* Only the models are timed. The work of a live scorer on their results is timed elsewhere (scorer_latency.py): a probe
  takes a fraction of a millisecond, a regressor some.
* Scorers are timed one after the other, the first answer once more than the others, so that no model is loaded in a
  timed run.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, TypeVar

import numpy as np
import typer
from rich.table import Column, Table

from abstain.config.params import Params
from abstain.config.settings import Settings, load_settings
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.scorer_names import LENGTH_ONLY, REGRESSORS, WRITER
from abstain.llm.features.extraction import FeatureSource, PreparedRequest
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.features.feature_store import FeatureStore, OnProgress
from abstain.llm.signals.base import FeatureBatch, Scorer
from abstain.llm.signals.compute_features import FeatureWork, expand_requests
from abstain.llm.signals.context_conditions import ContextConditions
from abstain.llm.signals.cross_encoder import CrossEncoder
from abstain.llm.signals.feature_plan import (
    ProbeSite,
    get_served_site,
    list_components,
    list_fusions,
    list_sweep_sites,
    should_fit_regressors,
)
from abstain.llm.signals.registry import build_scorers
from abstain_cli.entry import prepare_run, run_app
from abstain_cli.progress_bar import show_progress
from abstain_cli.terminal import console
from abstain_tasks.runs.workspace import open_workspace
from abstain_tasks.training.retrain_cost import read_labelled

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
Key = TypeVar("Key")
PERTURBATION = "perturbation"
MIN_P99_TIMES = 100
"""With fewer times, the 99th percentile is the longest of them."""


@dataclass(frozen=True)
class TimedRun:
    """What is timed for an answer.

    Attributes:
        run: Computes everything that the answer needs.
        parts: Names of runs that were timed before and share nothing with this one: their times are added.
    """

    run: Callable[[Interaction], object]
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Latency:
    """Milliseconds of answers that were timed one by one."""

    times: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean of the times."""
        return float(np.mean(self.times))

    @property
    def p99(self) -> float:
        """99th percentile; with fewer than `MIN_P99_TIMES` times, the longest."""
        return float(np.quantile(self.times, 0.99) if len(self.times) >= MIN_P99_TIMES else max(self.times))


def measure_latencies(
    params: Params, settings: Settings, rows: Sequence[Interaction], progress: OnProgress = lambda done, total: None
) -> dict[str, Latency]:
    """Time the answers of `rows`, one by one.

    Timed are the exported probe and every other site of the ablation grid; each scorer of `scorers.enabled` except
    `writer`, which reads nothing; `perturbation` of the context if there is one, and `regressors`, which read it
    afterwards; and each fusion: what its parts read in common, and its parts with a model of their own, without the
    perturbation.

    Args:
        params: Parameters of the project.
        settings: Settings; the feature cache is replaced by an empty one.
        rows: Answers to time; those beyond the context length are left out.
        progress: Called with the number of timed scorers and their total.

    Returns:
        The latency by name of what is timed.

    Raises:
        AbstainError: no answer fits the context length.
    """
    return _measure(params, settings, rows, _make_runs, progress)


def measure_site_latencies(
    params: Params, settings: Settings, rows: Sequence[Interaction], sites: Sequence[ProbeSite]
) -> dict[ProbeSite, Latency]:
    """Time the answers of `rows`, one by one, for a probe at each of `sites`; see `measure_latencies`."""

    def make_runs(params: Params, settings: Settings, rows: Sequence[Interaction]) -> dict[ProbeSite, TimedRun]:
        return {
            site: _make_engine_run(params, settings, _make_work((site.make_feature_request(params.llm),)))
            for site in sites
        }

    return _measure(params, settings, rows, make_runs, lambda done, total: None)


def _measure(
    params: Params,
    settings: Settings,
    rows: Sequence[Interaction],
    make_runs: Callable[[Params, Settings, Sequence[Interaction]], dict[Key, TimedRun]],
    progress: OnProgress,
) -> dict[Key, Latency]:
    source = FeatureSource(params.llm, settings)
    rows = [row for row in rows if isinstance(source.prepare(row), PreparedRequest)]
    if not rows:
        raise AbstainError(
            Code.TOO_LONG,
            "no answer to time fits the base model's context length: `abstain ingest` some first",
        )
    with tempfile.TemporaryDirectory() as folder:
        runs = make_runs(params, settings.model_copy(update={"features_url": folder}), rows)
        times: dict[Any, list[float]] = {}
        for index, (name, timed) in enumerate(runs.items()):
            progress(index, len(runs))
            run_times = [_time_ms(timed.run, row) for row in (rows[0], *rows)][1:]
            times[name] = [sum(row) for row in zip(run_times, *(times[part] for part in timed.parts), strict=True)]
        progress(len(runs), len(runs))
        return {name: Latency(tuple(values)) for name, values in times.items()}


def _time_ms(run: Callable[[Interaction], object], row: Interaction) -> float:
    start = time.perf_counter()
    run(row)
    return 1000 * (time.perf_counter() - start)


def _make_engine_run(
    params: Params, settings: Settings, make_work: Callable[[Interaction], Sequence[FeatureWork]]
) -> TimedRun:
    base = FeatureStore(params.llm.model, settings)
    return TimedRun(lambda row: base.compute_uncached(expand_requests(params.llm, settings, make_work(row))))


def _make_runs(params: Params, settings: Settings, rows: Sequence[Interaction]) -> dict[str, TimedRun]:
    make_engine_run = partial(_make_engine_run, params, settings)

    def make_scorer_run(scorer: Scorer) -> TimedRun:
        """Time a scorer with an auxiliary model, whose cached outputs are removed before each run."""

        def run(row: Interaction) -> None:
            shutil.rmtree(settings.features, ignore_errors=True)
            scorer.score(FeatureBatch([row], {}))

        return TimedRun(run)

    scorers = [
        replace(scorer, classifier=scorer.encoder.make_classifier()) if isinstance(scorer, CrossEncoder) else scorer
        for scorer in build_scorers(params, settings).scorers
        if scorer.name not in (LENGTH_ONLY, WRITER)
    ]  # an untrained classifier takes as long
    runs = {
        name_site(site): make_engine_run(_make_work((site.make_feature_request(params.llm),)))
        for site in (get_served_site(params), *list_sweep_sites(params))
    }
    runs |= {
        scorer.name: make_engine_run(_make_work(scorer.requires)) if scorer.requires else make_scorer_run(scorer)
        for scorer in scorers
    }

    def under_conditions(row: Interaction) -> list[FeatureWork]:
        return conditions.get_work([row], copies_by_id[row.interaction_id])

    if should_fit_regressors(params):
        conditions = ContextConditions(params.llm, params.perturbation, settings)
        copies = conditions.perturber.perturb(rows)
        copies_by_id = {row.interaction_id: [[copy[i]] for copy in copies] for i, row in enumerate(rows)}
        if copies:
            runs[PERTURBATION] = TimedRun(lambda row: conditions.perturber.compute_uncached([row]))
        runs[REGRESSORS] = make_engine_run(under_conditions)
    components = list_components(params, scorers)

    def make_fusion_run(names: Sequence[str]) -> TimedRun:
        requests = tuple(dict.fromkeys(request for name in names for request in components[name]))
        reading = make_engine_run(
            lambda row: [([row], requests), *(under_conditions(row) if REGRESSORS in names else ())]
        )
        return replace(reading, parts=tuple(name for name in names if not components[name]))

    return runs | {
        fusion: make_fusion_run(names) for fusion, names in list_fusions(params, scorers, components).items()
    }


def _make_work(requests: Sequence[FeatureRequest]) -> Callable[[Interaction], Sequence[FeatureWork]]:
    return lambda row: [([row], requests)]


def name_site(site: ProbeSite) -> str:
    """Return the name of a probe's site among the latencies."""
    chunks = {None: "all chunks", 1: "best chunk"}.get(site.chunks, f"best {site.chunks} chunks")
    return f"probe: layer {site.layer}, {site.site}, {chunks}"


@app.command()
def time_scorers(
    answers: Annotated[int, typer.Option(min=1, help="labelled answers to time, evenly spaced")] = 10,
) -> None:
    """Time one answer at a time, nothing cached: every scorer of params.yaml, and the probe by layer and chunks."""
    settings = load_settings()
    with open_workspace() as workspace:
        params, labelled, _ = read_labelled(workspace)
    indices = np.unique(np.linspace(0, len(labelled.rows), answers, endpoint=False, dtype=int))
    rows = [labelled.rows[index] for index in indices if index < len(labelled.rows)]
    with show_progress(console, "latency") as progress:
        latencies = measure_latencies(params, settings, rows, progress)
    columns = ("mean", "p99" if len(rows) >= MIN_P99_TIMES else "longest")
    table = Table("ms for one answer", *(Column(name, justify="right") for name in columns))
    for name, latency in latencies.items():
        table.add_row(name, f"{latency.mean:,.0f}", f"{latency.p99:,.0f}")
    console.print(table)
    for name, reason in build_scorers(params, settings).unavailable.items():
        console.print(f"skipped: {name}: {reason}")


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.latency", prepare_run)
