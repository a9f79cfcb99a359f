"""Scores that the assistant itself gave its answer (Kamath et al. 2020: the model's own confidence).

Notes:

* A score is ranked among the training answers of the same version of the assistant (`Interaction.model`) and of the
  same kind, answers or refusals. The log-probabilities of another version, or the marks of another prompt, are on
  another scale; their ranks are not. Ranking needs no labels.
* A logistic regression of correctness combines the ranks, with separate slopes for refusals: how sure an assistant is
  that there is no answer means something else than how sure it is of one. A score may count either way.
* The log-probabilities of the tokens of the answer are scores, too, with the statistics of `likelihood.py`; no prompt
  is run.
* Fewer than `MIN_RANKED` training answers are too few to rank among. Such a score is missing, and an answer without any
  ranked score has no confidence.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.labels import Labels
from abstain.core.scorer_names import WRITER
from abstain.core.text import is_refusal
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch, ScorerUnavailable

MIN_RANKED = 10
"""Least number of answers to rank among. The error of a rank among n has 2 / n of the variance of ranks, a fifth here.
An answer without a rank is withheld, which costs more."""
MAX_LISTED_VERSIONS = 5
"""Versions that a message names."""


@dataclass(frozen=True)
class WriterScores:
    """Logistic regression of correctness on ranks of the scores of the writer.

    Attributes:
        refusals: Beginnings of refusals.
        name: Name on the leaderboard.
        requires: No feature requests.
        scores: (version, is refusal, name) -> scores of the training answers, float64, ascending; at least
            `MIN_RANKED`.
        coefficient: Coefficients of the columns of `build_inputs`.
        intercept: Intercept of the regression.
    """

    refusals: tuple[str, ...]
    name: str = WRITER
    requires: tuple[FeatureRequest, ...] = ()
    scores: Mapping[tuple[str, bool, str], np.ndarray] = field(default_factory=dict)
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
            ScorerUnavailable: Too few answers have scores of their writer.
        """
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        ranked = replace(self, scores=self._collect_training_scores(batch))
        inputs, is_ranked = ranked.build_inputs(batch)
        if not any(map(collect_scores, batch.interactions)):
            raise ScorerUnavailable(
                Code.NO_ROWS,
                "no training answer has scores of its writer: ingest rows with `writer_scores` (docs/data.md)",
            )
        is_used = is_ranked & (labels.weight > 0)
        train_labels = labels.subset(is_used)
        if len(np.unique(train_labels.correct)) < 2:
            raise ScorerUnavailable(
                Code.TOO_FEW_LABELS,
                f"no version of the assistant has {MIN_RANKED} training answers with scores of their writer, correct "
                "and "
                "incorrect ones: bring feedback on more answers of one version",
            )
        scaler, model = StandardScaler(), LogisticRegression()
        model.fit(scaler.fit_transform(inputs[is_used]), train_labels.correct, train_labels.weight)
        coefficient = model.coef_[0] / scaler.scale_
        intercept = float(model.intercept_[0] - coefficient @ scaler.mean_)
        return replace(ranked, coefficient=tuple(coefficient.tolist()), intercept=intercept)

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
        scores = [[*key, values.tolist()] for key, values in sorted(self.scores.items())]
        return {
            "refusals": list(self.refusals),
            "scores": scores,
            "coefficient": list(self.coefficient),
            "intercept": self.intercept,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> WriterScores:
        """Build the scorer from the `content` of `to_dict`."""
        scores = {(model, refusal, name): np.array(values, float) for model, refusal, name, values in content["scores"]}
        refusals, coefficient = tuple(content["refusals"]), tuple(content["coefficient"])
        return cls(refusals, scores=scores, coefficient=coefficient, intercept=content["intercept"])

    def describe_unranked(self, batch: FeatureBatch) -> str:
        """Return one line about the answers that have scores and no rank, by version and kind; "" if there are none."""
        _, is_ranked = self.build_inputs(batch)
        missing = Counter(
            f"{row.model}, {'refusals' if self._is_refusal(row) else 'answers'}"
            for row, has_rank in zip(batch.interactions, is_ranked, strict=True)
            if not has_rank and collect_scores(row)
        )
        if not missing:
            return ""
        names = [f"{version} ({count:,})" for version, count in missing.most_common(MAX_LISTED_VERSIONS)]
        if n_more := len(missing) - len(names):
            names.append(f"and {n_more} others")
        return (
            f"{missing.total():,} answers have scores of their writer and no rank, because fewer than {MIN_RANKED} "
            f"training answers are of the same version and kind: {'; '.join(names)}"
        )

    def _collect_training_scores(self, batch: FeatureBatch) -> dict[tuple[str, bool, str], np.ndarray]:
        values_by_key: defaultdict[tuple[str, bool, str], list[float]] = defaultdict(list)
        for row in batch.interactions:
            for name, value in collect_scores(row).items():
                values_by_key[row.model, self._is_refusal(row), name].append(value)
        return {key: np.sort(values) for key, values in values_by_key.items() if len(values) >= MIN_RANKED}

    def build_inputs(self, batch: FeatureBatch) -> tuple[np.ndarray, np.ndarray]:
        """Build the inputs of the regression.

        Args:
            batch: Answers with scores of their writer.

        Returns:
            Inputs `(rows, columns)`: per name the rank, its product with being a refusal, and whether it is missing;
            and whether the answer is a refusal. And bool `(rows,)`: whether a row has any ranked score.
        """
        names = sorted({name for *_, name in self.scores})
        ranks = np.full((len(batch), len(names)), np.nan)
        refusal = np.array([self._is_refusal(row) for row in batch.interactions], bool)
        for index, row in enumerate(batch.interactions):
            row_scores = collect_scores(row)
            for column, name in enumerate(names):
                reference = self.scores.get((row.model, bool(refusal[index]), name))
                if name in row_scores and reference is not None:
                    ranks[index, column] = compute_rank(row_scores[name], reference)
        missing = np.isnan(ranks)
        centred = np.where(missing, 0.0, ranks - 0.5)
        columns = [centred, centred * refusal[:, None], missing, refusal[:, None]]
        return np.hstack(columns).astype(float), ~missing.all(axis=1)

    def _is_refusal(self, row: Interaction) -> bool:
        return is_refusal(row.answer, self.refusals)


def collect_scores(row: Interaction) -> dict[str, float]:
    """Return the scores of the writer of `row` by name, with mean, sum and minimum of its token log-probabilities."""
    scores = {f"writer.{name}": value for name, value in (row.writer_scores or {}).items()}
    if tokens := row.token_log_probs:
        statistics = {"mean": sum(tokens) / len(tokens), "sum": sum(tokens), "min": min(tokens)}
        scores |= {f"token_log_probs.{name}": statistic for name, statistic in statistics.items()}
    return scores


def compute_rank(value: float, reference: np.ndarray) -> float:
    """Compute the mid-rank of a value among reference values.

    Args:
        value: The value to rank.
        reference: Reference values `(n,)`, ascending.

    Returns:
        The rank in (0, 1); ties get the middle rank.
    """
    below, up_to = (np.searchsorted(reference, value, side) for side in ("left", "right"))
    return float((below + up_to + 1) / 2 / (len(reference) + 1))
