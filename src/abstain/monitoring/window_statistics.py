"""The statistics of a window. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from abstain.data.decision_log.monitoring_windows import (
    Comparisons,
    ConfidenceSummary,
    DecisionSummary,
    PredictionErrors,
    ProductCoverage,
    ReviewedPrecision,
    ValueWithBounds,
    WindowStatistics,
)
from abstain.data.validation.drift import compute_stability_index
from abstain.learning.metrics.weighted_metrics import effective_sample_size
from abstain.monitoring.expected_precision import estimate_precision
from abstain.monitoring.window_comparison import SampledAnswers

NO_PRODUCT = "none"
MIN_REVIEWED = 20
"""Smallest number of reviewed answers for comparing an expected precision with the observed one."""


def summarize_decisions(
    window: pd.DataFrame,
    reference: pd.DataFrame,
    expected: ValueWithBounds | None,
    compared: Comparisons,
    notes: list[str],
) -> DecisionSummary:
    """Summarize coverage, unavailable decisions and confidences of a window.

    Args:
        window: Decisions of the window.
        reference: Earlier decisions of the same version, for the stability index.
        expected: Expected precision of what is shown.
        compared: Comparisons with the earlier decisions.
        notes: Why something was not compared.

    Returns:
        The statistics.
    """
    unavailable = window[window["decision"] == "unavailable"]
    products = window["product"].astype("object").fillna(NO_PRODUCT)
    return DecisionSummary(
        decisions=len(window),
        shown=int(window["shown"].sum()),
        coverage=_mean(window["shown"]),
        products={
            str(name): ProductCoverage(decisions=len(part), coverage=float(part.mean()))
            for name, part in window["shown"].groupby(products)
        },
        unavailable=len(unavailable) / len(window) if len(window) else None,
        unavailable_codes={str(code): int(n) for code, n in unavailable["code"].value_counts().items() if n},
        confidence=_summarize_confidence(window["confidence"].dropna(), reference["confidence"].dropna()),
        expected=expected,
        compared=compared,
        notes=notes,
    )


def estimate_expected_precision(window: SampledAnswers) -> ValueWithBounds | None:
    """Estimate the precision of the sampled answers that were decided to be shown.

    Args:
        window: Sampled answers of the window.

    Returns:
        Estimate with interval; None if there are no such answers.
    """
    is_shown = ((window.decisions["decision"] == "show") & window.decisions["probability"].notna()).to_numpy(bool)
    shown = window.filter(is_shown)
    if not shown.interactions:
        return None
    estimate = estimate_precision(shown.decisions["probability"].to_numpy(float), shown.groups)
    return ValueWithBounds.model_validate(estimate)


def compute_reviewed_precision(rows: pd.DataFrame) -> ReviewedPrecision | None:
    """Compute the inclusion-weighted precision of reviewed shown answers.

    Args:
        rows: Reviews from `join_reviews`.

    Returns:
        Precision with counts; None without reviews.
    """
    if rows.empty:
        return None
    weight, correct = rows["weight"].to_numpy(float), rows["correct"].to_numpy(bool)
    return ReviewedPrecision(
        reviews=len(rows),
        documents=int(rows["document"].nunique()),
        n_eff=round(float(effective_sample_size(weight)), 1),
        precision=float(np.average(correct, weights=weight)),
    )


def summarize_prediction_errors(windows: Sequence[WindowStatistics]) -> PredictionErrors:
    """Summarize how far the expected precision of earlier windows was from what their reviews said.

    Args:
        windows: Statistics of earlier windows.

    Returns:
        Number of windows with at least `MIN_REVIEWED` reviews, and the mean absolute error.
    """
    errors = [
        abs(window.expected_precision - reviewed.precision)
        for window in windows
        if window.expected_precision is not None
        and (reviewed := window.reviewed_precision)
        and reviewed.reviews >= MIN_REVIEWED
    ]
    return PredictionErrors(windows=len(errors), mean_error=float(np.mean(errors)) if errors else None)


def _summarize_confidence(window: pd.Series, reference: pd.Series) -> ConfidenceSummary:
    """Return deciles, and the stability index over the deciles of earlier decisions."""
    deciles = [round(float(value), 4) for value in window.quantile(np.arange(0.1, 1, 0.1))] if len(window) else []
    index = None
    if len(window) and len(reference):
        edges = np.unique(reference.quantile(np.arange(0.1, 1, 0.1)))
        sides = [
            np.bincount(np.searchsorted(edges, confidences, side="right"), minlength=len(edges) + 1)
            for confidences in (window, reference)
        ]
        counts = [{str(i): int(n) for i, n in enumerate(side)} for side in sides]
        index = round(compute_stability_index(counts[0], counts[1]), 4)
    return ConfidenceSummary(deciles=deciles, stability_index=index)


def _mean(values: pd.Series) -> float | None:
    return float(values.mean()) if len(values) else None
