"""What the writer's own scores are worth: `python -m benchmarks.writer [simulation | training | holdout ...]`.

simulation: AUROC of `writer` minus that of the better of two alternatives, ranks within versions alone and pooled ranks
alone, on drawn answers of versions with different scales.

training: the same ways to rank on people's verdicts (*qa_from_hf*, with and without its refusals), alone and fused with
the linear probe; on 300, 1,300 and all training answers, out of fold by topic. The embedded model reads the answers
once, which takes minutes; `--cache` keeps that.

holdout: `writer` on the hold-out that params.yaml splits off by topic.

Intervals are 95 % (bootstrap by topic). Answers without a score count as the least confident ones.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from abstain.config.params import load_params
from abstain.config.settings import load_settings
from abstain.core.contracts import Interaction
from abstain.core.labels import Labels
from abstain.core.text import is_refusal
from abstain.data.store.splits import assign_splits
from abstain.learning.estimators.cross_validation import fit_probe
from abstain.learning.estimators.fusion import fit_fusion
from abstain.learning.metrics.bootstrap import Estimate, bootstrap, paired_difference
from abstain.learning.metrics.weighted_metrics import auroc
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.out_of_fold import fit_scorer
from abstain.llm.signals.writer import STRENGTHS, WriterScores
from benchmarks.labelled_answers import (
    FILE,
    N_RESAMPLES,
    ROOT,
    SEED,
    LabelledAnswers,
    make_probe_rows,
    read_labelled_answers,
)

PARAMS = load_params(ROOT / "params.yaml")
WAYS = {
    "within versions": WriterScores(PARAMS.labels.refusals, strength=STRENGTHS[0]),
    "pooled": WriterScores(PARAMS.labels.refusals, strength=STRENGTHS[-1]),
    "partially pooled": WriterScores(PARAMS.labels.refusals),
}
SIZES = (300, 1300, None)
N_TEST = 60
"""Test answers of each simulated version."""


@dataclass(frozen=True)
class Scenario:
    """How the scales of versions differ: score = shift + scale * (quality + noise) + drift * time.

    Attributes:
        shift: Standard deviation of the shifts.
        log_scale: Standard deviation of the logarithms of the scales.
        drift: Change of the scores from the first answer of a version to the last.
        n_other: Every so many versions have exponentials of such scores, on a range of their own; 0: none has.
    """

    shift: float = 0.0
    log_scale: float = 0.0
    drift: float = 0.0
    n_other: int = 0


SCENARIOS = {
    "one scale": Scenario(),
    "another shift each": Scenario(shift=1.0),
    "shifts that hardly overlap": Scenario(shift=3.0),
    "another width each": Scenario(log_scale=0.7),
    "drift within a version": Scenario(drift=2.0),
    "a third on another range": Scenario(n_other=3),
    "half on another range, drift": Scenario(drift=1.0, n_other=2),
}
VERSION_SIZES = {
    "30 of 5": (5,) * 30,
    "30 of 20": (20,) * 30,
    "10 of 50": (50,) * 10,
    "5 of 200": (200,) * 5,
    "3 of 500": (500,) * 3,
    "20 of 5 to 500": (5, 20, 100, 500) * 5,
}


def simulate_gain(scenario: Scenario, sizes: Sequence[int], seed: int) -> float:
    """Return the AUROC of partial pooling minus that of the better alternative, on new answers of the same versions.

    Args:
        scenario: How the scales differ.
        sizes: Training answers of each version.
        seed: Seed of the answers.
    """
    generator = np.random.default_rng(seed)
    train, test = (list[Interaction](), list[int]()), (list[Interaction](), list[int]())
    for version, size in enumerate(sizes):
        shift, scale = generator.normal(0, scenario.shift), np.exp(generator.normal(0, scenario.log_scale))
        for (rows, labels), number in ((train, size), (test, N_TEST)):
            time, quality = generator.uniform(size=number), generator.normal(size=number)
            scores = shift + scale * (quality + generator.normal(0, 0.7, number)) + scenario.drift * time
            if scenario.n_other and version % scenario.n_other == 0:
                scores = 100 + 50 * np.exp(scores)
            labels.extend(
                (generator.uniform(size=number) < 1 / (1 + np.exp(-0.3 - 1.2 * quality))).astype(int).tolist()
            )
            rows.extend(_make_answer(f"m@{version}", len(rows) + index, score) for index, score in enumerate(scores))
    correct = np.array(train[1])
    fitted = {
        name: way.fit(FeatureBatch(train[0], {}), Labels(correct, np.ones(len(correct)), np.arange(len(correct))))
        for name, way in WAYS.items()
    }
    aurocs = {
        name: float(auroc(np.array(test[1]), way.score(FeatureBatch(test[0], {})))) for name, way in fitted.items()
    }
    return aurocs.pop("partially pooled") - max(aurocs.values())


def _make_answer(model: str, number: int, score: float) -> Interaction:
    return Interaction(
        interaction_id=f"{model}-{number}",
        asked_at=datetime(2026, 1, 1, tzinfo=UTC),
        question="?",
        answer="!",
        contexts=(),
        model=model,
        writer_scores={"score": float(score)},
    )


def simulate(n_seeds: int) -> Iterator[str]:
    """Yield a table of the mean gains of partial pooling, by scenario and sizes of the versions."""
    yield f"| scales | {' | '.join(VERSION_SIZES)} |"
    yield f"| --- | {' | '.join('--:' for _ in VERSION_SIZES)} |"
    for name, scenario in SCENARIOS.items():
        gains = [
            np.mean([simulate_gain(scenario, sizes, seed) for seed in range(n_seeds)])
            for sizes in VERSION_SIZES.values()
        ]
        yield f"| {name} | {' | '.join(f'{gain:+.3f}' for gain in gains)} |"


def split_by_topic(dataset: LabelledAnswers) -> np.ndarray:
    """Return the split of each answer, (rows,), as params.yaml assigns it; no round is frozen."""
    asked_at = pd.Series([interaction.asked_at for interaction in dataset.interactions])
    every_round = PARAMS.split.model_copy(update={"holdout_frozen_at": None})
    return assign_splits(pd.Series(dataset.topic), asked_at, every_round).to_numpy()


def find_refusals(dataset: LabelledAnswers) -> np.ndarray:
    """Return which answers are refusals, bool (rows,)."""
    return np.array([is_refusal(row.answer, PARAMS.labels.refusals) for row in dataset.interactions])


def compare_ways(dataset: LabelledAnswers, cache: Path) -> Iterator[str]:
    """Yield a table of the ways to rank on training answers, out of fold by topic."""
    yield "| answers | probe | ranked | alone | more than within versions | with the probe | more than the probe |"
    yield "| --- | --: | --- | --: | --- | --: | --- |"
    settings = load_settings().model_copy(update={"features_url": str(cache)})
    train = np.random.default_rng(SEED).permutation(np.flatnonzero(split_by_topic(dataset) == "train"))
    refusal = find_refusals(dataset)
    for with_refusals in (True, False):
        candidates = train if with_refusals else train[~refusal[train]]
        for size in SIZES:
            rows = candidates[:size]
            labels = Labels(dataset.correct[rows], np.ones(len(rows)), dataset.topic[rows])
            folds = labels.assign_folds(PARAMS.probe.folds, PARAMS.probe.seed)
            states = make_probe_rows(dataset, rows, PARAMS, settings)
            probe = fit_probe("linear", states, labels.groups, PARAMS.probe).out_of_fold
            scores = {"probe": probe.astype(float)}
            for name, way in WAYS.items():
                scores[name] = fit_scorer(way, FeatureBatch(dataset.take(rows), {}), labels, folds).out_of_fold
                both = pd.DataFrame({"probe": scores["probe"], "writer": scores[name]})
                scores[f"fusion {name}"] = fit_fusion(both, labels).out_of_fold
            aurocs = bootstrap(
                {name: partial(auroc, labels.correct, values) for name, values in scores.items()},
                labels.groups,
                n_resamples=N_RESAMPLES,
                seed=SEED,
            )
            title = f"{len(rows):,} {'with' if with_refusals else 'without'} refusals"
            for name in WAYS:
                gain = paired_difference(aurocs[name], aurocs["within versions"])
                fused = paired_difference(aurocs[f"fusion {name}"], aurocs["probe"])
                yield (
                    f"| {title} | {aurocs['probe'].value:.3f} | {name} | {aurocs[name].value:.3f} | {_format(gain)} "
                    f"| {aurocs[f'fusion {name}'].value:.3f} | {_format(fused)} |"
                )


def _format(estimate: Estimate) -> str:
    low, high = estimate.interval
    return f"{estimate.value:+.3f} ({low:+.3f} to {high:+.3f})"


class WriterResult(NamedTuple):
    """Result on one part of the answers."""

    answers: int
    unscored: float
    auroc: Estimate


def measure_holdout(dataset: LabelledAnswers) -> dict[str, WriterResult]:
    """Return the result of `writer` by part of the answers, trained on the training split."""
    split, refusal = split_by_topic(dataset), find_refusals(dataset)
    train, holdout = np.flatnonzero(split == "train"), np.flatnonzero(split == "holdout")
    labels = Labels(dataset.correct[train], np.ones(len(train)), dataset.topic[train])
    folds = labels.assign_folds(PARAMS.probe.folds, PARAMS.probe.seed)
    fitted = fit_scorer(WAYS["partially pooled"], FeatureBatch(dataset.take(train), {}), labels, folds)
    scores = np.full(len(split), np.nan)
    scores[train] = fitted.out_of_fold
    scores[holdout] = fitted.scorer.score(FeatureBatch(dataset.take(holdout), {}))
    parts = {
        "training, out of fold": train,
        "hold-out": holdout,
        "hold-out, answers": holdout[~refusal[holdout]],
        "hold-out, refusals": holdout[refusal[holdout]],
    }
    return {
        name: _measure_part(dataset.correct[rows], scores[rows], dataset.topic[rows]) for name, rows in parts.items()
    }


def _measure_part(correct: np.ndarray, scores: np.ndarray, topics: np.ndarray) -> WriterResult:
    estimate = bootstrap({"": partial(auroc, correct, scores)}, topics, n_resamples=N_RESAMPLES, seed=SEED)[""]
    return WriterResult(len(correct), float(np.isnan(scores).mean()), estimate)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.writer", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("parts", nargs="*", help="simulation, training, holdout; default: all")
    parser.add_argument("--cache", type=Path, help="folder that keeps what the base model read")
    parser.add_argument("--seeds", type=int, default=20, help="simulations of each cell")
    options = parser.parse_args(arguments)
    parts = options.parts or ["simulation", "training", "holdout"]
    if "simulation" in parts:
        for line in simulate(options.seeds):
            print(line, flush=True)
    if "training" in parts:
        with tempfile.TemporaryDirectory() as folder:
            for line in compare_ways(read_labelled_answers(FILE), options.cache or Path(folder)):
                print(line, flush=True)
    if "holdout" in parts:
        for name, result in measure_holdout(read_labelled_answers(FILE)).items():
            low, high = result.auroc.interval
            print(
                f"{name}: {result.answers} answers, {result.unscored:.1%} without a score, "
                f"AUROC {result.auroc.value:.3f} ({low:.3f} to {high:.3f})"
            )


if __name__ == "__main__":
    main()
