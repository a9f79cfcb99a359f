"""The challenger beside the version in production on the hold-out: paired figures with intervals, not judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import Statistic, paired_difference
from abstain.release.evaluation_set import CANDIDATE, EvaluationSet


@dataclass(frozen=True)
class MetricComparison:
    """One figure of both on the same answers; `low` and `high` bound the difference at 95 %, by documents."""

    figure: str
    challenger: float
    champion: float
    difference: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float | str | None]:
        """nan, where a figure is not defined, as None."""
        return {name: None if value != value else value for name, value in asdict(self).items()}


def compare_metrics(window: EvaluationSet, champion: str) -> list[MetricComparison]:
    """AUROC, AURC, errors caught where 15 % are withheld, their share of what could be caught, and the Brier score.

    The Brier score is of the calibrated probabilities of both, and left out where `window` lacks one.
    """
    figures: dict[str, dict[str, Statistic]] = {
        name: {who: partial(of, window.correct, window.confidences[who]) for who in (CANDIDATE, champion)}
        for name, of in (
            ("AUROC", metrics.auroc),
            ("AURC", metrics.aurc),
            ("errors caught, 15 % withheld", metrics.error_recall),
            ("share of the errors that could be caught", metrics.error_recall_vs_best),
        )
    }
    said = {CANDIDATE: window.probabilities, champion: window.champion_probability}
    known = {who: np.asarray(values) for who, values in said.items() if values is not None}
    if len(known) == len(said):
        figures["Brier score"] = {who: partial(metrics.brier, window.correct, values) for who, values in known.items()}
    return compare_statistics(window, champion, figures)


def compare_statistics(
    window: EvaluationSet, champion: str, figures: Mapping[str, Mapping[str, Statistic]]
) -> list[MetricComparison]:
    """`figures`, by name, of the challenger and of `champion`, on the same resamples of documents."""
    rows = []
    for name, of in figures.items():
        drawn = window.bootstrap(of)
        own, other = drawn[CANDIDATE], drawn[champion]
        difference = paired_difference(own, other)
        rows.append(MetricComparison(name, own.value, other.value, difference.value, *difference.interval))
    return rows
