"""Whether the hold-out bears out what was guaranteed, as one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from abstain.core.formatting import format_percent
from abstain.core.markdown import is_defined
from abstain.reports.evaluation.evaluation_result import get_metric_value, meets_target


def summarize_holdout(holdout: Mapping[str, Any]) -> str:
    """`kept` or `missed` with the measured value, its interval and the number of answers that it was measured on.

    Where there are too few, the number that is missing.

    Args:
        holdout: of metrics.json.
    """
    target, at = holdout["target"], holdout["at_threshold"]
    metric, is_precision = target["metric"], target["metric"] == "precision"
    value = get_metric_value(metric, at)
    if value is None or not at["coverage"]:
        return "cannot be judged: nothing is shown on the hold-out"
    if at["shown_n_eff"] < target["min_rows"]:
        missing, there = math.ceil(target["min_rows"] - at["shown_n_eff"]), at["shown"]
        return (
            f"cannot be judged: {missing:,} more shown reviewed answers of the hold-out are needed, {there:,} are there"
        )
    rows, what = (at["shown"], "shown reviewed answers") if is_precision else (holdout["rows"], "reviewed answers")
    low, high = at[f"{metric}_low"], at[f"{metric}_high"]
    interval = (
        f" (95 % interval {format_percent(low)} to {format_percent(high)})"
        if is_defined(low) and is_defined(high)
        else ""
    )
    kept = "kept" if meets_target(metric, target["value"], value) else "missed"
    shown = "" if is_precision else f", {at['shown']:,} of them shown"
    return f"{kept} on the hold-out: {format_percent(value)}{interval} of {rows:,} {what}{shown}{_describe_uncertainty(low, high, target)}"


def _describe_uncertainty(low: float | None, high: float | None, target: Mapping[str, Any]) -> str:
    """That the interval holds the target, so that either verdict may be chance."""
    if low is None or high is None or not low < target["value"] < high:
        return ""
    return "; the interval holds the target, so this may be chance"
