"""One sentence on whether the guarantee holds on the hold-out."""

from __future__ import annotations

import math

from abstain.core.formatting import format_percent
from abstain.core.markdown import is_defined
from abstain.learning.evaluation.evaluation_result import HoldoutMetrics, Target, get_metric_value, meets_target
from abstain.learning.thresholds.guarantee import MIN_SHOWN_GROUPS


def summarize_holdout(holdout: HoldoutMetrics) -> str:
    """Summarize whether the guarantee holds on the hold-out.

    Args:
        holdout: Section of metrics.json.

    Returns:
        `kept` or `missed` with the measured value, its interval and the number of answers; with too few answers, the
        number that is missing.
    """
    target, point = holdout.target, holdout.at_threshold
    metric, is_precision = target.metric, target.metric == "precision"
    value = get_metric_value(metric, point)
    if value is None or not point.coverage:
        return "cannot be judged: nothing is shown on the hold-out"
    if point.shown_groups < MIN_SHOWN_GROUPS:
        return (
            f"cannot be judged: shown reviewed answers of {MIN_SHOWN_GROUPS} documents are needed, they are of "
            f"{point.shown_groups}"
        )
    if point.shown_n_eff < target.min_n_eff:
        missing = math.ceil(target.min_n_eff - point.shown_n_eff)
        return (
            f"cannot be judged: {missing:,} more shown reviewed answers of the hold-out are needed, {point.shown:,} "
            "are there"
        )
    rows, unit = (point.shown, "shown reviewed answers") if is_precision else (holdout.rows, "reviewed answers")
    low, high = point.get(f"{metric}_low"), point.get(f"{metric}_high")
    interval = (
        f" (95 % interval {format_percent(low)} to {format_percent(high)})"
        if is_defined(low) and is_defined(high)
        else ""
    )
    outcome = "kept" if meets_target(metric, target.value, value) else "missed"
    suffix = "" if is_precision else f", {point.shown:,} of them shown"
    return (
        f"{outcome} on the hold-out: {format_percent(value)}{interval} of {rows:,} "
        f"{unit}{suffix}{_describe_uncertainty(low, high, target)}"
    )


def _describe_uncertainty(low: float | None, high: float | None, target: Target) -> str:
    """Describe that the interval includes the target, so that either result may be chance; "" if it does not."""
    if low is None or high is None or not low < target.value < high:
        return ""
    return "; the interval holds the target, so this may be chance"
