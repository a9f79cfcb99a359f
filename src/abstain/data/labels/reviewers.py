"""Inter-reviewer agreement on answers with more than one reviewer. Columnar and pure.

Notes:

* A reviewer counts once an answer, by the last review. A changed verdict is no disagreement.
* Chance-corrected figures are given from `labels.min_agreement` shared answers on: Krippendorff's alpha over all
  reviewers (crowd-kit), Cohen's kappa for two of them. Below, only the counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from abstain.config.params import LabelParams

LISTED = 20
"""The most entries of a list in a summary."""


def reviewer_agreement(last: pd.DataFrame, params: LabelParams) -> dict[str, Any]:
    """Shared answers, alpha, and the pairs of reviewers that disagree most often, for JSON.

    Args:
        last: row, reviewer, label: one verdict a reviewer and answer.
    """
    shared = last[last["row"].duplicated(keep=False)]
    answers = int(shared["row"].nunique())
    return {
        "answers with several reviewers": answers,
        "krippendorff alpha": _alpha(shared) if answers >= params.min_agreement else None,
        "pairs": _pairs(shared, params.min_agreement)[:LISTED],
    }


def _alpha(shared: pd.DataFrame) -> float | None:
    if shared["label"].nunique() < 2:  # not defined: nothing could have been disagreed on
        return None
    from crowdkit.metrics.data import alpha_krippendorff  # some seconds

    answers = shared.rename(columns={"row": "task", "reviewer": "worker"})
    return round(alpha_krippendorff(answers[["task", "worker", "label"]]), 3)


def _pairs(shared: pd.DataFrame, enough: int) -> list[dict[str, Any]]:
    """Every two reviewers that share answers, those with most disagreements first."""
    from sklearn.metrics import cohen_kappa_score

    row, rows = pd.factorize(shared["row"])
    who, names = pd.factorize(shared["reviewer"], sort=True)
    label = shared["label"].to_numpy(int)
    shape = (len(rows), len(names))
    given = [csr_array(((label == verdict).astype(int), (row, who)), shape) for verdict in (0, 1)]
    counts = np.stack([(given[a].T @ given[b]).toarray() for a in (0, 1) for b in (0, 1)])
    pairs = []
    for a, b in zip(*np.nonzero(np.triu(counts.sum(axis=0), k=1)), strict=True):
        cells = counts[:, a, b]
        together, differ = int(cells.sum()), int(cells[1] + cells[2])
        # Not defined where both always give the same one verdict.
        defined = together >= enough and cells[[0, 3]].max() < together
        kappa = cohen_kappa_score([0, 0, 1, 1], [0, 1, 0, 1], sample_weight=cells) if defined else None
        pairs.append(
            {
                "reviewers": [str(names[a]), str(names[b])],
                "shared": together,
                "disagree": differ,
                "kappa": None if kappa is None else round(float(kappa), 3),
            }
        )
    return sorted(pairs, key=lambda pair: (-pair["disagree"], pair["reviewers"]))
