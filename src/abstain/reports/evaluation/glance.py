"""The figures that are read first, and the threshold beside what else might be done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from abstain.core.markdown import bold_row, defined, key_figures, table
from abstain.reports.evaluation.evaluated import Evaluated, reached
from abstain.reports.formatting import beside, bounds, figure, percent, share


def tiles(evaluated: Evaluated) -> str:
    """The figures that are read first."""
    threshold, at, probe = evaluated.threshold, evaluated.at, evaluated.probe
    is_precision, target = evaluated.is_precision, threshold["target"]
    limit, of_what = (
        ("≥", "of the shown answers correct") if is_precision else ("≤", "of all answers shown and incorrect")
    )
    aim = (
        f"guaranteed, with confidence {share(threshold['confidence'])}"
        if threshold["guaranteed"]
        else "aimed at, not guaranteed"
    )
    found = [
        (f"{limit} {share(target)}", f"{of_what} ({aim})"),
        (
            beside(reached(evaluated.metric, at), target),
            f"{of_what} (measured on the hold-out{_interval(evaluated)})",
        ),
        (percent(at["coverage"]), f"of the answers shown (confidence of {figure(at['threshold'])} or more)"),
        (percent(evaluated.holdout["base_rate"]), "correct if everything were shown (on the hold-out)"),
        (figure(probe["auroc"]), f"AUROC of the served probe (95 % interval {bounds(probe, 'auroc')})"),
    ]
    if not threshold["guaranteed"] and threshold["reviews_needed"]:
        needed = f"{threshold['reviews_needed']:,}"
        more = (needed, f"reviews needed for the guarantee ({threshold['rows']:,} are there)")
        return key_figures([*found, more])
    caught = f"{figure(probe['error_recall_over_random'], '.1f')} times what random withholding catches"
    none = "equal confidences cannot be parted"
    below = caught if defined(probe["error_recall_over_random"]) else none
    more = (percent(probe["error_recall_at_15pct"]), f"of the errors caught with 15 % withheld ({below})")
    return key_figures([*found, more])


def comparison(evaluated: Evaluated) -> str:
    """The served threshold beside the heuristic one and beside showing everything."""
    threshold, holdout = evaluated.threshold, evaluated.holdout
    everything = {"coverage": 1.0, "precision": holdout["base_rate"], "recall": 1.0}
    rows = [["everything shown", "none", "", "", *_gives(everything)]]
    if threshold["guaranteed"] and threshold["heuristic"]:
        rows.append(
            _compared("heuristic: just good enough on validation", threshold["heuristic"], holdout["at_heuristic"])
        )
    served = "served: guaranteed" if threshold["guaranteed"] else "served: heuristic, without a guarantee"
    rows.append(bold_row(_compared(served, threshold, evaluated.at)))
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


def _interval(evaluated: Evaluated) -> str:
    metric, at = evaluated.metric, evaluated.at
    if evaluated.too_few:
        return f": {evaluated.too_few}"
    if at.get(f"{metric}_low") is None or at.get(f"{metric}_high") is None:
        return ""
    return f", 95 % interval {percent(at[f'{metric}_low'])} to {percent(at[f'{metric}_high'])}"


def _gives(at: Mapping[str, Any]) -> tuple[str, str, str, str]:
    wrong = reached("error_rate", at)
    return percent(at["coverage"]), percent(at["precision"]), percent(wrong), percent(at["recall"])


def _compared(name: str, tuned: Mapping[str, Any], at: Mapping[str, Any]) -> list[str]:
    on_validation = percent(tuned["coverage"]), percent(tuned["precision"])
    return [name, figure(at["threshold"]), *on_validation, *_gives(at)]
