"""The alarms of a window: conditions and messages, at most one alarm of each kind. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from abstain.config.params import MonitoringParams
from abstain.core.codes import Code
from abstain.core.formatting import format_configured_share, format_percent, join_words
from abstain.data.decision_log.monitoring_windows import Alarm
from abstain.monitoring.drift import combine_p_values
from abstain.monitoring.window_comparison import MAX_RARE_SHARE, TEXTS, ComparisonResult

MIN_NEW_MODEL_SHARE, MIN_MISMATCH_SHARE = 0.05, 0.01
"""Smallest share of answers by new models, and of decisions with `MISMATCH_CODES`, that raises an alarm."""
MISMATCH_CODES = (Code.VERSION_MISMATCH, Code.STATES_MISMATCH)
"""Codes of decisions whose states or versions do not fit the live scorer."""
DRIFT_CODES = frozenset({Code.INPUT_DRIFT, Code.STATE_DRIFT, Code.NEW_TOPICS})


@dataclass(frozen=True)
class WindowResult:
    """What the alarms of a window are based on.

    Attributes:
        statistics: The statistics of the window, as stored.
        comparisons: Comparisons that were made, by name.
        examples: Ids of answers, by what they show.
    """

    statistics: Mapping[str, Any]
    comparisons: Mapping[str, ComparisonResult]
    examples: Mapping[str, Sequence[str]]


def raise_alarms(window: WindowResult, params: MonitoringParams) -> tuple[Alarm, ...]:
    """Raise the alarms of a window.

    Args:
        window: Statistics, comparisons and examples.
        params: Monitoring parameters.

    Returns:
        The alarms, sorted by code.
    """
    raised = [
        *_raise_review_alarms(window, params),
        *_raise_drift_alarms(window, params),
        *_raise_decision_alarms(window, params),
    ]
    return tuple(sorted(raised, key=lambda alarm: alarm.code))


def _raise_review_alarms(window: WindowResult, params: MonitoringParams) -> Iterator[Alarm]:
    guarantee, calibration = window.statistics["guarantee"], window.statistics["calibration"]
    if guarantee and guarantee["is_violated"]:
        bound = "at least" if guarantee["metric"] == "precision" else "at most"
        yield Alarm(
            Code.GUARANTEE_VIOLATED,
            f"{guarantee['metric'].replace('_', ' ')} {guarantee['estimate']:.3f} ({guarantee['low']:.3f} to "
            f"{guarantee['high']:.3f}) by {guarantee['reviews']:,} reviews about {guarantee['documents']:,} documents "
            "since "
            f"the version is live, {bound} {guarantee['target']:g} is guaranteed",
            tuple(window.examples["incorrect"]),
        )
    if calibration and calibration["p_value"] <= params.alpha:
        direction = "less" if calibration["difference"] < 0 else "more"
        yield Alarm(
            Code.CALIBRATION_OFF,
            f"reviewed answers are {abs(calibration['difference']):.3f} {direction} often correct than their "
            "probabilities "
            f"say (95 % interval {calibration['low']:+.3f} to {calibration['high']:+.3f}), by "
            f"{calibration['reviews']:,} reviews",
            tuple(window.examples["miscalibrated"]),
        )


def _raise_drift_alarms(window: WindowResult, params: MonitoringParams) -> Iterator[Alarm]:
    text_comparisons = {name: window.comparisons[name] for name in TEXTS if name in window.comparisons}
    p_values = {
        name: comparison.p_value for name, comparison in text_comparisons.items() if comparison.p_value is not None
    }
    if p_values and combine_p_values(p_values.values()) <= params.alpha:
        first = min(p_values, key=lambda name: p_values[name])
        drifted = [name for name, value in p_values.items() if value * len(p_values) <= params.alpha]
        yield Alarm(
            Code.INPUT_DRIFT,
            f"{join_words(drifted or [first])} differ from those before under this version "
            f"(p = {combine_p_values(p_values.values()):.2g})",
            text_comparisons[first].examples,
        )
    if states := _get_significant(window, "states", params):
        yield Alarm(
            Code.STATE_DRIFT,
            f"the hidden states of answers differ from those before under this version (p = {states.p_value:.2g})",
            states.examples,
        )
    if topics := _get_significant(window, "topics", params):
        yield Alarm(
            Code.NEW_TOPICS,
            f"{format_percent(topics.statistics['share'])} of the questions are unlike any before, "
            f"{format_percent(topics.statistics['expected'])} are expected (p = {topics.p_value:.2g})",
            topics.examples,
        )


def _raise_decision_alarms(window: WindowResult, params: MonitoringParams) -> Iterator[Alarm]:
    statistics = window.statistics
    unknown = window.comparisons.get("chunks")
    if unknown and unknown.statistics["share"] > params.max_unknown_chunk_share:
        yield Alarm(
            Code.UNKNOWN_CHUNKS,
            f"{format_percent(unknown.statistics['share'])} of the answers rest on chunks that data/ does not know, "
            f"{format_percent(params.max_unknown_chunk_share)} allowed",
            unknown.examples,
        )
    if model_change := _describe_model_change(window):
        yield Alarm(Code.MODEL_CHANGED, model_change[0], tuple(model_change[1]))
    if (statistics["unavailable"] or 0) > params.max_unavailable_share:
        by_code = ", ".join(f"{code} {count:,}" for code, count in statistics["unavailable_codes"].items())
        yield Alarm(
            Code.TOO_MANY_UNAVAILABLE,
            f"{format_percent(statistics['unavailable'])} of {statistics['decisions']:,} answers got no decision, "
            f"{format_percent(params.max_unavailable_share)} allowed{f': {by_code}' if by_code else ''}",
            tuple(window.examples["unavailable"]),
        )
    if coverage := _get_significant(window, "coverage", params):
        yield Alarm(
            Code.COVERAGE_CHANGED,
            f"{format_percent(coverage.statistics['now'])} of the answers are shown, "
            f"{format_percent(coverage.statistics['before'])} before under this version (p = {coverage.p_value:.2g})",
            coverage.examples,
        )
    for kind, silence in statistics["feed"].items():
        if silence and silence["is_alarming"]:
            yield Alarm(
                Code.FEED_SILENT,
                f"no {kind} for {silence['hours']:,.0f} hours, {silence['longest_before']:,.0f} at most before",
            )
            break


def _describe_model_change(window: WindowResult) -> tuple[str, Sequence[str]] | None:
    """Describe another answer model or layout, with examples."""
    statistics, writers = window.statistics, window.comparisons.get("writers")
    if writers and writers.statistics["new"] >= MIN_NEW_MODEL_SHARE:
        earlier_shares = writers.statistics["before"]
        new_models = join_words(
            [name for name in writers.statistics["now"] if earlier_shares.get(name, 0.0) < MAX_RARE_SHARE]
        )
        text = (
            f"{format_percent(writers.statistics['new'])} of the answers are by {new_models}, less than "
            f"{format_configured_share(MAX_RARE_SHARE)} each before"
        )
        return text, writers.examples
    mismatches = {code: count for code, count in statistics["unavailable_codes"].items() if code in MISMATCH_CODES}
    if statistics["decisions"] and sum(mismatches.values()) >= max(1, MIN_MISMATCH_SHARE * statistics["decisions"]):
        text = ", ".join(f"{code} {count:,}" for code, count in mismatches.items())
        return f"what was given does not fit the live scorer: {text} decisions", window.examples["unavailable"]
    return None


def _get_significant(window: WindowResult, name: str, params: MonitoringParams) -> ComparisonResult | None:
    """Return the comparison `name` if it was judged and is significant."""
    comparison = window.comparisons.get(name)
    return comparison if comparison and comparison.p_value is not None and comparison.p_value <= params.alpha else None
