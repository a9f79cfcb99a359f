"""Fit a scorer to training answers, and score them as answers that it has not seen.

The fusion is fitted on scores of training answers. A scorer that knew their labels would look better there than it is,
the more so the more parameters it has. So each answer is scored by a copy that was fitted without its fold.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from abstain.core.labels import Labels
from abstain.llm.signals.base import FeatureBatch, Scorer, ScorerUnavailable


@dataclass(frozen=True)
class FittedScorer:
    """A scorer fitted to all training answers, with scores of them that it could not overfit.

    Attributes:
        scorer: The fitted scorer.
        out_of_fold: Scores of the training answers, float64 `(rows,)`, each by a copy that was fitted without the fold
            of the answer; nan if that copy has none.
    """

    scorer: Scorer
    out_of_fold: np.ndarray


def fit_scorer(scorer: Scorer, train: FeatureBatch, labels: Labels, folds: np.ndarray) -> FittedScorer:
    """Fit a scorer to all rows, and a copy of it without each fold.

    Args:
        scorer: Scorer to fit.
        train: Training answers with the features that it requires.
        labels: Labels of the same rows.
        folds: Fold of each row, int64 `(rows,)` (`Labels.folds`).

    Returns:
        The fitted scorer and its out-of-fold scores. A copy that cannot be fitted without its fold leaves nan.

    Raises:
        ScorerUnavailable: The scorer cannot be fitted to all rows.
    """
    fitted = scorer.fit(train, labels)
    if fitted is scorer:  # it has no parameters
        return FittedScorer(fitted, fitted.score(train))
    scores = np.full(len(train), np.nan)
    for fold in np.unique(folds):
        held_out = folds == fold
        with suppress(ScorerUnavailable):
            copy = scorer.fit(train.take(np.flatnonzero(~held_out).tolist()), labels.subset(~held_out))
            scores[held_out] = copy.score(train.take(np.flatnonzero(held_out).tolist()))
    return FittedScorer(fitted, scores)
