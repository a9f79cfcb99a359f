"""Verdict of the report: whether the guarantee holds on the hold-out."""

from __future__ import annotations

from dataclasses import dataclass

from abstain.core.formatting import format_configured_share, format_percent, format_percent_near
from abstain.learning.evaluation.evaluation_result import EvaluationResult, get_metric_value, meets_target
from abstain.reports.page import State


@dataclass(frozen=True)
class Verdict:
    """Whether the guarantee holds on the hold-out.

    Attributes:
        state: Passed, warned (no guarantee, or it cannot be checked) or failed.
        headline: The verdict as a title.
        value: The metric on the hold-out; None if it is not defined.
        interval: Its 95 % interval as an addition to a sentence, or why it cannot be checked; "" if there is neither.
        shortfall: By how many answers the target is missed, and whether chance explains it; "" if it is met.
    """

    state: State
    headline: str
    value: float | None
    interval: str
    shortfall: str


def make_verdict(result: EvaluationResult) -> Verdict:
    """Judge the guarantee on the hold-out.

    Args:
        result: Evaluation of the candidate.

    Returns:
        The verdict.
    """
    guarantee, point = result.guarantee, result.metrics.holdout.at_threshold
    is_precision, target = guarantee.metric == "precision", guarantee.target
    limit = f"at {'least' if is_precision else 'most'} {format_configured_share(target)}"
    subject = "of the shown answers are correct" if is_precision else "of all answers are shown and incorrect"
    value = get_metric_value(guarantee.metric, point)
    measured = f"{format_percent_near(value, target)} {subject}"
    unchecked = result.too_few_shown if point.coverage else "nothing is shown on the hold-out"
    state: State
    if guarantee.status == "none":
        finding = unchecked or f"on the hold-out {measured}, {limit} was asked for"
        state, headline = "warned", f"No guarantee can be made: {finding}"
    elif unchecked or value is None:
        what = "correct" if is_precision else "shown and incorrect"
        state, headline = "warned", f"The guarantee of {limit} {what} cannot be checked: {unchecked}"
    elif meets_target(guarantee.metric, target, value):
        state, headline = "passed", f"Guarantee holds on the hold-out: {measured}, {limit} was guaranteed"
    else:
        state, headline = "failed", f"Guarantee violated on the hold-out: {measured}, {limit} was guaranteed"
    low, high = point.get(f"{guarantee.metric}_low"), point.get(f"{guarantee.metric}_high")
    interval = "" if low is None or high is None else f", 95 % interval {format_percent(low)} to {format_percent(high)}"
    if result.too_few_shown:
        interval = f": {result.too_few_shown}"
    return Verdict(state, headline, value, interval, _describe_shortfall(result, value, low, high))


def _describe_shortfall(result: EvaluationResult, value: float | None, low: float | None, high: float | None) -> str:
    guarantee, holdout = result.guarantee, result.metrics.holdout
    target, coverage = guarantee.target, holdout.at_threshold.coverage
    if value is None or coverage is None or meets_target(guarantee.metric, target, value):
        return ""
    rows, unit = holdout.effective_sample_size, "answers"
    if guarantee.metric == "precision":
        rows, unit = rows * coverage, "answers shown"
    missing = round(abs(target - value) * rows)
    missed = (
        f"The target is missed by {f'about {missing} of the {rows:.0f} {unit}' if missing else 'less than one answer'}"
    )
    if low is None or high is None:
        return f"{missed}."
    if low <= target <= high:
        return f"{missed}; the interval holds it: this may be chance."
    return f"{missed}; the interval does not hold it: chance alone would hardly do that."
