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

from abstain.config.params import Params, Site, load_params
from abstain.config.settings import Settings, load_settings
from abstain.core.contracts import ImportedInteraction, Interaction
from abstain.core.labels import Labels
from abstain.learning.estimators.cross_validation import fit_probe
from abstain.learning.estimators.fusion import Fusion, fit_fusion
from abstain.learning.estimators.probes.base import Probe, predict_confidence
from abstain.learning.estimators.regressors.fitting import fit_regressor, make_regressor_fit
from abstain.learning.estimators.regressors.onnx_regressor import OnnxRegressor
from abstain.learning.estimators.training_rows import TrainingRows
from abstain.learning.evaluation import reviewed_split
from abstain.learning.evaluation.leaderboard import build_leaderboard
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig, bootstrap, paired_difference
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
SITES = tuple(ProbeSite(layer, site) for site in get_args(Site) for layer in (8, 16, 20, 24, 30))
FIRST_TEST_ROUND = 7
N_RESAMPLES, SEED = 1000, 3
TIMED = 2000
TO_BEAT = (
    *("sequence_log_prob", "mean_log_prob", "min_log_prob", "entropy", "context_gain"),
    *("yes_score", "yes_score_tokens", "yes_score_fused", "length_only"),
)
"""The scorers that need no labels, and the answer's length. The fusion is compared with the best of these on the test
answers, where that one is chosen, to its advantage."""


@dataclass(frozen=True)
class LabelledAnswers:
    """Answers with their labels, in order: `correct` 0/1, `topic` and `round`, each (rows,)."""

    interactions: list[Interaction]
    correct: np.ndarray
    topic: np.ndarray
    round: np.ndarray

    def take(self, rows: np.ndarray) -> list[Interaction]:
        """Return the interactions at `rows`."""
        return [self.interactions[row] for row in rows.tolist()]


def read_labelled_answers(file: Path) -> LabelledAnswers:
    """Read every labelled answer, including those that say that there is none."""
    rows = [
        ImportedInteraction.model_validate(item)
        for item in qa_from_hf.read([file], abstentions="keep")
        if isinstance(item, dict)
    ]
    reviews = [row.review for row in rows]
    return LabelledAnswers(
        interactions=[row.to_rows()[0] for row in rows],
        correct=np.array([int(review is not None and review.complete and review.correct) for review in reviews]),
        topic=np.array([row.group for row in rows]),
        round=np.array([int(row.model.rpartition("-")[2]) for row in rows]),
    )


