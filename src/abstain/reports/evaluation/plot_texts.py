"""The plots of the evaluation in words and numbers, for whoever does not see them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from abstain.core.formatting import format_number, format_percent
from abstain.core.markdown import is_defined
from abstain.learning.evaluation.evaluation_result import EvaluationResult

UNDEFINED = "Not defined on the {} answers of the hold-out."


def describe_plots(result: EvaluationResult, tables: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """Describe each plot.

    Args:
        result: Evaluation of the candidate.
        tables: The tables of `plots.plot_tables`.

    Returns:
        Name of the plot -> its content in words.
    """
    holdout, evaluation = result.metrics.holdout, result.evaluation
    point, base_rate = holdout.at_threshold, holdout.base_rate
    marked = [
        f"at the {row['mark']} threshold {format_number(row['threshold'])}, {format_percent(row['coverage'])} are "
        f"shown and {format_percent(row['precision'])} of these are correct"
        for row in tables["threshold"].to_dict("records")
        if row["mark"]
    ]
    incorrect_share = None
    if point.precision is not None and point.coverage is not None and base_rate is not None and base_rate < 1:
        incorrect_share = point.coverage * (1 - point.precision) / (1 - base_rate)
    ece_by_product = {row.slice: row.ece for row in evaluation.slices if row.by == "product"}
    products = [str(name) for name in tables["reliability_by_product"]["kind"].drop_duplicates()]
    board = tables["leaderboard"].to_dict("records")
    texts = {
        "threshold": [f"With no threshold all are shown and {format_percent(base_rate)} are correct", *marked],
        "risk_coverage": _read_curves(tables["risk_coverage"], "coverage", "risk", 0.5),
        "roc": _read_curves(tables["roc"], "false_positive_rate", "true_positive_rate", 0.2),
        "leaderboard": [f"{row['scorer']} {format_number(row['auroc'])}" for row in board],
        "reliability": [text for kind in ("raw", "calibrated") if (text := _find_largest_gap(tables, kind))],
        "reliability_by_product": [
            f"{name} {format_number(ece_by_product[name])}" for name in products if is_defined(ece_by_product.get(name))
        ],
    }
    heads = {
        "threshold": "",
        "risk_coverage": "Incorrect among the most confident half of the answers: ",
        "roc": "Correct answers shown if 20 % of the incorrect ones are: ",
        "leaderboard": "AUROC on the hold-out, best first: ",
        "reliability": "Farthest from the diagonal: ",
        "reliability_by_product": "ECE by product: ",
    }
    undefined = UNDEFINED.format(holdout.rows)
    return {name: f"{heads[name]}{'; '.join(parts)}." if parts else undefined for name, parts in texts.items()} | {
        "confidence": f"At or above the threshold {format_number(point.threshold)} lie {format_percent(point.recall)} "
        f"of the correct answers and {format_percent(incorrect_share)} of the incorrect ones."
    }


def _read_curves(table: pd.DataFrame, x: str, y: str, value: float) -> list[str]:
    """Read the curve of each scorer at a value of x."""
    items = []
    for name, curve in table.groupby("scorer", sort=False):
        points = curve.dropna().sort_values(x, kind="stable")
        if len(points):
            items.append(f"{name} {format_percent(float(np.interp(value, points[x], points[y])))}")
    return items


def _find_largest_gap(tables: Mapping[str, pd.DataFrame], kind: str) -> str:
    """Describe the bin whose probability is off by most, weighted by its answers; "" without any."""
    table = tables["reliability"]
    bins = table[table["kind"] == kind].dropna()
    if bins.empty:
        return ""
    gaps: pd.Series = (bins["confidence"] - bins["accuracy"]).abs() * bins["share"]
    row = bins.iloc[int(gaps.to_numpy().argmax())]
    return (
        f"{kind}, {format_percent(row['confidence'], 0)} are said to be correct and "
        f"{format_percent(row['accuracy'], 0)} are ({int(row['rows'])} answers)"
    )
