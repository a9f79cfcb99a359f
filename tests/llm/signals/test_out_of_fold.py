from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd
import pytest

from abstain.core.codes import Code
from abstain.core.labels import Labels
from abstain.learning.estimators.fusion import fit_fusion
from abstain.learning.metrics.weighted_metrics import auroc
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch, ScorerUnavailable, Signal
from abstain.llm.signals.out_of_fold import fit_scorer
from tests.llm.signals.builders import interaction, unread

ROWS, COLUMNS = 200, 400
TRAIN = unread(*(interaction(f"answer {at}", name=f"{at}") for at in range(ROWS)))


@dataclass(frozen=True)
class Memory:
    """Least squares on noise, of which there is more than answers: it reproduces every label that it was fitted to."""

    name: str = "memory"
    requires: tuple[FeatureRequest, ...] = ()
    weights: Any = None
    fewest: int = 0

    def fit(self, answers: FeatureBatch, labels: Labels) -> Self:
        if len(answers) < self.fewest:
            raise ScorerUnavailable(Code.TOO_FEW_LABELS, "too few")
        return replace(self, weights=np.linalg.lstsq(noise(answers), labels.correct - 0.5, rcond=None)[0])

    def score(self, answers: FeatureBatch) -> np.ndarray:
        return np.clip(noise(answers) @ self.weights + 0.5, 0, 1)


def noise(answers: FeatureBatch) -> np.ndarray:
    return np.array(
        [np.random.default_rng(int(one.interaction_id)).normal(size=COLUMNS) for one in answers.interactions]
    )


def drawn(seed: int) -> Labels:
    generator = np.random.default_rng(seed)
    return Labels(
        generator.integers(0, 2, ROWS), np.ones(ROWS), np.array([f"g{at % 40}" for at in range(ROWS)], object)
    )


@pytest.mark.heavy
def test_fit_scorer_out_of_fold_noise_has_no_weight() -> None:
    """In sample it ranks perfectly, and takes all weight of the fusion; out of fold it does neither."""
    figures = []
    for seed in range(3):
        labels = drawn(seed)
        fitted = fit_scorer(Memory(), TRAIN, labels, labels.assign_folds(5, 7))
        in_sample = fitted.scorer.score(TRAIN)
        assert auroc(labels.correct, in_sample) == 1.0
        leaking = fit_fusion(pd.DataFrame({"memory": in_sample}), labels).fusion
        assert auroc(labels.correct, leaking.score(pd.DataFrame({"memory": in_sample}))) == 1.0
        honest = fit_fusion(pd.DataFrame({"memory": fitted.out_of_fold}), labels).fusion
        assert honest.coefficients["memory"] < leaking.coefficients["memory"] / 5
        figures.append(auroc(labels.correct, honest.score(pd.DataFrame({"memory": fitted.out_of_fold}))))
    assert 0.4 < np.mean(figures) < 0.6


def test_fit_scorer_scores_are_of_copies_without_the_fold() -> None:
    labels = drawn(0)
    folds = labels.assign_folds(4, 7)
    found = fit_scorer(Memory(), TRAIN, labels, folds).out_of_fold
    for fold in range(4):
        others = Memory().fit(TRAIN.take(np.flatnonzero(folds != fold).tolist()), labels.subset(folds != fold))
        np.testing.assert_allclose(
            found[folds == fold], others.score(TRAIN.take(np.flatnonzero(folds == fold).tolist())), atol=1e-6
        )


def test_fit_scorer_without_parameters_scores_once() -> None:
    scored: list[str] = []
    signal = Signal("fixed", (), lambda row, found: scored.append(row.interaction_id) or 0.5)
    labels = drawn(0)
    fitted = fit_scorer(signal, TRAIN, labels, labels.assign_folds(5, 7))
    assert fitted.scorer is signal and scored == [one.interaction_id for one in TRAIN.interactions]
    np.testing.assert_array_equal(fitted.out_of_fold, np.full(ROWS, 0.5))


def test_fit_scorer_fold_without_enough_rows_is_nan() -> None:
    labels = drawn(0)
    folds = np.where(np.arange(ROWS) % 40 < 10, 0, np.where(np.arange(ROWS) % 40 < 15, 1, 2))
    found = fit_scorer(Memory(fewest=160), TRAIN, labels, folds).out_of_fold
    np.testing.assert_array_equal(np.isnan(found), folds != 1)
    with pytest.raises(ScorerUnavailable):
        fit_scorer(Memory(fewest=ROWS + 1), TRAIN, labels, folds)
