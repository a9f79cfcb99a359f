"""The verdict: what was guaranteed, whether the hold-out bears it out, and what else a decision needs."""

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
from abstain.core.text import short_name
from abstain.reports.evaluation.evaluation_result import EvaluationResult, get_metric_value, meets_target
from abstain.reports.page import State, headline_section


def guarantee_section(evaluated: EvaluationResult) -> list[str]:
    """Whether the guarantee is kept on the hold-out, and what else a decision needs, a line each."""
    state, headline = _make_headline(evaluated)
    lines = [
        _describe_guarantee(evaluated),
        *_describe_self_selected(evaluated),
        _describe_holdout(evaluated),
        _describe_near_duplicates(evaluated),
        _heuristic(evaluated),
        _describe_served_scorer(evaluated),
        _describe_newest(evaluated),
    ]
    return [*headline_section(state, headline, lines), _key_figures(evaluated)]


def _make_headline(evaluated: EvaluationResult) -> tuple[State, str]:
    threshold, target = evaluated.threshold, evaluated.threshold["target"]
    value = get_metric_value(evaluated.metric, evaluated.at_threshold)
    if evaluated.is_precision:
        measured, limit = (
            f"{format_percent_near(value, target)} of the shown answers are correct",
            f"at least {format_configured_share(target)}",
        )
    else:
        measured, limit = (
            f"{format_percent_near(value, target)} of all answers are shown and incorrect",
            f"at most {format_configured_share(target)}",
        )
    unknown = evaluated.too_few_shown if evaluated.at_threshold["coverage"] else "nothing is shown on the hold-out"
    if not threshold["guaranteed"]:
        found = unknown or f"on the hold-out {measured}, {limit} was asked for"
        return "warned", f"No guarantee can be made: {found}"
    if unknown or value is None:
        what = "correct" if evaluated.is_precision else "shown and incorrect"
        return "warned", f"The guarantee of {limit} {what} cannot be checked: {unknown}"
    if meets_target(evaluated.metric, target, value):
        return "passed", f"Guarantee kept on the hold-out: {measured}, {limit} was guaranteed"
    return "failed", f"Guarantee not kept on the hold-out: {measured}, {limit} was guaranteed"


def _describe_guarantee(evaluated: EvaluationResult) -> str:
    threshold = evaluated.threshold
    what = "of the shown answers are correct" if evaluated.is_precision else "of all answers are shown and incorrect"
    limit = f"at {'least' if evaluated.is_precision else 'most'} {format_configured_share(threshold['target'])} {what}"
    if not threshold["guaranteed"]:
        asked = f"{limit}, with a confidence of {format_configured_share(threshold['confidence'])}"
        return format_labelled("Asked for", f"{asked}. It cannot be guaranteed: {threshold['message']}.")
    counted = "the shown ones" if evaluated.is_precision else "they"
    tested = (
        f"{format_count(threshold['rows'], 'reviewed answer')} of the validation split about "
        f"{format_count(threshold['groups'], 'document')}, where {_describe_coverage(threshold)}; {counted} are worth "
        f"{format_count(threshold['n_eff'], 'independent answer')} (intraclass correlation {format_number(threshold['icc'], '.2f')})"
    )
    of = "of all answers" if threshold["drawn"] else "of answers like the reviewed ones, which were not drawn at random"
    return format_labelled(
        "Guaranteed, but not checked yet" if evaluated.too_few_shown else "Guaranteed",
        f"{limit}, with a confidence of {format_configured_share(threshold['confidence'])}, {of}; {threshold['void']}. Tested on "
        f"{tested}; p = {format_number(threshold['p_value'], '.2g')}. {_reviewer(threshold['largest_reviewer'])}",
    )


def _reviewer(largest: Mapping[str, Any] | None) -> str:
    if largest is None:
        return "It is not known who judged them."
    return (
        f"The reviewer with most of their weight, {short_name(largest['reviewer'])}, one of "
        f"{format_count(largest['reviewers'], 'reviewer')}, has {format_percent(largest['share'])} of it."
    )


