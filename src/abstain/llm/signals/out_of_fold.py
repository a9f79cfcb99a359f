"""Fit a scorer to training answers, and score these as answers that it has not seen.

The fusion is fitted on scores of training answers. A scorer that knew their labels would look better there than it is,
the more parameters it has; so each of them is scored by a copy that was fitted without the answer's fold.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from abstain.core.labels import Labels
from abstain.llm.signals.base import FeatureBatch, Scorer, ScorerUnavailable


@dataclass(frozen=True)
class FittedScorer:
    """A scorer, fitted to all training answers; `out_of_fold`, float64 (rows,), its scores of these by copies that were
    not fitted to their fold, nan where such a copy has none."""

    scorer: Scorer
    out_of_fold: np.ndarray


def fit_scorer(scorer: Scorer, train: FeatureBatch, labels: Labels, folds: np.ndarray) -> FittedScorer:
    """Fit `scorer` to `train`, whose rows are in `folds`, int64 (rows,) (`Labels.folds`).

    Raises `ScorerUnavailable` where the scorer cannot be fitted to all rows; without one fold it may be unable to.
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
