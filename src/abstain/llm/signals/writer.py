"""Scores that the assistant itself gave its answer (Kamath et al. 2020: the model's own confidence).

Notes:

* A score becomes a rank among the training answers of the same kind, answers or refusals. Ranking needs no labels.
* Log-probabilities of one version of the assistant (`Interaction.model`) are not quite on the scale of another's. The
  rank among the n answers of the same version does not depend on that, but is uncertain if n is small; the rank among
  all versions is the opposite. The rank used is their mean with weights n and `strength` (partial pooling). The
  strength is the one of `STRENGTHS` that predicts correctness best out of fold.
* Scores of a version that hardly overlap with those of all others, such as the marks of another prompt, are ranked
  among themselves only, and are no part of the pool.
* A logistic regression of correctness combines the ranks, with separate slopes for refusals: how sure an assistant is
  that there is no answer means something else than how sure it is of one. A score may count either way.
* The log-probabilities of the tokens of the answer are scores, too, with the statistics of `likelihood.py`; no prompt
  is run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.labels import Labels
from abstain.core.scorer_names import WRITER
from abstain.core.text import is_refusal
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch, ScorerUnavailable

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

STRENGTHS = (0.0, 5.0, 20.0, 100.0, 500.0, 1e6)
"""Weights of the rank among all versions, in answers; from 0, the rank within the version alone, to pooled alone."""
DEFAULT_STRENGTH = 20.0
"""Where the training answers are of too few groups to choose."""
MIN_DISTANCE, MAX_P_VALUE = 0.9, 0.001
"""A version is ranked apart if the Kolmogorov-Smirnov distance of its scores from all others' is so large. Smaller
differences are what the strength is for."""
MAX_LISTED_VERSIONS = 5
"""Versions that a message names."""

Key = tuple[str, bool, str]
"""Version of the assistant, whether the answer is a refusal, and name of the score."""


@dataclass(frozen=True)
class WriterScores:
    """Logistic regression of correctness on ranks of the scores of the writer.

    Attributes:
        refusals: Beginnings of refusals.
        name: Name on the leaderboard.
        requires: No feature requests.
        scores: Scores of the training answers, float64, ascending.
        separate_keys: Keys of `scores` that are ranked apart.
        strength: Weight of the rank among all versions, in answers; `fit` chooses it if it is None.
        coefficient: Coefficients of the columns of `build_inputs`.
        intercept: Intercept of the regression.
    """

    refusals: tuple[str, ...]
    name: str = WRITER
    requires: tuple[FeatureRequest, ...] = ()
    scores: Mapping[Key, np.ndarray] = field(default_factory=dict)
    separate_keys: frozenset[Key] = frozenset()
    strength: float | None = None
    coefficient: tuple[float, ...] = ()
    intercept: float = 0.0

    def fit(self, batch: FeatureBatch, labels: Labels) -> WriterScores:
        """Fit ranks and regression to training answers.

        Args:
            batch: Training answers.
            labels: Labels and weights of the same rows.

        Returns:
            The fitted scorer.

        Raises:
            ScorerUnavailable: No answers have scores of their writer, or all of these are correct, or incorrect.
        """
        table = self._read_scores(batch)
        scores = table.sort_by_key()
        if not scores:
            raise ScorerUnavailable(
                Code.NO_ROWS,
                "no training answer has scores of its writer: ingest rows with `writer_scores` (docs/data.md)",
            )
        ranked = replace(self, scores=scores, separate_keys=frozenset(key for key in scores if _is_apart(key, scores)))
        strength = ranked._choose_strength(table, labels) if self.strength is None else self.strength
        inputs, is_ranked = ranked._rank(table).combine(strength)
        train_labels = labels.subset(is_used := is_ranked & (labels.weight > 0))
        if len(np.unique(train_labels.correct)) < 2:
            raise ScorerUnavailable(
                Code.TOO_FEW_LABELS,
                "the training answers with scores of their writer are of one class only: bring feedback of both kinds",
            )
        scaler, model = _fit_regression(inputs[is_used], train_labels).named_steps.values()
        coefficient = model.coef_[0] / scaler.scale_
        intercept = float(model.intercept_[0] - coefficient @ scaler.mean_)
        return replace(ranked, strength=strength, coefficient=tuple(coefficient.tolist()), intercept=intercept)

    def score(self, batch: FeatureBatch) -> np.ndarray:
        """Compute the probability of correctness of each answer, float64 `(rows,)`; nan without a ranked score."""
        inputs, is_ranked = self.build_inputs(batch)
        confidences = np.full(len(batch), np.nan)
        if is_ranked.any():
            confidences[is_ranked] = 1 / (
                1 + np.exp(-(inputs[is_ranked] @ np.array(self.coefficient) + self.intercept))
            )
        return confidences

    def to_dict(self) -> dict[str, Any]:
        """Return the fitted values as JSON."""
        return {
            "refusals": list(self.refusals),
            "scores": [[*key, values.tolist()] for key, values in sorted(self.scores.items())],
            "separate_keys": [list(key) for key in sorted(self.separate_keys)],
            "strength": self.strength,
            "coefficient": list(self.coefficient),
            "intercept": self.intercept,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> WriterScores:
        """Build the scorer from the `content` of `to_dict`."""
        return cls(
            refusals=tuple(content["refusals"]),
            scores={
                (model, refusal, name): np.array(values, float) for model, refusal, name, values in content["scores"]
            },
            separate_keys=frozenset((model, refusal, name) for model, refusal, name in content["separate_keys"]),
            strength=content["strength"],
            coefficient=tuple(content["coefficient"]),
            intercept=content["intercept"],
        )

    def describe_apart(self) -> str:
        """Return one line about the versions that are ranked apart; "" if there are none."""
        if not (keys := sorted(self.separate_keys)):
            return ""
        names = [f"{model}, {'refusals' if refusal else 'answers'}, {name}" for model, refusal, name in keys]
        if n_more := len(names[MAX_LISTED_VERSIONS:]):
            names[MAX_LISTED_VERSIONS:] = [f"and {n_more} others"]
        return f"ranked apart, because they are on another scale than those of other versions: {'; '.join(names)}"

    def build_inputs(self, batch: FeatureBatch) -> tuple[np.ndarray, np.ndarray]:
        """Build the inputs of the regression.

        Args:
            batch: Answers with scores of their writer.

        Returns:
            Inputs `(rows, columns)`: per name the rank, its product with being a refusal, and whether it is missing;
            and whether the answer is a refusal. And bool `(rows,)`: whether a row has any ranked score.
        """
        return self._rank(self._read_scores(batch)).combine(self.strength or 0.0)

    def _read_scores(self, batch: FeatureBatch) -> _ScoreTable:
        scores = [collect_scores(row) for row in batch.interactions]
        names = sorted({name for row_scores in scores for name in row_scores})
        values = [[row_scores.get(name, np.nan) for name in names] for row_scores in scores]
        return _ScoreTable(
            names=tuple(names),
            values=np.array(values, float).reshape(len(batch), len(names)),
            model=np.array([row.model for row in batch.interactions], object),
            refusal=np.array([is_refusal(row.answer, self.refusals) for row in batch.interactions], bool),
        )

    def _choose_strength(self, table: _ScoreTable, labels: Labels) -> float:
        """Choose the strength with the least logarithmic loss out of fold."""
        from sklearn.metrics import log_loss

        has_scores = ~np.isnan(table.values).all(axis=1)
        table, labels = table.take(has_scores), labels.subset(has_scores)
        try:
            folds = labels.assign_folds(5, 0)
        except AbstainError:
            return DEFAULT_STRENGTH
        is_used = labels.weight > 0
        predictions = np.full((len(STRENGTHS), len(folds)), 0.5)
        for fold in np.unique(folds):
            is_fitted = folds != fold
            ranked = replace(self, scores=table.take(is_fitted).sort_by_key())
            ranks = ranked._rank(table.take(is_fitted & is_used))
            new_ranks = ranked._rank(table.take(~is_fitted))
            for index, strength in enumerate(STRENGTHS):
                model = _fit_regression(ranks.combine(strength)[0], labels.subset(is_fitted & is_used))
                new_inputs, is_ranked = new_ranks.combine(strength)
                predictions[index, ~is_fitted] = np.where(is_ranked, model.predict_proba(new_inputs)[:, 1], 0.5)
        losses = [
            log_loss(labels.correct[is_used], predicted[is_used], sample_weight=labels.weight[is_used])
            for predicted in predictions
        ]
        return STRENGTHS[int(np.argmin(losses))]

    def _rank(self, table: _ScoreTable) -> _Ranks:
        names = sorted({name for *_, name in self.scores})
        version_ranks, pooled_ranks = (np.full((len(table.refusal), len(names)), np.nan) for _ in range(2))
        numbers = np.zeros(version_ranks.shape)
        for model, refusal, rows in table.group():
            for column, name in enumerate(names):
                if name not in table.names:
                    continue
                values = table.values[rows, table.names.index(name)]
                key = (model, refusal, name)
                if (reference := self.scores.get(key)) is not None:
                    version_ranks[rows, column] = compute_ranks(values, reference)
                    numbers[rows, column] = np.inf if key in self.separate_keys else len(reference)
                if (pool := self._pools.get((refusal, name))) is not None:
                    pooled_ranks[rows, column] = compute_ranks(values, pool)
        return _Ranks(version_ranks, numbers, pooled_ranks, table.refusal)

    @cached_property
    def _pools(self) -> dict[tuple[bool, str], np.ndarray]:
        """The ascending scores of all versions that are not ranked apart, by kind and name."""
        values: defaultdict[tuple[bool, str], list[np.ndarray]] = defaultdict(list)
        for key, scores in self.scores.items():
            if key not in self.separate_keys:
                values[key[1:]].append(scores)
        return {kind: np.sort(np.concatenate(scores)) for kind, scores in values.items()}


@dataclass(frozen=True)
class _ScoreTable:
    """Scores of answers.

    Attributes:
        names: Names of the scores, ascending.
        values: (rows, names); nan for a missing score.
        model: (rows,) versions of the assistant.
        refusal: (rows,) whether the answer is a refusal.
    """

    names: tuple[str, ...]
    values: np.ndarray
    model: np.ndarray
    refusal: np.ndarray

    def take(self, rows: np.ndarray) -> _ScoreTable:
        """Return the rows where the mask `rows` is true."""
        return replace(self, values=self.values[rows], model=self.model[rows], refusal=self.refusal[rows])

    def group(self) -> Iterator[tuple[str, bool, np.ndarray]]:
        """Yield each version and kind with the indices of its rows."""
        for model in sorted(set(self.model)):
            for refusal in (False, True):
                rows = np.flatnonzero((self.model == model) & (self.refusal == refusal))
                if len(rows):
                    yield model, refusal, rows

    def sort_by_key(self) -> dict[Key, np.ndarray]:
        """Return the ascending scores of each version, kind and name that has any."""
        scores: dict[Key, np.ndarray] = {}
        for model, refusal, rows in self.group():
            for column, name in enumerate(self.names):
                values = self.values[rows, column]
                if (~np.isnan(values)).any():
                    scores[model, refusal, name] = np.sort(values[~np.isnan(values)])
        return scores


@dataclass(frozen=True)
class _Ranks:
    """Ranks of the scores of answers, all (rows, names); nan where there is none.

    Attributes:
        by_version: Ranks among the answers of the same version.
        numbers: Numbers of those answers; infinite if the version is ranked apart.
        pooled: Ranks among the answers of all versions.
        refusal: (rows,) whether the answer is a refusal.
    """

    by_version: np.ndarray
    numbers: np.ndarray
    pooled: np.ndarray
    refusal: np.ndarray

    def combine(self, strength: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs of the regression and which rows have a rank, as `WriterScores.build_inputs` does."""
        own_share = 1 - strength / np.maximum(self.numbers + strength, 1e-9)
        own_share = np.where(np.isnan(self.by_version), 0.0, np.where(np.isnan(self.pooled), 1.0, own_share))
        ranks = own_share * np.nan_to_num(self.by_version) + (1 - own_share) * np.nan_to_num(self.pooled)
        missing = np.isnan(self.by_version) & np.isnan(self.pooled)
        centred = np.where(missing, 0.0, ranks - 0.5)
        refusal = self.refusal[:, None]
        return np.hstack([centred, centred * refusal, missing, refusal]).astype(float), ~missing.all(axis=1)


