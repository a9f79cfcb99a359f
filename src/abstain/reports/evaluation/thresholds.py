"""Metrics at each threshold (table 2 of Huang et al.), and other layers, sites and numbers of chunks (its table 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from abstain.core.formatting import (
    format_configured_share,
    format_count,
    format_interval,
    format_number,
    format_percent,
    format_with_interval,
    join_words,
)
from abstain.core.markdown import bold_row, heading, is_defined, paragraph, table
from abstain.reports.evaluation.evaluation_result import EvaluationResult, get_metric_value, highlighted_table
from abstain.reports.evaluation.ranking import rank_scorers
from abstain.reports.page import plot

HALF = 0.5
TUNED = ("threshold", "precision", "recall", "withheld", "ROUGE-L shown", "ROUGE-L withheld")


def threshold_section(result: EvaluationResult) -> list[str]:
    """Render coverage and precision by threshold.

    Args:
        result: Measurements of the candidate.

    Returns:
        Markdown blocks.
    """
    return [
        heading(2, "Thresholds: coverage and precision"),
        paragraph(
            "An answer is shown when its confidence is at or above the threshold, and withheld otherwise. "
            "A higher threshold shows fewer answers; of these, more are correct."
        ),
        _threshold_comparison(result),
        *_threshold_plot(result),
        *_risk_coverage_plot(result),
        threshold_table(result.tables["threshold"]),
        _scorers_table(result),
    ]


def _threshold_comparison(result: EvaluationResult) -> str:
    """Compare the served threshold with the heuristic one and with showing everything."""
    threshold, holdout = result.threshold, result.holdout
    everything = {"coverage": 1.0, "precision": holdout["base_rate"], "recall": 1.0}
    rows = [["everything shown", "none", "", "", *_format_rates(everything)]]
    if result.has_guarantee and threshold["heuristic"]:
        rows.append(
            _format_comparison(
                "heuristic: just good enough on validation", threshold["heuristic"], holdout["at_heuristic"]
            )
        )
    served = "served: heuristic, without a guarantee"
    if result.has_guarantee:
        served = f"served: guaranteed{', not checked yet' if result.too_few_shown else ''}"
    rows.append(bold_row(_format_comparison(served, result.guarantee.estimates.model_dump(), result.at_threshold)))
    columns = (
        "what is shown",
        "threshold",
        "validation: coverage",
        "validation: precision",
        "hold-out: coverage",
        "hold-out: precision",
        "hold-out: error rate",
        "hold-out: recall",
    )
    return table(columns, rows, "Each threshold on the answers that it was chosen on, and on the hold-out")


def _format_rates(point: Mapping[str, Any]) -> tuple[str, str, str, str]:
    error_rate = get_metric_value("error_rate", point)
    return (
        format_percent(point["coverage"]),
        format_percent(point["precision"]),
        format_percent(error_rate),
        format_percent(point["recall"]),
    )


def _format_comparison(name: str, tuned: Mapping[str, Any], point: Mapping[str, Any]) -> list[str]:
    on_validation = format_percent(tuned["coverage"]), format_percent(tuned["precision"])
    return [name, format_number(point["threshold"]), *on_validation, *_format_rates(point)]


def threshold_table(thresholds: pd.DataFrame) -> str:
    """Render the rows of `threshold.csv`; the mark of a threshold is guaranteed or heuristic.

    Args:
        thresholds: The table, one row per threshold.

    Returns:
        Markdown.
    """
    has_rouge = _has_rouge(thresholds)
    columns = ["threshold", "mark", "precision", "recall", "coverage", "withheld", "accuracy", "F1"]
    if has_rouge:
        columns += ["ROUGE-L shown", "ROUGE-L withheld"]
    rows = []
    for point in thresholds.to_dict("records"):
        rates = (
            format_percent(point[name]) for name in ("precision", "recall", "coverage", "abstention_rate", "accuracy")
        )
        cells = [format_number(point["threshold"]), point["mark"], *rates, format_number(point["f1"])]
        if has_rouge:
            cells += [_format_rouge(point, part) for part in ("shown", "withheld")]
        rows.append(bold_row(cells) if point["mark"] else cells)
    caption = "Thresholds on the hold-out (the paper's table 2)"
    if has_rouge:
        caption += "; ROUGE-L is the likeness to the reviewer's ideal answer, where there is one"
    return table(columns, rows, caption, text_columns=("mark",))


def _scorers_table(result: EvaluationResult) -> str:
    """Render the metrics of every scorer at its own threshold, tuned on validation, best AUROC first."""
    tuned = result.evaluation["at_own_threshold"]
    names = [name for name in rank_scorers(result.scorers) if name in tuned]
    columns = ("scorer", *(TUNED if _has_rouge(result.tables["threshold"]) else TUNED[:-2]))
    rows = [[name, *_format_tuned(tuned[name])][: len(columns)] for name in names]
    caption = (
        "Every scorer at a threshold of its own, just good enough on validation (heuristic: nothing is guaranteed)"
    )
    return highlighted_table(columns, rows, caption, marked=result.served_scorer["name"])


def _format_tuned(row: Mapping[str, Any]) -> list[str]:
    if not is_defined(row.get("threshold")):  # out of reach on validation
        return [row["note"]]
    shares = (format_percent(row[name]) for name in ("precision", "recall", "abstention_rate"))
    return [
        format_number(row["threshold"]),
        *shares,
        *(format_number(row[f"rouge_{part}"]) for part in ("shown", "withheld")),
    ]


def ablation_section(result: EvaluationResult) -> list[str]:
    """Render the comparison of layers, sites and numbers of chunks.

    Args:
        result: Measurements of the candidate.

    Returns:
        Markdown blocks; none if there was no sweep.
    """
    ablations = result.evaluation["ablations"]
    if not ablations:
        return []
    caption = "Probe sites: layer, site, and how many of the best chunks are in the prompt (the paper's table 4)"
    columns = (
        "layer",
        "site",
        "chunks",
        "AUROC out of fold",
        "AUROC on the hold-out",
        *TUNED,
    )
    sites = table(columns, map(_format_site, ablations), caption, text_columns=("layer", "site", "chunks"))
    return [heading(2, "Other layers, sites and numbers of chunks"), paragraph(*_describe_best_site(ablations)), sites]


def _describe_best_site(ablations: list[Mapping[str, Any]]) -> list[str]:
    text = ["A probe of one architecture is trained for each place, and its threshold is set on validation alone. "]
    defined = [row for row in ablations if is_defined(row["out_of_fold"])]
    if not defined:
        return text
    best = max(defined, key=lambda row: row["out_of_fold"])
    served = next((row for row in defined if row["served"]), None)
    finding = f"Best out of fold: {_describe_site(best)} with {format_number(best['out_of_fold'])}"
    if best["served"]:
        return [*text, f"{finding}, the site of the exported probe."]
    if served is None:
        return [*text, f"{finding}."]
    text.append(
        f"{finding}; the exported probe reads {_describe_site(served)} with {format_number(served['out_of_fold'])}. "
    )
    interval = served["auroc_low"], served["auroc_high"]
    if is_defined(best["auroc"]) and all(is_defined(value) for value in interval):
        is_within = interval[0] <= best["auroc"] <= interval[1]
        text.append(
            f"On the hold-out that place has {format_number(best['auroc'])}, "
            + ("within" if is_within else "outside")
            + f" the interval of the served one ({format_interval(served, 'auroc')})."
        )
    return text


def _describe_site(row: Mapping[str, Any]) -> str:
    chunks = "" if row["chunks"] is None else f", {format_count(row['chunks'], 'chunk')}"
    return f"layer {row['layer']}, {row['site']}{chunks}"


def _format_site(row: Mapping[str, Any]) -> list[str]:
    layer = f"{row['layer']} (served)" if row["served"] else str(row["layer"])
    cells = [
        layer,
        row["site"],
        "all" if row["chunks"] is None else str(row["chunks"]),
        format_number(row["out_of_fold"]),
        format_with_interval(row, "auroc"),
        *_format_tuned(row),
    ]
    return bold_row(cells) if row["served"] else cells


def _has_rouge(table: pd.DataFrame) -> bool:
    return any(is_defined(value) for value in table["rouge_shown"])


def _format_rouge(point: Mapping[Any, Any], part: str) -> str:
    return f"{format_number(point[f'rouge_{part}'])} ({format_count(int(point[f'rouge_{part}_answers']), 'answer')})"


def _threshold_plot(result: EvaluationResult) -> list[str]:
    table = result.tables["threshold"]
    items = [
        f"at the {row['mark']} threshold {format_number(row['threshold'])}, {format_percent(row['coverage'])} of the "
        "answers are "
        f"shown and {format_percent(row['precision'])} of these are correct"
        for row in table.to_dict("records")
        if row["mark"]
    ]
    base = format_percent(result.holdout["base_rate"])
    return plot(
        "threshold",
        "Precision and coverage",
        f"With no threshold all answers are shown and {base} are correct; {'; '.join(items)}.",
        f"Vertical lines: the thresholds; horizontal: the {format_configured_share(result.guarantee.target)} aimed at.",
    )


def _risk_coverage_plot(result: EvaluationResult) -> list[str]:
    items = []
    for name, curve in result.tables["risk_coverage"].groupby("scorer", sort=False):
        points = curve.dropna().sort_values("coverage")
        if len(points):
            first = int(np.searchsorted(points["coverage"].to_numpy(), HALF))
            risk = points["risk"].iloc[min(first, len(points) - 1)]
            items.append(f"{name} {format_percent(float(risk))}")
    base = result.holdout["base_rate"]
    everything = format_percent(1 - base) if is_defined(base) else format_number(None)
    text = f"Where the most confident half is shown, of these are incorrect: {join_words(items)}. " if items else ""
    return plot(
        "risk_coverage",
        "Risk against coverage",
        f"{text}Where everything is shown, {everything} are incorrect.",
        "The lower a line, the better is what the scorer shows first.",
    )
