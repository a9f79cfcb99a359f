"""Baselines without perturbation on the same answers: likelihood, Yes-score and length, compared with the regressor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.core.labels import Labels
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig, Estimate, bootstrap, paired_difference
from abstain.llm.engine.loading import find_model, load_tokenizer
from abstain.llm.features.feature_store import OnProgress
from abstain.llm.features.shard_job import JobStats, ShardRunner
from abstain.llm.signals.base import FeatureBatch, Signal
from abstain.llm.signals.compute_features import collect_feature_requests, compute_missing, read_features
from abstain.llm.signals.length import LengthOnly
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS
from abstain.llm.signals.yes_no import make_yes_no_signals


@dataclass(frozen=True)
class Baselines:
    """Simple confidences in `answers`, of which the first `train` are for training: `length_only` learns from these.

    `correctness` is (answers,), nan if it is unknown. An answer is correct from `threshold` on.
    """

    llm: LLMParams
    settings: Settings
    answers: Sequence[Interaction]
    train: int
    correctness: np.ndarray
    threshold: float

    def compute_missing(self, progress: OnProgress, runner: ShardRunner | None) -> JobStats:
        """Compute the features that the cache lacks for the evaluation answers, and return their cost."""
        work = [(self.answers[self.train :], collect_feature_requests(self._signals()))]
        return compute_missing(self.llm, self.settings, work, progress, runner)

    def compare(self, predicted: np.ndarray, groups: np.ndarray, resamples: BootstrapConfig) -> list[dict[str, Any]]:
        """Compare the regressor with each baseline on the same resamples.

        Args:
            predicted: Scores of the regressor for the evaluation answers, (answers,).
            groups: Paragraphs of these answers, (answers,).
            resamples: Number and seed of the resamples.

        Returns:
            The `auroc` of each `baseline`, the best first, and how far the regressor is `ahead` of it; both with `_low`
            and `_high`, 95 %.
        """
        is_known, correct = ~np.isnan(self.correctness), (self.correctness >= self.threshold).astype(int)
        train = Labels(correct[: self.train], is_known[: self.train].astype(float), np.zeros(self.train))
        is_known, correct = is_known[self.train :], correct[self.train :]
        metrics_by_name = {
            name: partial(metrics.auroc, correct[is_known], scores[is_known])
            for name, scores in self._scores(train).items()
        }
        regressor_auroc = partial(metrics.auroc, correct[is_known], predicted[is_known])
        estimates = bootstrap(
            {**metrics_by_name, "": regressor_auroc},
            groups[is_known],
            n_resamples=resamples.n_resamples,
            seed=resamples.seed,
        )
        regressor = estimates.pop("")
        lines = [
            {
                "baseline": name,
                **_interval("auroc", estimate),
                **_interval("ahead", paired_difference(regressor, estimate)),
            }
            for name, estimate in estimates.items()
        ]
        return sorted(lines, key=lambda line: (np.isnan(line["auroc"]), -line["auroc"]))

    def _scores(self, train: Labels) -> dict[str, np.ndarray]:
        signals = self._signals()
        answers = read_features(self.llm, self.settings, self.answers[self.train :], collect_feature_requests(signals))
        length = LengthOnly().fit(FeatureBatch(self.answers[: self.train], {}), train)
        return {**{signal.name: signal.score(answers) for signal in signals}, length.name: length.score(answers)}

    def _signals(self) -> tuple[Signal, ...]:
        return (*LIKELIHOOD_SIGNALS, *make_yes_no_signals(load_tokenizer(find_model(self.llm.model, self.settings))))


def _interval(name: str, estimate: Estimate) -> dict[str, float]:
    low, high = estimate.interval
    return {name: estimate.value, f"{name}_low": low, f"{name}_high": high}