def _fit_regression(inputs: np.ndarray, labels: Labels) -> Pipeline:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(solver="newton-cholesky"))
    return model.fit(inputs, labels.correct, logisticregression__sample_weight=labels.weight)


def _is_apart(key: Key, scores: Mapping[Key, np.ndarray]) -> bool:
    """Whether the scores of one version hardly overlap with those of all others of the same kind and name."""
    from scipy.stats import ks_2samp

    other_scores = [values for other, values in scores.items() if other[1:] == key[1:] and other != key]
    if not other_scores:
        return False
    distance, p_value = ks_2samp(scores[key], np.concatenate(other_scores), method="asymp")
    return bool(distance > MIN_DISTANCE and p_value < MAX_P_VALUE)


def collect_scores(row: Interaction) -> dict[str, float]:
    """Return the scores of the writer of `row` by name, with mean, sum and minimum of its token log-probabilities."""
    scores = {f"writer.{name}": value for name, value in (row.writer_scores or {}).items()}
    if tokens := row.token_log_probs:
        statistics = {"mean": sum(tokens) / len(tokens), "sum": sum(tokens), "min": min(tokens)}
        scores |= {f"token_log_probs.{name}": statistic for name, statistic in statistics.items()}
    return scores


def compute_ranks(values: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Compute the mid-ranks of values among reference values.

    Args:
        values: The values to rank `(rows,)`.
        reference: Reference values `(n,)`, ascending.

    Returns:
        Ranks in (0, 1) `(rows,)`; ties get the middle rank, and nan for nan.
    """
    below, up_to = (np.searchsorted(reference, values, side) for side in ("left", "right"))
    return np.where(np.isnan(values), np.nan, (below + up_to + 1) / 2 / (len(reference) + 1))
