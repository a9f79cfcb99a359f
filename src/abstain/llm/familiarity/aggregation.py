"""The familiarity of an instruction from those of its concepts (eqs. 6 and 7), and the threshold below which it is low.

Luo et al. do not say at which number ranks begin; eq. 7 is the same for any. Concepts with equal frequency scores are
ranked in the order of the instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from abstain.llm.familiarity.words import compute_log_frequency

Aggregation = Literal["weighted", "minimum", "rarest"]
"""`weighted`: eq. 7; `minimum`: the lowest familiarity; `rarest`: that of the concept of the most infrequent words."""
R = 2.0
"""r of eq. 7: the ratio of the weights of one rank and the next."""
_RESAMPLES, _SEED = 1000, 42


def aggregate(
    concepts: Sequence[str], scores: Sequence[float], aggregation: Aggregation, *, ranking: bool = True
) -> float:
    """Compute the familiarity s_f of an instruction.

    Eq. 7 is the mean of s_i with weights r ** -rank, where concepts are ranked by f of eq. 6, the rarest first.

    Args:
        concepts: Concepts in the order of the instruction, at least one.
        scores: s_i of each concept, (concepts,).
        aggregation: How scores are combined.
        ranking: Whether to rank by frequency score; otherwise the order of the instruction is the ranking.

    Returns:
        s_f.
    """
    if aggregation == "minimum":
        return min(scores)
    order = (
        sorted(range(len(concepts)), key=lambda index: compute_log_frequency(concepts[index]))
        if ranking
        else range(len(concepts))
    )
    ranked = [scores[index] for index in order]
    if aggregation == "rarest":
        return ranked[0]
    return float(np.average(ranked, weights=R ** -np.arange(len(ranked))))


def compute_threshold(scores: Sequence[float]) -> float:
    """Compute the threshold h from the scores of basic concepts.

    h is the midpoint of the 95 % bootstrap interval of their 5th percentile, so about one in twenty instructions on
    what everybody knows has a lower score. The paper does not name the statistic of the interval; its authors' code
    takes this one.

    Args:
        scores: s_i of the basic concepts, (concepts,).

    Returns:
        h.
    """
    resamples = np.random.default_rng(_SEED).choice(np.asarray(scores), (_RESAMPLES, len(scores)))
    return float(np.quantile(np.quantile(resamples, 0.05, axis=1), (0.025, 0.975)).mean())
