"""The alarms of a window: conditions and messages, at most one alarm of each kind. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from abstain.config.params import MonitoringParams
from abstain.core.codes import Code
from abstain.core.formatting import format_configured_share, format_percent, join_words
from abstain.data.decision_log.monitoring_windows import Alarm, Comparisons, WindowStatistics
from abstain.monitoring.drift import combine_p_values
from abstain.monitoring.window_comparison import MAX_RARE_SHARE

MIN_NEW_MODEL_SHARE, MIN_MISMATCH_SHARE = 0.05, 0.01
"""Smallest share of answers by new models, and of decisions with `MISMATCH_CODES`, that raises an alarm."""
MISMATCH_CODES = (Code.VERSION_MISMATCH, Code.STATES_MISMATCH)
"""Codes of decisions whose states or versions do not fit the live scorer."""
DRIFT_CODES = frozenset({Code.INPUT_DRIFT, Code.STATE_DRIFT, Code.NEW_TOPICS})


@dataclass(frozen=True)
class AlarmExamples:
    """Ids of answers, by what they show."""

    incorrect: tuple[str, ...] = ()
    miscalibrated: tuple[str, ...] = ()
    unavailable: tuple[str, ...] = ()


def raise_alarms(window: WindowStatistics, examples: AlarmExamples, params: MonitoringParams) -> tuple[Alarm, ...]:
    """Raise the alarms of a window.

    Args:
        window: Statistics of the window.
        examples: Examples for alarms that no comparison raises.
        params: Monitoring parameters.

    Returns:
        The alarms, sorted by code.
    """
    raised = [
        *_raise_review_alarms(window, examples, params),
        *_raise_drift_alarms(window.compared, params),
        *_raise_decision_alarms(window, examples, params),
    ]
    return tuple(sorted(raised, key=lambda alarm: alarm.code))


def _raise_review_alarms(
    window: WindowStatistics, examples: AlarmExamples, params: MonitoringParams
) -> Iterator[Alarm]:
    guarantee, calibration = window.guarantee, window.calibration
    if guarantee and guarantee.is_violated:
        bound = "at least" if guarantee.metric == "precision" else "at most"
        yield Alarm(
            Code.GUARANTEE_VIOLATED,
            f"{guarantee.metric.replace('_', ' ')} {guarantee.estimate:.3f} ({guarantee.low:.3f} to "
            f"{guarantee.high:.3f}) by {guarantee.reviews:,} reviews about {guarantee.documents:,} documents since "
            f"the version is live, {bound} {guarantee.target:g} is guaranteed",
            examples.incorrect,
        )
    if calibration and calibration.p_value <= params.alpha:
        direction = "less" if calibration.difference < 0 else "more"
        yield Alarm(
            Code.CALIBRATION_OFF,
            f"reviewed answers are {abs(calibration.difference):.3f} {direction} often correct than their "
            f"probabilities say (95 % interval {calibration.low:+.3f} to {calibration.high:+.3f}), by "
            f"{calibration.reviews:,} reviews",
            examples.miscalibrated,
        )


def _raise_drift_alarms(compared: Comparisons, params: MonitoringParams) -> Iterator[Alarm]:
    texts = {"questions": compared.questions, "answers": compared.answers, "contexts": compared.contexts}
    p_values = {name: text.p_value for name, text in texts.items() if text and text.p_value is not None}
    p_value = combine_p_values(p_values.values())
    if p_value <= params.alpha:
        first = min(p_values, key=lambda name: p_values[name])
        drifted = [name for name, value in p_values.items() if value * len(p_values) <= params.alpha]
        yield Alarm(
            Code.INPUT_DRIFT,
            f"{join_words(drifted or [first])} differ from those before under this version (p = {p_value:.2g})",
            getattr(compared, first).examples,
        )
    states, topics = compared.states, compared.topics
    if states and states.is_significant(params.alpha):
        yield Alarm(
            Code.STATE_DRIFT,
            f"the hidden states of answers differ from those before under this version (p = {states.p_value:.2g})",
            states.examples,
        )
    if topics and topics.is_significant(params.alpha):
        yield Alarm(
            Code.NEW_TOPICS,
            f"{format_percent(topics.statistics.share)} of the questions are unlike any before, "
            f"{format_percent(topics.statistics.expected)} are expected (p = {topics.p_value:.2g})",
            topics.examples,
        )


def _raise_decision_alarms(
    window: WindowStatistics, examples: AlarmExamples, params: MonitoringParams
) -> Iterator[Alarm]:
    unknown, coverage = window.compared.chunks, window.compared.coverage
    if unknown and unknown.statistics.share > params.max_unknown_chunk_share:
        yield Alarm(
            Code.UNKNOWN_CHUNKS,
            f"{format_percent(unknown.statistics.share)} of the answers rest on chunks that data/ does not know, "
            f"{format_percent(params.max_unknown_chunk_share)} allowed",
            unknown.examples,
        )
    yield from _raise_model_alarm(window, examples)
    if (window.unavailable or 0) > params.max_unavailable_share:
        by_code = ", ".join(f"{code} {count:,}" for code, count in window.unavailable_codes.items())
        yield Alarm(
            Code.TOO_MANY_UNAVAILABLE,
            f"{format_percent(window.unavailable)} of {window.decisions:,} answers got no decision, "
            f"{format_percent(params.max_unavailable_share)} allowed{f': {by_code}' if by_code else ''}",
            examples.unavailable,
        )
    if coverage and coverage.is_significant(params.alpha):
        yield Alarm(
            Code.COVERAGE_CHANGED,
            f"{format_percent(coverage.statistics.now)} of the answers are shown, "
            f"{format_percent(coverage.statistics.before)} before under this version (p = {coverage.p_value:.2g})",
            coverage.examples,
        )
    for kind, silence in window.feed.items():
        if silence.is_alarming:
            yield Alarm(
                Code.FEED_SILENT,
                f"no {kind} for {silence.hours:,.0f} hours, {silence.longest_before:,.0f} at most before",
            )
            break


def _raise_model_alarm(window: WindowStatistics, examples: AlarmExamples) -> Iterator[Alarm]:
    """Raise an alarm for another answer model or layout."""
    writers = window.compared.writers
    mismatches = {code: count for code, count in window.unavailable_codes.items() if code in MISMATCH_CODES}
    if writers.statistics.new >= MIN_NEW_MODEL_SHARE:
        earlier_shares = writers.statistics.before
        new_models = [name for name in writers.statistics.now if earlier_shares.get(name, 0.0) < MAX_RARE_SHARE]
        yield Alarm(
            Code.MODEL_CHANGED,
            f"{format_percent(writers.statistics.new)} of the answers are by {join_words(new_models)}, less than "
            f"{format_configured_share(MAX_RARE_SHARE)} each before",
            writers.examples,
        )
    elif window.decisions and sum(mismatches.values()) >= max(1, MIN_MISMATCH_SHARE * window.decisions):
        text = ", ".join(f"{code} {count:,}" for code, count in mismatches.items())
        yield Alarm(
            Code.MODEL_CHANGED,
            f"what was given does not fit the live scorer: {text} decisions",
            examples.unavailable,
        )
