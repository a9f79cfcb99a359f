"""From the NLLs of a prompt's segments under B_c, N_c and P_c to named numbers (Zhang et al., section 3.4.1).

A column is called CONDITION.SEGMENT.STATISTIC: `N.output.nll_mean`. A difference of two conditions, token by token, of
a segment that is the same text in both, is called `N-B.output.nll_max`. Where contexts are perturbed several times, `P`
is the mean over the copies, and `Ps` the standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import Tensor

SEGMENTS = ("prompt", "instruction", "context", "question", "output")
"""`prompt`: all that precedes the answer; `output`: the answer and EOS."""
SHARED = ("question", "output")
"""Segments that are the same text under all conditions, after another one."""
PAIRS = (("N", "B"), ("P", "N"), ("P", "B"))

TokenStatsBySegment = Mapping[str, Tensor | None]
"""Segment -> NLL and entropy of its tokens, (tokens, 2), in nats; None where the prompt could not be read."""

_OF_TOKENS: dict[str, Callable[[np.ndarray], float]] = {
    "mean": lambda x: float(x.mean()),
    "std": lambda x: float(x.std()),
    "min": lambda x: float(x.min()),
    "median": lambda x: float(np.median(x)),
    "q90": lambda x: float(np.quantile(x, 0.9)),
    "max": lambda x: float(x.max()),
}
_NLL = {
    **_OF_TOKENS,
    "sum": lambda x: float(x.sum()),
    "first": lambda x: float(x[0]),
    "last": lambda x: float(x[-1]),
}
STATISTICS = {f"nll_{name}": function for name, function in _NLL.items()}
ENTROPIES = {f"entropy_{name}": _OF_TOKENS[name] for name in ("mean", "max")}
DIFFERENCES = {f"nll_{name}": _OF_TOKENS[name] for name in ("mean", "std", "min", "max")}


def compute_nll_features(
    normal: TokenStatsBySegment, baseline: TokenStatsBySegment, perturbed: Sequence[TokenStatsBySegment]
) -> dict[str, float]:
    """The features of one answered question; nan for missing segments, such as the context under B_c.

    Where its prompt under N_c could not be read, all are nan: an estimate from the rest would look like one that
    knows the context.

    Args:
        perturbed: one for every copy of the perturbed context; without any, no column is of P.
    """
    if normal["output"] is None:
        baseline, perturbed = normal, [normal] * len(perturbed)
    row = _of_condition("N", normal) | _of_condition("B", baseline)
    of_copies = [
        _of_condition("P", copy) | _of_pairs({"N": normal, "B": baseline, "P": copy}, PAIRS[1:]) for copy in perturbed
    ]
    row |= _of_pairs({"N": normal, "B": baseline}, PAIRS[:1])
    for name in of_copies[0] if of_copies else ():
        values = np.array([copy[name] for copy in of_copies])
        row[name] = float(values.mean())
        if len(of_copies) > 1:
            row["Ps" + name.removeprefix("P")] = float(values.std())
    return row


def _of_condition(condition: str, found: TokenStatsBySegment) -> dict[str, float]:
    row = {}
    for segment in SEGMENTS:
        tokens = _known(found.get(segment))
        for column, functions in enumerate((STATISTICS, ENTROPIES)):
            for name, function in functions.items():
                row[f"{condition}.{segment}.{name}"] = function(tokens[:, column]) if len(tokens) else np.nan
    return row


def _of_pairs(found: Mapping[str, TokenStatsBySegment], pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    row = {}
    for one, other in pairs:
        for segment in SHARED:
            ours, theirs = _known(found[one].get(segment)), _known(found[other].get(segment))
            gap = ours[:, 0] - theirs[:, 0] if len(ours) == len(theirs) else np.empty(0)
            for name, function in DIFFERENCES.items():
                row[f"{one}-{other}.{segment}.{name}"] = function(gap) if len(gap) else np.nan
    return row


def _known(tokens: Tensor | None) -> np.ndarray:
    """(tokens, 2), float64, without a first token of a pass, which nothing precedes."""
    if tokens is None:
        return np.empty((0, 2))
    found = tokens.numpy().astype(float)
    return np.asarray(found[~np.isnan(found[:, 0])])
