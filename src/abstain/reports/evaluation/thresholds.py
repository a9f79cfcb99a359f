"""What every threshold gives (the paper's table 2), and other layers, sites and numbers of chunks (its table 4)."""

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


def threshold_section(evaluated: EvaluationResult) -> list[str]:
    return [
        heading(2, "Thresholds: coverage and precision"),
        paragraph(
            "An answer is shown when its confidence is at or above the threshold, and withheld otherwise. "
            "A higher threshold shows fewer answers; of these, more are correct."
        ),
        _comparison(evaluated),
        *_threshold_plot(evaluated),
        *_risk_coverage_plot(evaluated),
        threshold_table(evaluated.tables["threshold"]),
        _scorers_table(evaluated),
    ]


def _comparison(evaluated: EvaluationResult) -> str:
    """The served threshold beside the heuristic one and beside showing everything."""
    threshold, holdout = evaluated.threshold, evaluated.holdout
    everything = {"coverage": 1.0, "precision": holdout["base_rate"], "recall": 1.0}
    rows = [["everything shown", "none", "", "", *_gives(everything)]]
    if threshold["guaranteed"] and threshold["heuristic"]:
        rows.append(
            _compared("heuristic: just good enough on validation", threshold["heuristic"], holdout["at_heuristic"])
        )
    served = "served: heuristic, without a guarantee"
    if threshold["guaranteed"]:
        served = f"served: guaranteed{', not checked yet' if evaluated.too_few_shown else ''}"
    rows.append(bold_row(_compared(served, threshold, evaluated.at_threshold)))
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


def _gives(at: Mapping[str, Any]) -> tuple[str, str, str, str]:
    wrong = get_metric_value("error_rate", at)
    return (
        format_percent(at["coverage"]),
        format_percent(at["precision"]),
        format_percent(wrong),
        format_percent(at["recall"]),
    )


def _compared(name: str, tuned: Mapping[str, Any], at: Mapping[str, Any]) -> list[str]:
    on_validation = format_percent(tuned["coverage"]), format_percent(tuned["precision"])
    return [name, format_number(at["threshold"]), *on_validation, *_gives(at)]


def threshold_table(thresholds: pd.DataFrame) -> str:
    """The rows of `threshold.csv`; the marked thresholds are said to be guaranteed, or heuristic."""
    has_rouge = _has_rouge(thresholds)
    columns = ["threshold", "mark", "precision", "recall", "coverage", "withheld", "accuracy", "F1"]
    if has_rouge:
        columns += ["ROUGE-L shown", "ROUGE-L withheld"]
    rows = []
    for at in thresholds.to_dict("records"):
        rates = (
            format_percent(at[name]) for name in ("precision", "recall", "coverage", "abstention_rate", "accuracy")
        )
        cells = [format_number(at["threshold"]), at["mark"], *rates, format_number(at["f1"])]
        if has_rouge:
            cells += [_rouge(at, part) for part in ("shown", "withheld")]
        rows.append(bold_row(cells) if at["mark"] else cells)
    caption = "Thresholds on the hold-out (the paper's table 2)"
    if has_rouge:
        caption += "; ROUGE-L is the likeness to the reviewer's ideal answer, where there is one"
    return table(columns, rows, caption, words=("mark",))


def _scorers_table(evaluated: EvaluationResult) -> str:
    """The coverage of every scorer at its own threshold tuned on validation, best AUROC first."""
    own = evaluated.evaluation["at_own_threshold"]
    names = [name for name in rank_scorers(evaluated.scorers) if name in own]
    columns = ("scorer", *(TUNED if _has_rouge(evaluated.tables["threshold"]) else TUNED[:-2]))
    rows = [[name, *_tuned(own[name])][: len(columns)] for name in names]
    caption = (
        "Every scorer at a threshold of its own, just good enough on validation (heuristic: nothing is guaranteed)"
    )
    return highlighted_table(columns, rows, caption, marked=evaluated.served["name"])


def _tuned(row: Mapping[str, Any]) -> list[str]:
    if not is_defined(row.get("threshold")):  # out of reach on validation
        return [row["note"]]
    shares = (format_percent(row[name]) for name in ("precision", "recall", "abstention_rate"))
    return [
        format_number(row["threshold"]),
        *shares,
        *(format_number(row[f"rouge_{part}"]) for part in ("shown", "withheld")),
    ]


