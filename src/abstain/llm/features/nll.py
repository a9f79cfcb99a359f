"""Named features from the NLLs of the segments of a prompt under B_c, N_c and P_c (Zhang et al., section 3.4.1).

A column is called CONDITION.SEGMENT.STATISTIC: `N.output.nll_mean`. A difference of two conditions, token by token, of
a segment with the same text in both, is called `N-B.output.nll_max`. If contexts are perturbed several times, `P` is
the mean over the copies and `Ps` the standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import Tensor

SEGMENTS = ("prompt", "instruction", "context", "question", "output")
"""`prompt`: the text before the answer; `output`: the answer and EOS."""
SHARED = ("question", "output")
"""Segments with the same text under all conditions, which follow another segment."""
PAIRS = (("N", "B"), ("P", "N"), ("P", "B"))

TokenStatsBySegment = Mapping[str, Tensor | None]
"""Segment -> NLL and entropy of its tokens, `(tokens, 2)`, in nats; None if the prompt could not be read."""

_TOKEN_STATISTICS: dict[str, Callable[[np.ndarray], float]] = {
    "mean": lambda x: float(x.mean()),
    "std": lambda x: float(x.std()),
    "min": lambda x: float(x.min()),
    "median": lambda x: float(np.median(x)),
    "q90": lambda x: float(np.quantile(x, 0.9)),
    "max": lambda x: float(x.max()),
}
_NLL = {
    **_TOKEN_STATISTICS,
    "sum": lambda x: float(x.sum()),
    "first": lambda x: float(x[0]),
    "last": lambda x: float(x[-1]),
}
STATISTICS = {f"nll_{name}": function for name, function in _NLL.items()}
ENTROPIES = {f"entropy_{name}": _TOKEN_STATISTICS[name] for name in ("mean", "max")}
DIFFERENCES = {f"nll_{name}": _TOKEN_STATISTICS[name] for name in ("mean", "std", "min", "max")}


def compute_nll_features(
    normal: TokenStatsBySegment, baseline: TokenStatsBySegment, perturbed: Sequence[TokenStatsBySegment]
) -> dict[str, float]:
    """Compute the features of one answered question.

    If the prompt under N_c could not be read, all features are nan: an estimate from the rest would look like one that
    knows the context.

    Args:
        normal: Token statistics under N_c.
        baseline: Token statistics under B_c, without the context.
        perturbed: Token statistics of each copy of the perturbed context; if empty, there are no P columns.

    Returns:
        Column -> value; nan for missing segments, such as the context under B_c.
    """
    if normal["output"] is None:
        baseline, perturbed = normal, [normal] * len(perturbed)
    row = _compute_condition_features("N", normal) | _compute_condition_features("B", baseline)
    copy_features = [
        _compute_condition_features("P", copy)
        | _compute_difference_features({"N": normal, "B": baseline, "P": copy}, PAIRS[1:])
        for copy in perturbed
    ]
    row |= _compute_difference_features({"N": normal, "B": baseline}, PAIRS[:1])
    for name in copy_features[0] if copy_features else ():
        values = np.array([copy[name] for copy in copy_features])
        row[name] = float(values.mean())
        if len(copy_features) > 1:
            row["Ps" + name.removeprefix("P")] = float(values.std())
    return row


def _compute_condition_features(condition: str, stats_by_segment: TokenStatsBySegment) -> dict[str, float]:
    row = {}
    for segment in SEGMENTS:
        tokens = _drop_first_token(stats_by_segment.get(segment))
        for column, functions in enumerate((STATISTICS, ENTROPIES)):
            for name, function in functions.items():
                row[f"{condition}.{segment}.{name}"] = function(tokens[:, column]) if len(tokens) else np.nan
    return row


def _compute_difference_features(
    stats_by_condition: Mapping[str, TokenStatsBySegment], pairs: Sequence[tuple[str, str]]
) -> dict[str, float]:
    row = {}
    for condition, reference in pairs:
        for segment in SHARED:
            tokens, reference_tokens = (
                _drop_first_token(stats_by_condition[condition].get(segment)),
                _drop_first_token(stats_by_condition[reference].get(segment)),
            )
            difference = tokens[:, 0] - reference_tokens[:, 0] if len(tokens) == len(reference_tokens) else np.empty(0)
            for name, function in DIFFERENCES.items():
                row[f"{condition}-{reference}.{segment}.{name}"] = function(difference) if len(difference) else np.nan
    return row


def _drop_first_token(tokens: Tensor | None) -> np.ndarray:
    """Return the statistics `(tokens, 2)`, float64, without a first token of a prompt, which no token precedes."""
    if tokens is None:
        return np.empty((0, 2))
    values = tokens.numpy().astype(float)
    return np.asarray(values[~np.isnan(values[:, 0])])
