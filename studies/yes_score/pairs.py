"""Pairs of kinds of responses, and how well scores tell one from the other. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import bootstrap, make_interval_columns, paired_difference

PAIRS = {
    "span": "marked answer against random span",
    "other_passage": "marked answer against answer to another passage",
    "generated": "the model's answers, correct against incorrect",
}
REFERENCE = "yes_score"
"""Other scores are compared with this one."""


@dataclass(frozen=True)
class KindPair:
    """Responses of two kinds: `label` is 1 for those that ought to score higher, `scores` are by name; all (rows,)."""

    label: np.ndarray
    groups: np.ndarray
    weights: np.ndarray
    scores: Mapping[str, np.ndarray]


def make_pair(
    name: str, result: Mapping[str, Any], groups: np.ndarray, weights: np.ndarray, scorers: tuple[str, ...]
) -> KindPair:
    """Return the pair `name` of `PAIRS`.

    Args:
        name: A key of `PAIRS`.
        result: A result of `ResponseScorer.score_kinds`, of one or of several parts.
        groups: Group of each question, (questions,).
        weights: Weight of each question, (questions,).
        scorers: Names of the scores.

    Returns:
        The pair; it may be empty.
    """
    kinds = result["kinds"]
    if name == "generated":
        chosen = [(place, row) for place, row in enumerate(kinds[name]["rows"]) if result["correct"][row] is not None]
        places, rows = [place for place, _ in chosen], [row for _, row in chosen]
        label = [result["correct"][row] for row in rows]
        scores = {scorer: get_scores(kinds[name], scorer)[places] for scorer in scorers}
    else:
        rows = [*kinds["marked"]["rows"], *kinds[name]["rows"]]
        label = [1] * len(kinds["marked"]["rows"]) + [0] * len(kinds[name]["rows"])
        scores = {
            scorer: np.concatenate([get_scores(kinds[kind], scorer) for kind in ("marked", name)]) for scorer in scorers
        }
    return KindPair(np.array(label, int), groups[rows], weights[rows], scores)


def get_scores(kind: Mapping[str, Any], scorer: str) -> np.ndarray:
    """Return the scores of a kind of response, (responses,); nan without a score."""
    return np.array(kind["scores"][scorer], float)


def compare_scores(pair: KindPair, draws: int, seed: int) -> list[dict[str, Any]]:
    """Return `auroc` of each score of `pair`, and how far it is `ahead` of the Yes-score, with 95 % intervals.

    A response without a score ranks below all others.
    """
    statistics = {name: partial(metrics.auroc, pair.label, scores) for name, scores in pair.scores.items()}
    estimates = bootstrap(statistics, pair.groups, n_resamples=draws, seed=seed, weight=pair.weights)
    return [
        {
            "scorer": name,
            "positive": int(pair.label.sum()),
            "negative": int((1 - pair.label).sum()),
            "unscored": int(np.isnan(pair.scores[name]).sum()),
            **make_interval_columns("auroc", estimate),
            **(
                make_interval_columns("ahead", paired_difference(estimate, estimates[REFERENCE]))
                if REFERENCE in estimates and name != REFERENCE
                else {}
            ),
        }
        for name, estimate in estimates.items()
    ]


def compute_precision(pair: KindPair, thresholds: tuple[float, ...], draws: int, seed: int) -> list[dict[str, Any]]:
    """Return `precision` and `coverage` of answers from each threshold on, by score, with 95 % intervals."""
    statistics = {
        (key, name, threshold): partial(metric, pair.label, scores, threshold=threshold)
        for key, metric in (("precision", metrics.precision), ("coverage", metrics.coverage))
        for name, scores in pair.scores.items()
        for threshold in thresholds
    }
    estimates = bootstrap(statistics, pair.groups, n_resamples=draws, seed=seed, weight=pair.weights)
    return [
        {
            "scorer": name,
            "threshold": threshold,
            "shown": int((pair.scores[name] >= threshold).sum()),
            **make_interval_columns("precision", estimates["precision", name, threshold]),
            **make_interval_columns("coverage", estimates["coverage", name, threshold]),
        }
        for name in pair.scores
        for threshold in thresholds
    ]