def ablation_section(evaluated: EvaluationResult) -> list[str]:
    """Layers, sites and numbers of chunks; empty where nothing was swept."""
    swept = evaluated.evaluation["ablations"]
    if not swept:
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
    places = table(columns, map(_site_row, swept), caption, words=("layer", "site", "chunks"))
    return [heading(2, "Other layers, sites and numbers of chunks"), paragraph(*_best_site(swept)), places]


def _best_site(swept: list[Mapping[str, Any]]) -> list[str]:
    text = ["A probe of one architecture is trained for each place, and its threshold is set on validation alone. "]
    known = [row for row in swept if is_defined(row["out_of_fold"])]
    if not known:
        return text
    best = max(known, key=lambda row: row["out_of_fold"])
    here = next((row for row in known if row["served"]), None)
    found = f"Best out of fold: {_place(best)} with {format_number(best['out_of_fold'])}"
    if best["served"]:
        return [*text, f"{found}, the site of the exported probe."]
    if here is None:
        return [*text, f"{found}."]
    text.append(f"{found}; the exported probe reads {_place(here)} with {format_number(here['out_of_fold'])}. ")
    own = here["auroc_low"], here["auroc_high"]
    if is_defined(best["auroc"]) and all(is_defined(value) for value in own):
        within = own[0] <= best["auroc"] <= own[1]
        text.append(
            f"On the hold-out that place has {format_number(best['auroc'])}, "
            + ("within" if within else "outside")
            + f" the interval of the served one ({format_interval(here, 'auroc')})."
        )
    return text


def _place(row: Mapping[str, Any]) -> str:
    chunks = "" if row["chunks"] is None else f", {format_count(row['chunks'], 'chunk')}"
    return f"layer {row['layer']}, {row['site']}{chunks}"


def _site_row(row: Mapping[str, Any]) -> list[str]:
    layer = f"{row['layer']} (served)" if row["served"] else str(row["layer"])
    cells = [
        layer,
        row["site"],
        "all" if row["chunks"] is None else str(row["chunks"]),
        format_number(row["out_of_fold"]),
        format_with_interval(row, "auroc"),
        *_tuned(row),
    ]
    return bold_row(cells) if row["served"] else cells


def _has_rouge(table: pd.DataFrame) -> bool:
    return any(is_defined(value) for value in table["rouge_shown"])


def _rouge(at: Mapping[Any, Any], part: str) -> str:
    return f"{format_number(at[f'rouge_{part}'])} ({format_count(int(at[f'rouge_{part}_answers']), 'answer')})"


def _threshold_plot(evaluated: EvaluationResult) -> list[str]:
    table = evaluated.tables["threshold"]
    items = [
        f"at the {row['mark']} threshold {format_number(row['threshold'])}, {format_percent(row['coverage'])} of the answers are "
        f"shown and {format_percent(row['precision'])} of these are correct"
        for row in table.to_dict("records")
        if row["mark"]
    ]
    base = format_percent(evaluated.holdout["base_rate"])
    return plot(
        "threshold",
        "Precision and coverage",
        f"With no threshold all answers are shown and {base} are correct; {'; '.join(items)}.",
        f"Vertical lines: the thresholds; horizontal: the {format_configured_share(evaluated.threshold['target'])} aimed at.",
    )


def _risk_coverage_plot(evaluated: EvaluationResult) -> list[str]:
    items = []
    for name, curve in evaluated.tables["risk_coverage"].groupby("scorer", sort=False):
        known = curve.dropna().sort_values("coverage")
        if len(known):
            first = int(np.searchsorted(known["coverage"].to_numpy(), HALF))
            at = known["risk"].iloc[min(first, len(known) - 1)]
            items.append(f"{name} {format_percent(float(at))}")
    base = evaluated.holdout["base_rate"]
    everything = format_percent(1 - base) if is_defined(base) else format_number(None)
    shows = f"Where the most confident half is shown, of these are incorrect: {join_words(items)}. " if items else ""
    return plot(
        "risk_coverage",
        "Risk against coverage",
        f"{shows}Where everything is shown, {everything} are incorrect.",
        "The lower a line, the better is what the scorer shows first.",
    )
