"""Calibration of the probabilities, and the slices that an average may hide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from abstain.core.formatting import (
    format_configured_share,
    format_interval,
    format_number,
    format_percent,
    format_with_interval,
    join_words,
)
from abstain.core.markdown import heading, is_defined, paragraph, table
from abstain.reports.evaluation.evaluation_result import EvaluationResult, highlighted_table
from abstain.reports.page import plot


def calibration_section(result: EvaluationResult) -> list[str]:
    """Render the calibration of the served scorer.

    Args:
        result: Measurements of the candidate.

    Returns:
        Markdown blocks.
    """
    calibration = result.evaluation["calibration"]
    rows = [
        [row["method"], *(format_with_interval(row, name) for name in ("ece", "brier"))]
        for row in calibration["by_method"]
    ]
    caption = "Calibrators, fitted on validation, measured on the hold-out; none: the confidence as it is"
    return [
        heading(2, "Calibration"),
        paragraph(_describe_calibration(calibration)),
        highlighted_table(("method", "ECE", "Brier"), rows, caption, marked=calibration["method"]),
        *_reliability_plot(result),
        *_reliability_by_product(result),
        *_confidence_plot(result),
    ]


def slice_section(result: EvaluationResult) -> list[str]:
    """Render the served scorer by slice of the hold-out.

    Args:
        result: Measurements of the candidate.

    Returns:
        Markdown blocks.
    """
    slices = result.evaluation["slices"]
    columns = ("by", "slice", "answers", "n_eff", "correct", "AUROC", "ECE", "Brier", "shown", "precision")
    caption = "The served scorer by slice of the hold-out; n_eff: effective sample size"
    by_slice = table(columns, map(_format_slice, slices), caption, text_columns=("by", "slice", "precision"))
    return [heading(2, "Slices"), paragraph(_describe_weak_slices(result, slices)), by_slice]


def _format_slice(row: Mapping[str, Any]) -> list[str]:
    cells = [
        row["by"],
        row["slice"],
        f"{row['rows']:,}",
        format_number(row["n_eff"], ",.0f"),
        format_percent(row["base_rate"]),
    ]
    if not any(is_defined(row[name]) for name in ("auroc", "ece", "precision")):
        return [*cells, row["note"]]
    cells += [
        format_with_interval(row, "auroc"),
        format_number(row["ece"]),
        format_number(row["brier"]),
        f"{row['shown']:,}",
    ]
    if is_defined(row["precision"]):
        return [
            *cells,
            f"{format_percent(row['precision'])} ({row['note']})" if row["note"] else format_percent(row["precision"]),
        ]
    return [*cells, row["note"] or format_number(None)]


def _describe_calibration(calibration: Mapping[str, Any]) -> str:
    by_method = {row["method"]: row for row in calibration["by_method"]}
    raw, calibrated = by_method.get("none"), by_method.get(calibration["method"])
    text = "ECE is by how much a probability is off, on average: 0.05 means 5 points."
    if raw is None or calibrated is None or not is_defined(raw["ece"]) or not is_defined(calibrated["ece"]):
        return text
    if calibration["method"] == "none":
        return f"{text} The confidence is served as it is: its ECE is {format_number(raw['ece'])}."
    return (
        f"{text} The served scorer's is {format_number(raw['ece'])} as it is and {format_number(calibrated['ece'])} "
        "after "
        f"{calibration['method'].replace('_', '-')} calibration ({format_interval(calibrated, 'ece')}). Calibration "
        "changes what a "
        "confidence says, never which answers are shown first."
    )


def _describe_weak_slices(result: EvaluationResult, slices: list[Mapping[str, Any]]) -> str:
    """Name the slices below the target; a guarantee is about all answers and not about each slice."""
    measured = [row for row in slices if is_defined(row["precision"])]
    text = f"{len(measured)} of {len(slices)} slices have enough shown answers to be judged."
    if not result.is_precision or not measured:
        return text
    target = result.guarantee.target
    below = sorted((row for row in measured if row["precision"] < target - 1e-9), key=lambda row: row["precision"])
    if not below:
        return f"{text} In all of them at least {format_configured_share(target)} of the shown answers are correct."
    names = join_words([f"{row['by']} {row['slice']} ({format_percent(row['precision'])})" for row in below])
    return (
        f"{text} Fewer than {format_configured_share(target)} of the shown answers are correct in {len(below)} of "
        "them, lowest first: "
        f"{names}. What is guaranteed is guaranteed of all answers, not of each slice."
    )


def _reliability_plot(result: EvaluationResult) -> list[str]:
    items = [text for text in (_describe_largest_gap(result, kind) for kind in ("raw", "calibrated")) if text]
    return plot(
        "reliability",
        "Confidence against the share that is correct",
        f"Farthest from the diagonal: {'; '.join(items)}." if items else "Not defined: no answer has a confidence.",
        "On the diagonal, a probability is exact; the larger a point, the more answers it stands for.",
    )


def _reliability_by_product(result: EvaluationResult) -> list[str]:
    table = result.tables["reliability_by_product"]
    products = [str(name) for name in table["kind"].drop_duplicates()]
    ece_by_product = {row["slice"]: row["ece"] for row in result.evaluation["slices"] if row["by"] == "product"}
    items = [
        f"{name} {format_number(ece_by_product[name])}" for name in products if is_defined(ece_by_product.get(name))
    ]
    return plot(
        "reliability_by_product",
        "The same by product, calibrated",
        f"ECE: {join_words(items)}." if items else "No product has enough answers to be judged.",
        "The products with most answers; a line below the diagonal is overconfident.",
    )


def _describe_largest_gap(result: EvaluationResult, kind: str) -> str:
    """Describe the bin whose probability is off by most, weighted by its answers."""
    table = result.tables["reliability"]
    bins = table[table["kind"] == kind].dropna()
    if bins.empty:
        return ""
    gap: pd.Series = (bins["confidence"] - bins["accuracy"]).abs() * bins["share"]
    row = bins.iloc[int(gap.to_numpy().argmax())]
    return (
        f"{kind}, where {format_percent(row['confidence'], 0)} are said to be correct, "
        f"{format_percent(row['accuracy'], 0)} are "
        f"({int(row['rows'])} answers)"
    )


def _confidence_plot(result: EvaluationResult) -> list[str]:
    point, base = result.at_threshold, result.holdout["base_rate"]
    incorrect_share = None
    if is_defined(point["precision"]) and is_defined(base) and base < 1:
        incorrect_share = point["coverage"] * (1 - point["precision"]) / (1 - base)
    return plot(
        "confidence",
        "Confidence of correct and incorrect answers",
        f"At or above the threshold {format_number(point['threshold'])} lie {format_percent(point['recall'])} of the "
        "correct answers and "
        f"{format_percent(incorrect_share)} of the incorrect ones.",
        "Bars upwards: correct answers; downwards: incorrect ones. What is left of the line is withheld.",
    )