def _describe_self_selected(evaluated: EvaluationResult) -> list[str]:
    """What the threshold gave of reviews that chose themselves, where enough others were drawn."""
    apart = {"validation split": evaluated.threshold["volunteered"], "hold-out": evaluated.holdout["volunteered"]}
    found = [
        f"{format_count(of['rows'], 'review')} of the {name}, where {_describe_coverage(of)}"
        for name, of in apart.items()
        if of
    ]
    return [format_labelled("Reviews that chose themselves", f"not counted here: {'; '.join(found)}.")] if found else []


def _describe_holdout(evaluated: EvaluationResult) -> str:
    holdout, at = evaluated.holdout, evaluated.at_threshold
    text = (
        f"{_describe_coverage(at)}, on the {format_count(holdout['rows'], 'answer')} of the frozen hold-out, on which nothing was "
        f"trained, calibrated or tuned. Were everything shown, {format_percent(holdout['base_rate'])} would be correct."
    )
    return format_labelled("Measured", text + _shortfall(evaluated))


def _describe_near_duplicates(evaluated: EvaluationResult) -> str:
    """The headline figures of the hold-out with the near-duplicates of training answers, and without them."""
    apart, rows = evaluated.holdout["without_twins"], evaluated.holdout["rows"]
    if not apart["twins"]:
        text = "no answer of the hold-out has one."
    elif not apart["rows"]:
        text = f"all {format_count(rows, 'answer')} of the hold-out have one: no figure here is of new questions."
    else:
        text = (
            f"{apart['twins']:,} of the {format_count(rows, 'answer')} of the hold-out have one. On the other "
            f"{apart['rows']:,} the AUROC is {format_number(apart['auroc'])} (on all {format_number(evaluated.served_row['auroc'])}), and "
            f"{_describe_coverage(apart)}, {format_percent(apart['error_rate'])} shown and incorrect (of all: {_describe_coverage(evaluated.at_threshold)}, "
            f"{format_percent(get_metric_value('error_rate', evaluated.at_threshold))})."
        )
    return format_labelled("Near-duplicates in the training data", text)


def _shortfall(evaluated: EvaluationResult) -> str:
    """By how many answers the target is missed, and whether chance would do."""
    threshold, at, metric = evaluated.threshold, evaluated.at_threshold, evaluated.metric
    target, value = threshold["target"], get_metric_value(metric, at)
    if value is None or meets_target(metric, target, value):
        return ""
    all_rows = evaluated.holdout["effective_sample_size"]
    rows, of = (all_rows * at["coverage"], "answers shown") if evaluated.is_precision else (all_rows, "answers")
    missing = round(abs(target - value) * rows)
    by = f"about {missing} of the {rows:.0f} {of}" if missing else "less than one answer"
    low, high = at.get(f"{metric}_low"), at.get(f"{metric}_high")
    if low is None or high is None:
        return f" The target is missed by {by}."
    within = low <= target <= high
    cause = "this may be chance" if within else "chance alone would hardly do that"
    return f" The target is missed by {by}; the interval {'holds' if within else 'does not hold'} it: {cause}."


def _heuristic(evaluated: EvaluationResult) -> str:
    threshold, heuristic = evaluated.threshold, evaluated.threshold["heuristic"]
    if not heuristic:
        return format_labelled("Heuristic threshold", "there is none, no threshold was good enough on validation.")
    on_validation = f"good enough on validation ({_describe_coverage(heuristic)}), which guarantees nothing"
    if not threshold["guaranteed"]:
        served = f"the heuristic one, {format_number(heuristic['threshold'])}, just {on_validation}."
        return format_labelled("Threshold served instead", served)
    found = _describe_coverage(evaluated.holdout["at_heuristic"])
    return format_labelled(
        "Heuristic threshold, for comparison",
        f"{format_number(heuristic['threshold'])}, just {on_validation}: on the hold-out {found}.",
    )


