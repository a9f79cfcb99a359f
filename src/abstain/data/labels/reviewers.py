"""Agreement between reviewers on answers with more than one reviewer. Columnar and pure.

Notes:

* A reviewer counts once for an answer, by the last review. A changed review is no disagreement.
* Chance-corrected metrics are given from `labels.min_agreement` shared answers on: Krippendorff's alpha over all
  reviewers (crowd-kit), and Cohen's kappa for two of them. Below that, only counts are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import Field
from scipy.sparse import csr_array

from abstain.config.params import LabelParams
from abstain.data.labels.reliability import Rounded

MAX_LISTED = 20
"""Maximum number of entries of a list in a summary."""


@dataclass(frozen=True)
class ReviewerPair:
    """Answers that two reviewers share, and those on which they disagree; Cohen's kappa is None if not defined."""

    reviewers: tuple[str, str]
    shared: int
    disagree: int
    kappa: Rounded | None


@dataclass(frozen=True)
class ReviewerAgreement:
    """Number of answers with several reviewers, Krippendorff's alpha, and the pairs that disagree most often."""

    answers: Annotated[int, Field(alias="answers with several reviewers")]
    alpha: Annotated[Rounded | None, Field(alias="krippendorff alpha")]
    pairs: tuple[ReviewerPair, ...]


def summarize_reviewer_agreement(latest_reviews: pd.DataFrame, params: LabelParams) -> ReviewerAgreement:
    """Summarize the agreement between reviewers.

    Args:
        latest_reviews: Columns row, reviewer, label: one review for each reviewer and answer.
        params: `labels` of params.yaml.

    Returns:
        The agreement.
    """
    shared = latest_reviews[latest_reviews["row"].duplicated(keep=False)]
    answers = int(shared["row"].nunique())
    alpha = _compute_alpha(shared) if answers >= params.min_agreement else None
    return ReviewerAgreement(answers, alpha, tuple(_compare_pairs(shared, params.min_agreement)[:MAX_LISTED]))


def _compute_alpha(shared: pd.DataFrame) -> float | None:
    if shared["label"].nunique() < 2:  # not defined: nothing could have been disagreed on
        return None
    from crowdkit.metrics.data import alpha_krippendorff  # some seconds

    answers = shared.rename(columns={"row": "task", "reviewer": "worker"})
    return float(alpha_krippendorff(answers[["task", "worker", "label"]]))


def _compare_pairs(shared: pd.DataFrame, min_shared: int) -> list[ReviewerPair]:
    """Compare every two reviewers that share answers; pairs with most disagreements come first."""
    from sklearn.metrics import cohen_kappa_score

    row, rows = pd.factorize(shared["row"])
    reviewer, names = pd.factorize(shared["reviewer"], sort=True)
    label = shared["label"].to_numpy(int)
    shape = (len(rows), len(names))
    indicators = [csr_array(((label == value).astype(int), (row, reviewer)), shape) for value in (0, 1)]
    counts = np.stack([(indicators[a].T @ indicators[b]).toarray() for a in (0, 1) for b in (0, 1)])
    pairs = []
    for a, b in zip(*np.nonzero(np.triu(counts.sum(axis=0), k=1)), strict=True):
        cells = counts[:, a, b]
        n_shared, n_disagreements = int(cells.sum()), int(cells[1] + cells[2])
        # Not defined where both always give the same label.
        is_kappa_defined = n_shared >= min_shared and cells[[0, 3]].max() < n_shared
        kappa = cohen_kappa_score([0, 0, 1, 1], [0, 1, 0, 1], sample_weight=cells) if is_kappa_defined else None
        pairs.append(ReviewerPair((str(names[a]), str(names[b])), n_shared, n_disagreements, kappa))
    return sorted(pairs, key=lambda pair: (-pair.disagree, pair.reviewers))
