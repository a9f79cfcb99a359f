"""Headline of the report: the guarantee, whether it holds on the hold-out, and what else a decision needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from abstain.core.formatting import (
    format_configured_share,
    format_count,
    format_interval,
    format_number,
    format_percent,
    format_percent_near,
)
from abstain.core.markdown import format_labelled, is_defined, key_metrics_table
from abstain.learning.thresholds.guarantee import GuaranteeEvidence
from abstain.reports.evaluation.evaluation_result import EvaluationResult, get_metric_value, meets_target
from abstain.reports.page import State, headline_section


def guarantee_section(result: EvaluationResult) -> list[str]:
    """Render whether the guarantee holds on the hold-out, and what else a decision needs, in one line each.

    Args:
        result: Measurements of the candidate.

    Returns:
        Markdown blocks.
    """
    state, headline = _make_headline(result)
    lines = [
        _describe_guarantee(result),
        *_describe_self_selected(result),
        _describe_holdout(result),
        _describe_near_duplicates(result),
        _describe_heuristic(result),
        _describe_served_scorer(result),
        _describe_newest(result),
    ]
    return [*headline_section(state, headline, lines), _key_metrics(result)]


def _make_headline(result: EvaluationResult) -> tuple[State, str]:
    target = result.guarantee.target
    value = get_metric_value(result.metric, result.at_threshold)
    if result.is_precision:
        measured, limit = (
            f"{format_percent_near(value, target)} of the shown answers are correct",
            f"at least {format_configured_share(target)}",
        )
    else:
        measured, limit = (
            f"{format_percent_near(value, target)} of all answers are shown and incorrect",
            f"at most {format_configured_share(target)}",
        )
    unchecked = result.too_few_shown if result.at_threshold["coverage"] else "nothing is shown on the hold-out"
    if not result.has_guarantee:
        finding = unchecked or f"on the hold-out {measured}, {limit} was asked for"
        return "warned", f"No guarantee can be made: {finding}"
    if unchecked or value is None:
        what = "correct" if result.is_precision else "shown and incorrect"
        return "warned", f"The guarantee of {limit} {what} cannot be checked: {unchecked}"
    if meets_target(result.metric, target, value):
        return "passed", f"Guarantee kept on the hold-out: {measured}, {limit} was guaranteed"
    return "failed", f"Guarantee not kept on the hold-out: {measured}, {limit} was guaranteed"


def _describe_guarantee(result: EvaluationResult) -> str:
    guarantee, evidence = result.guarantee, result.guarantee.evidence
    if not result.has_guarantee:
        return format_labelled("Asked for", guarantee.message)
    subject = "the shown ones" if result.is_precision else "they"
    return format_labelled(
        "Guaranteed",
        f"{guarantee.message} It is void if {' or '.join(guarantee.void_if).replace('_', ' ')}. Tested on "
        f"{format_count(evidence.reviews, 'reviewed answer')} of the validation split about "
        f"{format_count(evidence.groups, 'document')}, where {_describe_coverage(guarantee.estimates.model_dump())}; "
        f"{subject} are worth {format_count(evidence.n_eff, 'independent answer')} (intraclass correlation "
        f"{format_number(evidence.icc, '.2f')}); p = {format_number(evidence.p_value, '.2g')}. "
        f"{_describe_largest_reviewer(evidence)}",
    )


def _describe_largest_reviewer(evidence: GuaranteeEvidence) -> str:
    if evidence.reviewers is None:
        return "It is not known who judged them."
    return (
        f"One of {format_count(evidence.reviewers, 'reviewer')} has {format_percent(evidence.largest_reviewer_share)} "
        "of their weight."
    )


def _describe_self_selected(result: EvaluationResult) -> list[str]:
    """Describe the threshold on self-selected reviews, if enough other reviews were sampled."""
    self_selected = {"validation split": result.threshold["self_selected"], "hold-out": result.holdout["self_selected"]}
    parts = [
        f"{format_count(statistics['rows'], 'review')} of the {name}, where {_describe_coverage(statistics)}"
        for name, statistics in self_selected.items()
        if statistics
    ]
    return [format_labelled("Self-selected reviews", f"not counted here: {'; '.join(parts)}.")] if parts else []


def _describe_holdout(result: EvaluationResult) -> str:
    holdout, point = result.holdout, result.at_threshold
    text = (
        f"{_describe_coverage(point)}, on the {format_count(holdout['rows'], 'answer')} of the frozen hold-out, on "
        "which nothing was "
        f"trained, calibrated or tuned. Were everything shown, {format_percent(holdout['base_rate'])} would be correct."
    )
    return format_labelled("Measured", text + _describe_shortfall(result))


def _describe_near_duplicates(result: EvaluationResult) -> str:
    """Describe the headline metrics of the hold-out with and without near-duplicates of training answers."""
    distinct, rows = result.holdout["without_near_duplicates"], result.holdout["rows"]
    if not distinct["near_duplicates"]:
        text = "no answer of the hold-out has one."
    elif not distinct["rows"]:
        text = f"all {format_count(rows, 'answer')} of the hold-out have one: no figure here is of new questions."
    else:
        text = (
            f"{distinct['near_duplicates']:,} of the {format_count(rows, 'answer')} of the hold-out have one. On the "
            f"other {distinct['rows']:,} the AUROC is {format_number(distinct['auroc'])} (on all "
            f"{format_number(result.served_row['auroc'])}), and {_describe_coverage(distinct)}, "
            f"{format_percent(distinct['error_rate'])} shown and incorrect (of all: "
            f"{_describe_coverage(result.at_threshold)}, "
            f"{format_percent(get_metric_value('error_rate', result.at_threshold))})."
        )
    return format_labelled("Near-duplicates in the training data", text)


def _describe_shortfall(result: EvaluationResult) -> str:
    """Describe by how many answers the target is missed, and whether chance explains it."""
    point, metric, target = result.at_threshold, result.metric, result.guarantee.target
    value = get_metric_value(metric, point)
    if value is None or meets_target(metric, target, value):
        return ""
    all_rows = result.holdout["effective_sample_size"]
    rows, unit = (all_rows * point["coverage"], "answers shown") if result.is_precision else (all_rows, "answers")
    missing = round(abs(target - value) * rows)
    shortfall = f"about {missing} of the {rows:.0f} {unit}" if missing else "less than one answer"
    low, high = point.get(f"{metric}_low"), point.get(f"{metric}_high")
    if low is None or high is None:
        return f" The target is missed by {shortfall}."
    within = low <= target <= high
    cause = "this may be chance" if within else "chance alone would hardly do that"
    return f" The target is missed by {shortfall}; the interval {'holds' if within else 'does not hold'} it: {cause}."


def _describe_heuristic(result: EvaluationResult) -> str:
    heuristic = result.threshold["heuristic"]
    if not heuristic:
        return format_labelled("Heuristic threshold", "there is none, no threshold was good enough on validation.")
    on_validation = f"good enough on validation ({_describe_coverage(heuristic)}), which guarantees nothing"
    if not result.has_guarantee:
        served = f"the heuristic one, {format_number(heuristic['threshold'])}, just {on_validation}."
        return format_labelled("Threshold served instead", served)
    coverage = _describe_coverage(result.holdout["at_heuristic"])
    return format_labelled(
        "Heuristic threshold, for comparison",
        f"{format_number(heuristic['threshold'])}, just {on_validation}: on the hold-out {coverage}.",
    )


def _describe_served_scorer(result: EvaluationResult) -> str:
    served = result.served_scorer
    candidate = next(row for row in served["candidates"] if row["scorer"] == served["name"])
    facts = (
        f"AUROC out of fold {format_number(candidate['auroc'])}, {format_number(served['forward_tokens'], ',.0f')} "
        "tokens an answer"
    )
    if served["requested"] != "best":
        reason = f"because serve.scorer asks for it ({facts})"
    elif (number := len(served["candidates"])) > 1:
        reason = f"chosen from {number} that can be served by training answers unseen, and by cost ({facts})"
    else:
        reason = f"the only scorer that can be served ({facts})"
    name = served["name"]
    if served["kind"] == "probe":
        exported = result.evaluation["probe"]["exported"]
        name = f"the {exported} probe at layer {served['layer']} ({served['site']})"
    return format_labelled("Served", f"{name} of {served['model']}, {reason}.")


def _describe_newest(result: EvaluationResult) -> str:
    newest = result.metrics["newest"]
    if not newest["rows"]:
        return format_labelled("Newest split", "no reviewed answer yet, so nothing is known of what has changed since.")
    answers = format_count(newest["rows"], "reviewed answer")
    text = f"on {answers} asked after the hold-out was frozen, the AUROC is {format_number(newest['auroc'])}"
    return format_labelled("Newest split", f"{text}, on the hold-out {format_number(result.served_row['auroc'])}.")


def _describe_coverage(row: Mapping[str, Any]) -> str:
    """Return text such as `50.3 % of the answers are shown, 78.5 % of them correct`."""
    if not row["coverage"]:
        return "nothing is shown"
    return (
        f"{format_percent(row['coverage'])} of the answers are shown, {format_percent(row['precision'])} of them "
        "correct"
    )


def _key_metrics(result: EvaluationResult) -> str:
    """Render the metrics that are read first."""
    guarantee, point, served_row = result.guarantee, result.at_threshold, result.served_row
    is_precision, target = result.is_precision, guarantee.target
    limit, what = ("≥", "of the shown answers correct") if is_precision else ("≤", "of all answers shown and incorrect")
    aim = "aimed at, not guaranteed"
    if result.has_guarantee:
        unchecked = ", not checked yet" if result.too_few_shown else ""
        aim = f"guaranteed, with confidence {format_configured_share(guarantee.confidence)}{unchecked}"
    rows = [
        (f"{limit} {format_configured_share(target)}", f"{what} ({aim})"),
        (
            format_percent_near(get_metric_value(result.metric, point), target),
            f"{what} (measured on the hold-out{_format_metric_interval(result)})",
        ),
        (
            format_percent(point["coverage"]),
            f"of the answers shown (confidence of {format_number(point['threshold'])} or more)",
        ),
        (format_percent(result.holdout["base_rate"]), "correct if everything were shown (on the hold-out)"),
        (
            format_number(served_row["auroc"]),
            f"AUROC of the served scorer (95 % interval {format_interval(served_row, 'auroc')})",
        ),
    ]
    if guarantee.status == "none" and guarantee.additional_reviews:
        row = (f"{guarantee.additional_reviews:,}", "more reviews needed for the guarantee")
        return key_metrics_table([*rows, row])
    ratio = f"{format_number(served_row['error_recall_over_random'], '.1f')} times that of random withholding"
    undefined = "equal confidences cannot be parted"
    note = ratio if is_defined(served_row["error_recall_over_random"]) else undefined
    row = (format_percent(served_row["error_recall_at_15pct"]), f"error recall at 15 % withheld ({note})")
    return key_metrics_table([*rows, row])


def _format_metric_interval(result: EvaluationResult) -> str:
    metric, point = result.metric, result.at_threshold
    if result.too_few_shown:
        return f": {result.too_few_shown}"
    if point.get(f"{metric}_low") is None or point.get(f"{metric}_high") is None:
        return ""
    return f", 95 % interval {format_percent(point[f'{metric}_low'])} to {format_percent(point[f'{metric}_high'])}"