def split_rounds(dataset: LabelledAnswers) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of training and of test answers; no topic is in both."""
    is_test = dataset.round >= FIRST_TEST_ROUND
    is_train = ~is_test & ~np.isin(dataset.topic, dataset.topic[is_test])
    return np.flatnonzero(is_train), np.flatnonzero(is_test)


@dataclass(frozen=True)
class FittedScorers:
    """All scorers, fitted to the training answers."""

    scorers: list[Scorer]
    probes: dict[str, Probe]
    regressors: dict[str, OnnxRegressor]
    fusion: Fusion


@dataclass(frozen=True)
class Reader:
    """Features of labelled answers, from the cache; probes read the site of `params.llm`."""

    params: Params
    settings: Settings
    dataset: LabelledAnswers

    def with_site(self, site: ProbeSite) -> Reader:
        """Return a reader whose probes read `site`."""
        llm = self.params.llm.model_copy(update={"layer": site.layer, "site": site.site})
        return replace(self, params=self.params.model_copy(update={"llm": llm}))

    @property
    def probe_request(self) -> FeatureRequest:
        """Feature request of the probes."""
        return get_served_site(self.params).make_feature_request(self.params.llm)

    def make_probe_rows(self, rows: np.ndarray) -> TrainingRows:
        """Return the training rows of the probes."""
        correct = torch.tensor(self.dataset.correct[rows])
        return TrainingRows(self.read_states(rows), correct, torch.ones(len(rows)))

    def measure_auroc(self, train: np.ndarray) -> float:
        """Return the out-of-fold AUROC of a linear probe."""
        fit = fit_probe("linear", self.make_probe_rows(train), self.dataset.topic[train], self.params.probe)
        return float(metrics.auroc(self.dataset.correct[train], fit.out_of_fold.astype(float)))

    def read_states(self, rows: np.ndarray) -> list[torch.Tensor]:
        """Read the states of the answers at `rows`."""
        source = FeatureSource(self.params.llm, self.settings, self.probe_request)
        states = sorted(source.read(self.dataset.take(rows)), key=lambda pair: pair[0])
        return [row.float() for _, row in states]

    @property
    def conditions(self) -> ContextConditions:
        """Conditions of the context for the regressors."""
        return ContextConditions(self.params.llm, self.params.perturbation, self.settings)

    def read_batch(self, rows: np.ndarray, scorers: Sequence[Scorer]) -> FeatureBatch:
        """Read the features of the answers at `rows` that `scorers` require."""
        return read_features(self.params.llm, self.settings, self.dataset.take(rows), collect_feature_requests(scorers))

    def fit(self, train: np.ndarray) -> FittedScorers:
        """Fit all scorers to the answers at `train`."""
        labels = Labels(self.dataset.correct[train], np.ones(len(train)), self.dataset.topic[train])
        scorers = build_scorers(self.params, self.settings).scorers
        answers = self.read_batch(train, scorers)
        folds = labels.assign_folds(self.params.probe.folds, self.params.probe.seed)
        signals = []
        for scorer in scorers:
            with suppress(ScorerUnavailable):
                signals.append(fit_scorer(scorer, answers, labels, folds))
        rows = self.make_probe_rows(train)
        params = self.params.probe
        fits = {name: fit_probe(name, rows, labels.groups, params) for name in params.architectures}
        features = self.conditions.build_table(self.dataset.take(train))
        regressor_fits = {
            f"{kind}_label": fit_regressor(
                kind,
                "label",
                features,
                labels.correct.astype(float),
                labels.weight,
                labels.groups,
                make_regressor_fit(self.params),
            )
            for kind in self.params.regressors.kinds
        }
        out_of_fold = {fitted_signal.scorer.name: fitted_signal.out_of_fold for fitted_signal in signals}
        out_of_fold |= {name: fit.out_of_fold.astype(float) for name, fit in (fits | regressor_fits).items()}
        fusion = fit_fusion(pd.DataFrame(out_of_fold), labels).fusion
        probes = {name: fit.probe for name, fit in fits.items()}
        return FittedScorers(
            [fitted_signal.scorer for fitted_signal in signals],
            probes,
            {name: fit.regressor for name, fit in regressor_fits.items()},
            fusion,
        )

    def score(self, rows: np.ndarray, fitted: FittedScorers) -> pd.DataFrame:
        """Return the raw confidences, (rows, scorers)."""
        states = self.read_states(rows)
        probes = {
            name: predict_confidence(probe, states).numpy().astype(float) for name, probe in fitted.probes.items()
        }
        features = self.conditions.build_table(self.dataset.take(rows))
        estimates = {name: regressor.predict(features) for name, regressor in fitted.regressors.items()}
        scores = make_table(fitted.scorers, self.read_batch(rows, fitted.scorers)).assign(**probes, **estimates)
        return scores.assign(fusion=fitted.fusion.score(scores))

    def make_leaderboard(self, rows: np.ndarray, scores: pd.DataFrame) -> pd.DataFrame:
        """Return the leaderboard of `scores`.

        The calibrators are fitted to the same answers, so these metrics are fit to be timed, and not to be shown.
        """
        correct, topics = self.dataset.correct[rows], self.dataset.topic[rows]
        table = pd.DataFrame({"correct": correct, "group": topics, "inclusion_probability": np.nan})
        reviewed = reviewed_split.ReviewedSplit(table, scores, scores)
        method = self.params.calibration.method
        calibrated = replace(reviewed, calibrated=reviewed_split.calibrate_scores(reviewed, {"": scores}, method)[""])
        board = build_leaderboard(calibrated, BootstrapConfig(N_RESAMPLES, SEED), champion="fusion")
        return pd.DataFrame([{"scorer": name, **row.to_dict()} for name, row in board.items()])


def print_progress(done: int, total: int) -> None:
    """Print the progress."""
    print(f"{done}/{total}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scorers", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cache", type=Path, help="folder that keeps what the base model read")
    parser.add_argument("--model", default=MODEL, help="an embedded model, a Hugging Face id or a folder")
    parser.add_argument("--rows", type=int, default=None, help="only so many training, and so many test answers")
    parser.add_argument("--without", nargs="*", default=[], help="scorers to leave out")
    parser.add_argument("--params", type=Path, help="what is fitted, and how; default: the full comparison")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        params = load_params(options.params) if options.params else full_params()
        measure(params, options.model, options.cache or Path(folder), options.rows, options.without)


def measure(params: Params, model: str, cache: Path, max_rows: int | None, without: list[str]) -> None:
    """Fit and compare all scorers, and print the tables."""
    params = params.model_copy(update={"llm": params.llm.model_copy(update={"model": model})})
    enabled = tuple(name for name in params.scorers.enabled if name not in without)
    params = params.model_copy(update={"scorers": params.scorers.model_copy(update={"enabled": enabled})})
    settings = load_settings().model_copy(update={"features_url": str(cache)})
    dataset = read_labelled_answers(FILE)
    train, test = (rows[:max_rows] for rows in split_rounds(dataset))
    all_rows = np.concatenate([train, test])
    topics = len(set(dataset.topic[test]))
    print(f"{len(train)} training answers, {len(test)} test answers of {topics} topics", flush=True)
    print(f"correct: {dataset.correct[train].mean():.1%} and {dataset.correct[test].mean():.1%}", flush=True)
    reader, available = Reader(params, settings, dataset), build_scorers(params, settings)
    scorers = available.scorers
    for name, reason in available.unavailable.items():
        print(f"skipped: {name}: {reason}", flush=True)
    site_requests = tuple(site.make_feature_request(params.llm) for site in SITES)
    cost = compute_missing(
        params.llm,
        settings,
        [(dataset.take(all_rows), (*site_requests, *collect_feature_requests(scorers)))],
        print_progress,
    )
    cost += sum(reader.conditions.compute_missing(dataset.take(all_rows), print_progress), JobStats(0, 0, 0))
    print(f"{cost.forward_tokens} tokens were run for passes of {cost.pass_tokens}", flush=True)
    auroc_by_site = {site: reader.with_site(site).measure_auroc(train) for site in SITES}
    print(
        "out-of-fold AUROC by place:",
        ", ".join(f"{site.site} {site.layer} {auroc:.3f}" for site, auroc in auroc_by_site.items()),
        flush=True,
    )
    reader = reader.with_site(max(auroc_by_site, key=lambda site: auroc_by_site[site]))
    fusion_requests = (reader.probe_request, *collect_feature_requests(scorers))
    started = time.perf_counter()
    fitted = reader.fit(train)
    print(f"fitted, with out-of-fold confidences, in {time.perf_counter() - started:.0f} s", flush=True)
    timed = all_rows[:TIMED]
    started = time.perf_counter()
    reader.make_leaderboard(timed, reader.score(timed, fitted))
    print(
        f"{len(timed)} answers scored and calibrated, {N_RESAMPLES} draws of every metric: "
        f"{time.perf_counter() - started:.0f} s\n",
        flush=True,
    )
    scores = reader.score(test, fitted)
    tokens = {scorer.name: scorer.requires for scorer in scorers} | dict.fromkeys(
        params.probe.architectures, (reader.probe_request,)
    )
    tokens["fusion"] = fusion_requests
    costs = {
        name: estimate_forward_tokens(params.llm, settings, dataset.take(test), requests)
        for name, requests in tokens.items()
    }
    costs |= dict.fromkeys(fitted.regressors, reader.conditions.estimate_forward_tokens(dataset.take(test)))
    costs["fusion"] += reader.conditions.estimate_forward_tokens(dataset.take(test))
    print_leaderboard(reader.make_leaderboard(test, scores), costs)
    print_comparison(dataset, test, scores)


def make_table(scorers: Sequence[Scorer], answers: FeatureBatch) -> pd.DataFrame:
    """Return the confidences of all scorers as a table."""
    return pd.DataFrame({scorer.name: scorer.score(answers) for scorer in scorers})


def print_leaderboard(board: pd.DataFrame, tokens: dict[str, float]) -> None:
    """Print the leaderboard with the tokens of each scorer."""
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


def print_comparison(dataset: LabelledAnswers, test: np.ndarray, scores: pd.DataFrame) -> None:
    """Print the fusion against each of `TO_BEAT`, on the same resamples of topics."""
    metrics_by_name = {name: partial(metrics.auroc, dataset.correct[test], scores[name].to_numpy()) for name in scores}
    estimates = bootstrap(metrics_by_name, dataset.topic[test], n_resamples=N_RESAMPLES, seed=SEED)
    rivals = sorted({*TO_BEAT} & metrics_by_name.keys())
    best = max(rivals, key=lambda name: estimates[name].value)
    for name in rivals:
        difference = paired_difference(estimates["fusion"], estimates[name])
        low, high = difference.interval
        note = "  <- the best of them" if name == best else ""
        chance = f"better with chance {difference.probability_positive:.3f}"
        text = f"{difference.value:+.3f} [{low:+.3f}, {high:+.3f}], {chance}"
        print(f"fusion - {name}: {text}{note}")


if __name__ == "__main__":
    main()
