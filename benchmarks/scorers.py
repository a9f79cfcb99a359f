"""Compare all scorers on people's verdicts: `python -m benchmarks.scorers`.

Data: *Continually Improving Extractive QA via Human Feedback* (Gao et al., EMNLP 2023), answers that the user who had
asked judged, in nine rounds. An answer is correct if the verdict is Correct. Rounds 1 to 6 train, 7 to 9 test; topics
of both are removed from training. The embedded base model reads the answers, which other models wrote. The probes read
the one of `PLACES` where a linear probe's out-of-fold AUROC on the training answers is best. `--cache` keeps the
features: the first run takes hours on two CPU cores.

Printed: that AUROC by place, the leaderboard with 95 % intervals (bootstrap by topic), the fusion against each
signal that needs no labels, errors withheld at 15 % abstention, the cost of each scorer, and the time without features.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import torch

from abstain.config.params import Params, load_params
from abstain.config.settings import Settings, load_settings
from abstain.core.contracts import ImportedInteraction, Interaction
from abstain.core.labels import Labels
from abstain.learning.estimators.cross_validation import fit_probe
from abstain.learning.estimators.fusion import Fusion, fit_fusion
from abstain.learning.estimators.probes.base import Probe, predict_confidence
from abstain.learning.estimators.regressors.fitting import fit_regressor, regressor_fit
from abstain.learning.estimators.regressors.onnx_regressor import OnnxRegressor
from abstain.learning.estimators.training_rows import TrainingRows
from abstain.learning.evaluation import reviewed_split as evaluation
from abstain.learning.evaluation.leaderboard import build_leaderboard
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig, bootstrap, paired_difference
from abstain.llm.engine.requests import Site
from abstain.llm.features.extraction import FeatureSource
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.features.shard_job import JobStats
from abstain.llm.signals.base import FeatureBatch, Scorer, ScorerUnavailable
from abstain.llm.signals.compute_features import (
    collect_feature_requests,
    compute_missing,
    estimate_forward_tokens,
    read_features,
)
from abstain.llm.signals.context_conditions import ContextConditions
from abstain.llm.signals.feature_plan import ProbeSite, get_served_site
from abstain.llm.signals.out_of_fold import fit_scorer
from abstain.llm.signals.registry import build_scorers
from benchmarks.datasets import qa_from_hf
from benchmarks.full_params import full_params
from benchmarks.rows import MODEL

ROOT = Path(__file__).resolve().parents[1]

FILE = ROOT.parent / "shared" / "data" / "qa_from_hf" / "user_feedback.jsonl.gz"
PLACES = tuple(ProbeSite(layer, site) for site in get_args(Site) for layer in (8, 16, 20, 24, 30))
FIRST_TEST_ROUND = 7
DRAWS, SEED = 1000, 3
TIMED = 2000
TO_BEAT = (
    *("sequence_log_prob", "mean_log_prob", "min_log_prob", "entropy", "context_gain"),
    *("yes_score", "yes_score_tokens", "yes_score_fused", "length_only"),
)
"""The scorers that need no labels, and the answer's length. The fusion is compared with the best of these on the test
answers, where that one is chosen, to its advantage."""


@dataclass(frozen=True)
class Judged:
    """Answers with their verdicts, in order: `correct` 0/1, `topic` and `round`, each (rows,)."""

    interactions: list[Interaction]
    correct: np.ndarray
    topic: np.ndarray
    round: np.ndarray

    def take(self, rows: np.ndarray) -> list[Interaction]:
        return [self.interactions[at] for at in rows.tolist()]


def read_judged(file: Path) -> Judged:
    """Every answer that was judged, those included that say that there is none."""
    rows = [
        ImportedInteraction.model_validate(item)
        for item in qa_from_hf.read([file], abstentions="keep")
        if isinstance(item, dict)
    ]
    reviews = [row.review for row in rows]
    return Judged(
        interactions=[row.to_rows()[0] for row in rows],
        correct=np.array([int(review is not None and review.complete and review.correct) for review in reviews]),
        topic=np.array([row.group for row in rows]),
        round=np.array([int(row.model.rpartition("-")[2]) for row in rows]),
    )


def split(judged: Judged) -> tuple[np.ndarray, np.ndarray]:
    """Indices of training and of test answers; no topic is in both."""
    test = judged.round >= FIRST_TEST_ROUND
    train = ~test & ~np.isin(judged.topic, judged.topic[test])
    return np.flatnonzero(train), np.flatnonzero(test)


@dataclass(frozen=True)
class Fitted:
    """All scorers, fitted on the training answers."""

    scorers: list[Scorer]
    probes: dict[str, Probe]
    regressors: dict[str, OnnxRegressor]
    fusion: Fusion


@dataclass(frozen=True)
class Reader:
    """The features of judged answers, from the cache; probes read the site of `params.llm`."""

    params: Params
    settings: Settings
    judged: Judged

    def at(self, place: ProbeSite) -> Reader:
        """The same, with probes that read `place`."""
        llm = self.params.llm.model_copy(update={"layer": place.layer, "site": place.site})
        return replace(self, params=self.params.model_copy(update={"llm": llm}))

    @property
    def reading(self) -> FeatureRequest:
        return get_served_site(self.params).make_feature_request(self.params.llm)

    def probe_rows(self, rows: np.ndarray) -> TrainingRows:
        correct = torch.tensor(self.judged.correct[rows])
        return TrainingRows(self.states(rows), correct, torch.ones(len(rows)))

    def held_out_auroc(self, train: np.ndarray) -> float:
        """That of a linear probe, out of fold."""
        fit = fit_probe("linear", self.probe_rows(train), self.judged.topic[train], self.params.probe)
        return float(metrics.auroc(self.judged.correct[train], fit.out_of_fold.astype(float)))

    def states(self, rows: np.ndarray) -> list[torch.Tensor]:
        source = FeatureSource(self.params.llm, self.settings, self.reading)
        found = sorted(source.read(self.judged.take(rows)), key=lambda one: one[0])
        return [row.float() for _, row in found]

    @property
    def conditions(self) -> ContextConditions:
        return ContextConditions(self.params.llm, self.params.perturbation, self.settings)

    def answers(self, rows: np.ndarray, scorers: Sequence[Scorer]) -> FeatureBatch:
        return read_features(self.params.llm, self.settings, self.judged.take(rows), collect_feature_requests(scorers))

    def fit(self, train: np.ndarray) -> Fitted:
        labels = Labels(self.judged.correct[train], np.ones(len(train)), self.judged.topic[train])
        scorers = build_scorers(self.params, self.settings).scorers
        answers = self.answers(train, scorers)
        folds = labels.assign_folds(self.params.probe.folds, self.params.probe.seed)
        signals = []
        for scorer in scorers:
            with suppress(ScorerUnavailable):
                signals.append(fit_scorer(scorer, answers, labels, folds))
        rows = self.probe_rows(train)
        fits = {name: fit_probe(name, rows, labels.groups, self.params.probe) for name in self.params.probe.zoo}
        features = self.conditions.build_table(self.judged.take(train))
        learnt = {
            f"{kind}_verdict": fit_regressor(
                kind,
                "verdict",
                features,
                labels.correct.astype(float),
                labels.weight,
                labels.groups,
                regressor_fit(self.params),
            )
            for kind in self.params.regressors.kinds
        }
        out_of_fold = {one.scorer.name: one.out_of_fold for one in signals}
        out_of_fold |= {name: fit.out_of_fold.astype(float) for name, fit in (fits | learnt).items()}
        fusion = fit_fusion(pd.DataFrame(out_of_fold), labels).fusion
        probes = {name: fit.probe for name, fit in fits.items()}
        return Fitted(
            [one.scorer for one in signals], probes, {name: fit.regressor for name, fit in learnt.items()}, fusion
        )

    def score(self, rows: np.ndarray, fitted: Fitted) -> pd.DataFrame:
        """Raw confidences: (rows, scorers)."""
        states = self.states(rows)
        probes = {
            name: predict_confidence(probe, states).numpy().astype(float) for name, probe in fitted.probes.items()
        }
        features = self.conditions.build_table(self.judged.take(rows))
        estimates = {name: regressor.predict(features) for name, regressor in fitted.regressors.items()}
        found = table(fitted.scorers, self.answers(rows, fitted.scorers)).assign(**probes, **estimates)
        return found.assign(fusion=fitted.fusion.score(found))

    def board(self, rows: np.ndarray, scores: pd.DataFrame) -> pd.DataFrame:
        """The leaderboard of `scores`; their probabilities are by calibrators fitted to the same answers, so that these
        figures are fit to be timed, and not to be shown."""
        correct, topics = self.judged.correct[rows], self.judged.topic[rows]
        table = pd.DataFrame({"correct": correct, "inclusion_probability": np.nan})
        known, calibration = evaluation.ReviewedSplit(table, scores, scores), self.params.calibration
        probabilities = evaluation.calibrate_scores(known, {"": scores}, calibration.method)[""]
        return build_leaderboard(
            correct, scores, probabilities, topics, None, BootstrapConfig(DRAWS, SEED), champion="fusion"
        )


def progress(done: int, total: int) -> None:
    print(f"{done}/{total}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scorers", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cache", type=Path, help="folder that keeps what the base model read")
    parser.add_argument("--model", default=MODEL, help="an embedded model, a Hugging Face id or a folder")
    parser.add_argument("--rows", type=int, default=None, help="only so many training, and so many test answers")
    parser.add_argument("--without", nargs="*", default=[], help="scorers to leave out")
    parser.add_argument("--params", type=Path, help="what is fitted, and how; default: the full comparison")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        params = load_params(asked.params) if asked.params else full_params()
        measure(params, asked.model, asked.cache or Path(folder), asked.rows, asked.without)


def measure(params: Params, model: str, cache: Path, most: int | None, without: list[str]) -> None:
    params = params.model_copy(update={"llm": params.llm.model_copy(update={"model": model})})
    listed = tuple(name for name in params.scorers.enabled if name not in without)
    params = params.model_copy(update={"scorers": params.scorers.model_copy(update={"enabled": listed})})
    settings = load_settings().model_copy(update={"features_url": str(cache)})
    judged = read_judged(FILE)
    train, test = (rows[:most] for rows in split(judged))
    kept = np.concatenate([train, test])
    topics = len(set(judged.topic[test]))
    print(f"{len(train)} training answers, {len(test)} test answers of {topics} topics", flush=True)
    print(f"correct: {judged.correct[train].mean():.1%} and {judged.correct[test].mean():.1%}", flush=True)
    reader, available = Reader(params, settings, judged), build_scorers(params, settings)
    scorers = available.scorers
    for name, why in available.unavailable.items():
        print(f"skipped: {name}: {why}", flush=True)
    everywhere = tuple(place.make_feature_request(params.llm) for place in PLACES)
    cost = compute_missing(
        params.llm, settings, [(judged.take(kept), (*everywhere, *collect_feature_requests(scorers)))], progress
    )
    cost += sum(reader.conditions.compute_missing(judged.take(kept), progress), JobStats(0, 0, 0))
    print(f"{cost.forward_tokens} tokens were run for passes of {cost.pass_tokens}", flush=True)
    found = {place: reader.at(place).held_out_auroc(train) for place in PLACES}
    print(
        "out-of-fold AUROC by place:",
        ", ".join(f"{place.site} {place.layer} {auroc:.3f}" for place, auroc in found.items()),
        flush=True,
    )
    reader = reader.at(max(found, key=lambda place: found[place]))
    readings = (reader.reading, *collect_feature_requests(scorers))
    started = time.perf_counter()
    fitted = reader.fit(train)
    print(f"fitted, with out-of-fold confidences, in {time.perf_counter() - started:.0f} s", flush=True)
    many = kept[:TIMED]
    started = time.perf_counter()
    reader.board(many, reader.score(many, fitted))
    print(
        f"{len(many)} answers scored and calibrated, {DRAWS} draws of every metric: "
        f"{time.perf_counter() - started:.0f} s\n",
        flush=True,
    )
    scores = reader.score(test, fitted)
    tokens = {one.name: one.requires for one in scorers} | dict.fromkeys(params.probe.zoo, (reader.reading,))
    tokens["fusion"] = readings
    costs = {name: estimate_forward_tokens(params.llm, settings, judged.take(test), of) for name, of in tokens.items()}
    costs |= dict.fromkeys(fitted.regressors, reader.conditions.forward_tokens(judged.take(test)))
    costs["fusion"] += reader.conditions.forward_tokens(judged.take(test))
    show(reader.board(test, scores), costs)
    compare(judged, test, scores)


def table(fitted: Sequence[Scorer], answers: FeatureBatch) -> pd.DataFrame:
    return pd.DataFrame({one.name: one.score(answers) for one in fitted})


def show(board: pd.DataFrame, tokens: dict[str, float]) -> None:
    print("| scorer | AUROC | 95 % interval | AUPRC | AURC | error recall at 15 % withheld | x random | tokens |")
    print("| --- | --: | --- | --: | --: | --: | --- | --: |")
    for row in board.sort_values("auroc", ascending=False).to_dict("records"):
        print(
            f"| `{row['scorer']}` | {row['auroc']:.3f} | {row['auroc_low']:.3f} to {row['auroc_high']:.3f} "
            f"| {row['auprc']:.3f} | {row['aurc']:.3f} | {row['error_recall_at_15pct']:.1%} "
            f"| {row['error_recall_over_random']:.2f} "
            f"({row['error_recall_over_random_low']:.2f} to {row['error_recall_over_random_high']:.2f}) "
            f"| {tokens.get(row['scorer'], 0):.0f} |"
        )


def compare(judged: Judged, test: np.ndarray, scores: pd.DataFrame) -> None:
    """The fusion against each of `TO_BEAT`, on the same resamples of topics."""
    figures = {name: partial(metrics.auroc, judged.correct[test], scores[name].to_numpy()) for name in scores}
    found = bootstrap(figures, judged.topic[test], DRAWS, SEED)
    others = sorted({*TO_BEAT} & figures.keys())
    best = max(others, key=lambda name: found[name].value)
    for name in others:
        difference = paired_difference(found["fusion"], found[name])
        low, high = difference.interval
        mark = "  <- the best of them" if name == best else ""
        says = f"{difference.value:+.3f} [{low:+.3f}, {high:+.3f}], better with chance {difference.probability_positive:.3f}"
        print(f"fusion - {name}: {says}{mark}")


if __name__ == "__main__":
    main()
