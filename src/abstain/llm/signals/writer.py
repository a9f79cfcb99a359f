"""The writer's scores: what the assistant itself gave its answer (Kamath et al. 2020: the model's own confidence).

Notes:

* A score is ranked among the training answers of the same version of the assistant (`Interaction.model`) and of the
  same kind, answers or refusals. Another version's log-probabilities, or another prompt's marks, are on another scale:
  their ranks are not. Ranking needs no labels.
* A logistic regression of correctness combines the ranks, with slopes of their own for refusals: how sure an assistant
  is that there is no answer says something else than how sure it is of one. A score may count either way.
* The log-probabilities of the answer's tokens are scores, too, by the statistics of `likelihood.py`: no pass is run.
* Fewer than `MIN_RANKED` training answers to rank among are no ranking. Such a score is missing, and an answer without
  any ranked score has none.
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
"""Fewest answers to rank among. The error of a rank among n has 2 / n of the variance of ranks, a fifth here; an answer
without a rank is withheld, which costs more."""
LISTED = 5
"""Versions that a line names."""


@dataclass(frozen=True)
class WriterScores:
    """Logistic regression of correctness on ranks of the writer's scores.

    `refusals`: the beginnings of refusals. `scores`: by version, kind and name, those of the training answers, float64,
    ascending; at least `MIN_RANKED`. `coefficient` and `intercept`: of the columns of `inputs`.
    """

    refusals: tuple[str, ...]
    name: str = WRITER
    readings: tuple[FeatureRequest, ...] = ()
    scores: Mapping[tuple[str, bool, str], np.ndarray] = field(default_factory=dict)
    coefficient: tuple[float, ...] = ()
    intercept: float = 0.0

    def fit(self, answers: FeatureBatch, labels: Labels) -> WriterScores:
        """Fitted to training answers. Raises `ScorerUnavailable` where too few of them have scores."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        ranked = replace(self, scores=self._scores_by_place(answers))
        inputs, known = ranked.build_inputs(answers)
        if not any(map(collect_scores, answers.interactions)):
            raise ScorerUnavailable(
                Code.NO_ROWS, "no training answer has scores of its writer: ingest rows with `writer` (docs/data.md)"
            )
        counts = known & (labels.weight > 0)
        learnt = labels.subset(counts)
        if len(np.unique(learnt.correct)) < 2:
            raise ScorerUnavailable(
                Code.TOO_FEW_LABELS,
                f"no version of the assistant has {MIN_RANKED} training answers with scores of their writer, correct and "
                "incorrect ones: bring feedback on more answers of one version",
            )
        scaler, model = StandardScaler(), LogisticRegression()
        model.fit(scaler.fit_transform(inputs[counts]), learnt.correct, learnt.weight)
        coefficient = model.coef_[0] / scaler.scale_
        intercept = float(model.intercept_[0] - coefficient @ scaler.mean_)
        return replace(ranked, coefficient=tuple(coefficient.tolist()), intercept=intercept)

    def score(self, answers: FeatureBatch) -> np.ndarray:
        inputs, known = self.build_inputs(answers)
        found = np.full(len(answers), np.nan)
        if known.any():
            found[known] = 1 / (1 + np.exp(-(inputs[known] @ np.array(self.coefficient) + self.intercept)))
        return found

    def to_dict(self) -> dict[str, Any]:
        """What is fitted, as JSON."""
        scores = [[*place, values.tolist()] for place, values in sorted(self.scores.items())]
        return {
            "refusals": list(self.refusals),
            "scores": scores,
            "coefficient": list(self.coefficient),
            "intercept": self.intercept,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> WriterScores:
        scores = {(model, refusal, name): np.array(values, float) for model, refusal, name, values in content["scores"]}
        refusals, coefficient = tuple(content["refusals"]), tuple(content["coefficient"])
        return cls(refusals, scores=scores, coefficient=coefficient, intercept=content["intercept"])

    def describe_unranked(self, answers: FeatureBatch) -> str:
        """One line on the answers that have scores and no rank, by version and kind; "" where there are none."""
        _, known = self.build_inputs(answers)
        missing = Counter(
            f"{row.model}, {'refusals' if self._is_refusal(row) else 'answers'}"
            for row, is_known in zip(answers.interactions, known, strict=True)
            if not is_known and collect_scores(row)
        )
        if not missing:
            return ""
        named = [f"{of} ({number:,})" for of, number in missing.most_common(LISTED)]
        if more := len(missing) - len(named):
            named.append(f"and {more} others")
        return (
            f"{missing.total():,} answers have scores of their writer and no rank, because fewer than {MIN_RANKED} "
            f"training answers are of the same version and kind: {'; '.join(named)}"
        )

    def _scores_by_place(self, answers: FeatureBatch) -> dict[tuple[str, bool, str], np.ndarray]:
        found: defaultdict[tuple[str, bool, str], list[float]] = defaultdict(list)
        for row in answers.interactions:
            for name, value in collect_scores(row).items():
                found[row.model, self._is_refusal(row), name].append(value)
        return {place: np.sort(values) for place, values in found.items() if len(values) >= MIN_RANKED}

    def build_inputs(self, answers: FeatureBatch) -> tuple[np.ndarray, np.ndarray]:
        """(rows, columns) of numbers, and (rows,) of bool: whether a row has any ranked score.

        Per name the rank, its product with being a refusal, and whether it is missing; and being a refusal.
        """
        names = sorted({name for *_, name in self.scores})
        ranks = np.full((len(answers), len(names)), np.nan)
        refusal = np.array([self._is_refusal(row) for row in answers.interactions], bool)
        for at, row in enumerate(answers.interactions):
            given = collect_scores(row)
            for column, name in enumerate(names):
                among = self.scores.get((row.model, bool(refusal[at]), name))
                if name in given and among is not None:
                    ranks[at, column] = compute_rank(given[name], among)
        missing = np.isnan(ranks)
        centred = np.where(missing, 0.0, ranks - 0.5)
        columns = [centred, centred * refusal[:, None], missing, refusal[:, None]]
        return np.hstack(columns).astype(float), ~missing.all(axis=1)

    def _is_refusal(self, row: Interaction) -> bool:
        return is_refusal(row.answer, self.refusals)


def collect_scores(row: Interaction) -> dict[str, float]:
    """The writer's scores of an answer by name, with the mean, sum and minimum of its tokens' log-probabilities."""
    scores = {f"writer.{name}": value for name, value in (row.writer or {}).items()}
    if tokens := row.token_log_probs:
        found = {"mean": sum(tokens) / len(tokens), "sum": sum(tokens), "min": min(tokens)}
        scores |= {f"token_log_probs.{name}": value for name, value in found.items()}
    return scores


def compute_rank(value: float, among: np.ndarray) -> float:
    """The place of `value` in `among` (ascending), from 0 to 1, exclusive; of equal values the middle one."""
    below, up_to = (np.searchsorted(among, value, side) for side in ("left", "right"))
    return float((below + up_to + 1) / 2 / (len(among) + 1))