def _describe_served_scorer(evaluated: EvaluationResult) -> str:
    served = evaluated.served
    chosen = next(row for row in served["candidates"] if row["scorer"] == served["name"])
    found = f"AUROC out of fold {format_number(chosen['auroc'])}, {format_number(served['forward_tokens'], ',.0f')} tokens an answer"
    if served["asked_for"] != "best":
        why = f"because serve.scorer asks for it ({found})"
    elif (number := len(served["candidates"])) > 1:
        why = f"chosen from {number} that can be served by training answers unseen, and by cost ({found})"
    else:
        why = f"the only scorer that can be served ({found})"
    name = served["name"]
    if served["kind"] == "probe":
        exported = evaluated.evaluation["probe"]["exported"]
        name = f"the {exported} probe at layer {served['layer']} ({served['site']})"
    return format_labelled("Served", f"{name} of {served['model']}, {why}.")


def _describe_newest(evaluated: EvaluationResult) -> str:
    newest = evaluated.metrics["newest"]
    if not newest["rows"]:
        return format_labelled(
            "Newest window", "no reviewed answer yet, so nothing is known of what has changed since."
        )
    answers = format_count(newest["rows"], "reviewed answer")
    text = f"on {answers} asked after the hold-out was frozen, the AUROC is {format_number(newest['auroc'])}"
    return format_labelled("Newest window", f"{text}, on the hold-out {format_number(evaluated.served_row['auroc'])}.")


def _describe_coverage(row: Mapping[str, Any]) -> str:
    """`50.3 % of the answers are shown, 78.5 % of them correct`."""
    if not row["coverage"]:
        return "nothing is shown"
    return f"{format_percent(row['coverage'])} of the answers are shown, {format_percent(row['precision'])} of them correct"


def _key_figures(evaluated: EvaluationResult) -> str:
    """The figures that are read first."""
    threshold, at, own = evaluated.threshold, evaluated.at_threshold, evaluated.served_row
    is_precision, target = evaluated.is_precision, threshold["target"]
    limit, of_what = (
        ("≥", "of the shown answers correct") if is_precision else ("≤", "of all answers shown and incorrect")
    )
    aim = "aimed at, not guaranteed"
    if threshold["guaranteed"]:
        unchecked = ", not checked yet" if evaluated.too_few_shown else ""
        aim = f"guaranteed, with confidence {format_configured_share(threshold['confidence'])}{unchecked}"
    found = [
        (f"{limit} {format_configured_share(target)}", f"{of_what} ({aim})"),
        (
            format_percent_near(get_metric_value(evaluated.metric, at), target),
            f"{of_what} (measured on the hold-out{_interval(evaluated)})",
        ),
        (
            format_percent(at["coverage"]),
            f"of the answers shown (confidence of {format_number(at['threshold'])} or more)",
        ),
        (format_percent(evaluated.holdout["base_rate"]), "correct if everything were shown (on the hold-out)"),
        (
            format_number(own["auroc"]),
            f"AUROC of the served scorer (95 % interval {format_interval(own, 'auroc')})",
        ),
    ]
    if not threshold["guaranteed"] and threshold["reviews_needed"]:
        needed = f"{threshold['reviews_needed']:,}"
        more = (needed, f"reviews needed for the guarantee ({threshold['rows']:,} are there)")
        return key_metrics_table([*found, more])
    caught = f"{format_number(own['error_recall_over_random'], '.1f')} times that of random withholding"
    none = "equal confidences cannot be parted"
    below = caught if is_defined(own["error_recall_over_random"]) else none
    more = (format_percent(own["error_recall_at_15pct"]), f"error recall at 15 % withheld ({below})")
    return key_metrics_table([*found, more])


def _interval(evaluated: EvaluationResult) -> str:
    metric, at = evaluated.metric, evaluated.at_threshold
    if evaluated.too_few_shown:
        return f": {evaluated.too_few_shown}"
    if at.get(f"{metric}_low") is None or at.get(f"{metric}_high") is None:
        return ""
    return f", 95 % interval {format_percent(at[f'{metric}_low'])} to {format_percent(at[f'{metric}_high'])}"
