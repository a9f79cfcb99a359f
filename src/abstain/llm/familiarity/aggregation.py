"""The familiarity of an instruction from those of its concepts (eqs. 6 and 7), and the threshold below which it is low.

The paper's ranks begin at no stated number; eq. 7 is the same whichever it is. Concepts whose frequency scores are
equal are ranked in the order of the instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from abstain.llm.familiarity.words import log_frequency

Aggregation = Literal["weighted", "minimum", "rarest"]
"""`weighted`: eq. 7; `minimum`: the lowest familiarity; `rarest`: that of the concept of the most infrequent words."""
R = 2.0
"""The ratio of two weights of eq. 7 that follow each other."""
_DRAWS, _SEED = 1000, 42


def aggregate(concepts: Sequence[str], scores: Sequence[float], how: Aggregation, *, ranking: bool = True) -> float:
    """s_f of eq. 7 from s_i, at least one, in the order of the instruction.

    Without `ranking`, the order of the instruction takes the place of the order of frequency scores.
    """
    if how == "minimum":
        return min(scores)
    order = (
        sorted(range(len(concepts)), key=lambda at: log_frequency(concepts[at])) if ranking else range(len(concepts))
    )
    ranked = [scores[at] for at in order]
    if how == "rarest":
        return ranked[0]
    return float(np.average(ranked, weights=R ** -np.arange(len(ranked))))


def compute_threshold(scores: Sequence[float]) -> float:
    """h from the scores of basic concepts: the midpoint of the 95 % interval, by bootstrap, of their 5th percentile.

    So about one in twenty instructions on what everybody knows has a lower score. The paper does not say of which
    figure the interval is; its authors' code takes this one.
    """
    drawn = np.random.default_rng(_SEED).choice(np.asarray(scores), (_DRAWS, len(scores)))
    return float(np.quantile(np.quantile(drawn, 0.05, axis=1), (0.025, 0.975)).mean())
