"""Whether the probe's figures can be taken at their word: calibration, and the slices that an average may hide."""

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


def calibration_section(evaluated: EvaluationResult) -> list[str]:
    calibration = evaluated.evaluation["calibration"]
    rows = [
        [row["method"], *(format_with_interval(row, name) for name in ("ece", "brier"))]
        for row in calibration["by_method"]
    ]
    caption = "Calibrators, fitted on validation, measured on the hold-out; none: the confidence as it is"
    return [
        heading(2, "Calibration"),
        paragraph(_calibrated(calibration)),
        highlighted_table(("method", "ECE", "Brier"), rows, caption, marked=calibration["method"]),
        *_reliability_plot(evaluated),
        *_reliability_by_product(evaluated),
        *_confidence_plot(evaluated),
    ]


def slice_section(evaluated: EvaluationResult) -> list[str]:
    slices = evaluated.evaluation["slices"]
    columns = ("by", "slice", "answers", "n_eff", "correct", "AUROC", "ECE", "Brier", "shown", "precision")
    caption = "The served scorer by slice of the hold-out; n_eff: effective sample size"
    by_slice = table(columns, map(_slice, slices), caption, words=("by", "slice", "precision"))
    return [heading(2, "Slices"), paragraph(_describe_weak_slices(evaluated, slices)), by_slice]


def _slice(row: Mapping[str, Any]) -> list[str]:
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


def _calibrated(calibration: Mapping[str, Any]) -> str:
    by_method = {row["method"]: row for row in calibration["by_method"]}
    raw, own = by_method.get("none"), by_method.get(calibration["method"])
    text = "ECE is by how much a probability is off, on average: 0.05 means 5 points."
    if raw is None or own is None or not is_defined(raw["ece"]) or not is_defined(own["ece"]):
        return text
    if calibration["method"] == "none":
        return f"{text} The confidence is served as it is: its ECE is {format_number(raw['ece'])}."
    return (
        f"{text} The served scorer's is {format_number(raw['ece'])} as it is and {format_number(own['ece'])} after "
        f"{calibration['method'].replace('_', '-')} calibration ({format_interval(own, 'ece')}). Calibration changes what a "
        "confidence says, never which answers are shown first."
    )


def _describe_weak_slices(evaluated: EvaluationResult, slices: list[Mapping[str, Any]]) -> str:
    """How many slices are below the target, by name; a guarantee is about all answers and not about each slice."""
    judged = [row for row in slices if is_defined(row["precision"])]
    text = f"{len(judged)} of {len(slices)} slices have enough shown answers to be judged."
    if not evaluated.is_precision or not judged:
        return text
    target = evaluated.threshold["target"]
    below = sorted((row for row in judged if row["precision"] < target - 1e-9), key=lambda row: row["precision"])
    if not below:
        return f"{text} In all of them at least {format_configured_share(target)} of the shown answers are correct."
    named = join_words([f"{row['by']} {row['slice']} ({format_percent(row['precision'])})" for row in below])
    return (
        f"{text} Fewer than {format_configured_share(target)} of the shown answers are correct in {len(below)} of them, lowest first: "
        f"{named}. What is guaranteed is guaranteed of all answers, not of each slice."
    )


def _reliability_plot(evaluated: EvaluationResult) -> list[str]:
    items = [text for text in (_gap(evaluated, kind) for kind in ("raw", "calibrated")) if text]
    return plot(
        "reliability",
        "Confidence against the share that is correct",
        f"Farthest from the diagonal: {'; '.join(items)}." if items else "Not defined: no answer has a confidence.",
        "On the diagonal, a probability is exact; the larger a point, the more answers it stands for.",
    )


def _reliability_by_product(evaluated: EvaluationResult) -> list[str]:
    table = evaluated.tables["reliability_by_product"]
    shown = [str(name) for name in table["kind"].drop_duplicates()]
    off = {row["slice"]: row["ece"] for row in evaluated.evaluation["slices"] if row["by"] == "product"}
    items = [f"{name} {format_number(off[name])}" for name in shown if is_defined(off.get(name))]
    return plot(
        "reliability_by_product",
        "The same by product, calibrated",
        f"ECE: {join_words(items)}." if items else "No product has enough answers to be judged.",
        "The products with most answers; a line below the diagonal is overconfident.",
    )


def _gap(evaluated: EvaluationResult, kind: str) -> str:
    """Where a probability is off by most, counting each bin by its answers."""
    table = evaluated.tables["reliability"]
    known = table[table["kind"] == kind].dropna()
    if known.empty:
        return ""
    off: pd.Series = (known["confidence"] - known["accuracy"]).abs() * known["share"]
    row = known.iloc[int(off.to_numpy().argmax())]
    return (
        f"{kind}, where {format_percent(row['confidence'], 0)} are said to be correct, {format_percent(row['accuracy'], 0)} are "
        f"({int(row['rows'])} answers)"
    )


def _confidence_plot(evaluated: EvaluationResult) -> list[str]:
    at, base = evaluated.at_threshold, evaluated.holdout["base_rate"]
    wrong = None
    if is_defined(at["precision"]) and is_defined(base) and base < 1:
        wrong = at["coverage"] * (1 - at["precision"]) / (1 - base)
    return plot(
        "confidence",
        "Confidence of correct and incorrect answers",
        f"At or above the threshold {format_number(at['threshold'])} lie {format_percent(at['recall'])} of the correct answers and "
        f"{format_percent(wrong)} of the incorrect ones.",
        "Bars upwards: correct answers; downwards: incorrect ones. What is left of the line is withheld.",
    )
