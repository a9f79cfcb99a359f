"""One sentence on whether the guarantee holds on the hold-out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from abstain.core.formatting import format_percent
from abstain.core.markdown import is_defined
from abstain.learning.evaluation.evaluation_result import get_metric_value, meets_target


def summarize_holdout(holdout: Mapping[str, Any]) -> str:
    """Summarize whether the guarantee holds on the hold-out.

    Args:
        holdout: Section of metrics.json.

    Returns:
        `kept` or `missed` with the measured value, its interval and the number of answers; with too few answers, the
        number that is missing.
    """
    target, at_threshold = holdout["target"], holdout["at_threshold"]
    metric, is_precision = target["metric"], target["metric"] == "precision"
    value = get_metric_value(metric, at_threshold)
    if value is None or not at_threshold["coverage"]:
        return "cannot be judged: nothing is shown on the hold-out"
    if at_threshold["shown_n_eff"] < target["min_n_eff"]:
        missing, n_shown = math.ceil(target["min_n_eff"] - at_threshold["shown_n_eff"]), at_threshold["shown"]
        return (
            f"cannot be judged: {missing:,} more shown reviewed answers of the hold-out are needed, {n_shown:,} are "
            "there"
        )
    rows, unit = (
        (at_threshold["shown"], "shown reviewed answers") if is_precision else (holdout["rows"], "reviewed answers")
    )
    low, high = at_threshold[f"{metric}_low"], at_threshold[f"{metric}_high"]
    interval = (
        f" (95 % interval {format_percent(low)} to {format_percent(high)})"
        if is_defined(low) and is_defined(high)
        else ""
    )
    outcome = "kept" if meets_target(metric, target["value"], value) else "missed"
    suffix = "" if is_precision else f", {at_threshold['shown']:,} of them shown"
    return (
        f"{outcome} on the hold-out: {format_percent(value)}{interval} of {rows:,} "
        f"{unit}{suffix}{_describe_uncertainty(low, high, target)}"
    )


def _describe_uncertainty(low: float | None, high: float | None, target: Mapping[str, Any]) -> str:
    """Describe that the interval includes the target, so that either result may be chance; "" if it does not."""
    if low is None or high is None or not low < target["value"] < high:
        return ""
    return "; the interval holds the target, so this may be chance"
