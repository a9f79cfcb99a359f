"""The alarms of a window, one of a kind at most: what its figures must show for each, and how it is said. Pure."""

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
"""The share of the answers that new models must have written, and that of decisions of `MISMATCH_CODES`, for an alarm."""
MISMATCH_CODES = (Code.VERSION_MISMATCH, Code.STATES_MISMATCH)
"""The codes of decisions whose states or versions did not fit the live scorer."""
DRIFT_CODES = frozenset({Code.INPUT_DRIFT, Code.STATE_DRIFT, Code.NEW_TOPICS})


@dataclass(frozen=True)
class WindowResult:
    """What alarms of one window are made of.

    `figures`: those of the window, as stored. `compared`: by name, what was judged. `examples`: ids of answers, by what
    they show.
    """

    figures: Mapping[str, Any]
    compared: Mapping[str, ComparisonResult]
    examples: Mapping[str, Sequence[str]]


def raise_alarms(window: WindowResult, params: MonitoringParams) -> tuple[Alarm, ...]:
    """The alarms, in the order of their codes."""
    raised = [
        *_raise_review_alarms(window, params),
        *_raise_drift_alarms(window, params),
        *_raise_decision_alarms(window, params),
    ]
    return tuple(sorted(raised, key=lambda alarm: alarm.code))


def _raise_review_alarms(found: WindowResult, params: MonitoringParams) -> Iterator[Alarm]:
    promise, calibration = found.figures["promise"], found.figures["calibration"]
    if promise and promise["broken"]:
        kept = "at least" if promise["metric"] == "precision" else "at most"
        yield Alarm(
            Code.GUARANTEE_VIOLATED,
            f"{promise['metric'].replace('_', ' ')} {promise['estimate']:.3f} ({promise['low']:.3f} to "
            f"{promise['high']:.3f}) by {promise['reviews']:,} reviews about {promise['documents']:,} documents since "
            f"the version is live, {kept} {promise['target']:g} was promised",
            tuple(found.examples["incorrect"]),
        )
    if calibration and calibration["p_value"] <= params.level:
        less = "less" if calibration["difference"] < 0 else "more"
        yield Alarm(
            Code.CALIBRATION_OFF,
            f"reviewed answers are {abs(calibration['difference']):.3f} {less} often correct than their probabilities "
            f"say (95 % interval {calibration['low']:+.3f} to {calibration['high']:+.3f}), by "
            f"{calibration['reviews']:,} reviews",
            tuple(found.examples["miscalibrated"]),
        )


def _raise_drift_alarms(found: WindowResult, params: MonitoringParams) -> Iterator[Alarm]:
    texts = {name: found.compared[name] for name in TEXTS if name in found.compared}
    p_values = {name: one.p_value for name, one in texts.items() if one.p_value is not None}
    if p_values and combine_p_values(p_values.values()) <= params.level:
        first = min(p_values, key=lambda name: p_values[name])
        drifted = [name for name, value in p_values.items() if value * len(p_values) <= params.level]
        yield Alarm(
            Code.INPUT_DRIFT,
            f"{join_words(drifted or [first])} differ from those before under this version "
            f"(p = {combine_p_values(p_values.values()):.2g})",
            texts[first].examples,
        )
    if states := _get_significant(found, "states", params):
        yield Alarm(
            Code.STATE_DRIFT,
            f"the hidden states of answers differ from those before under this version (p = {states.p_value:.2g})",
            states.examples,
        )
    if topics := _get_significant(found, "topics", params):
        yield Alarm(
            Code.NEW_TOPICS,
            f"{format_percent(topics.figures['share'])} of the questions are unlike any before, "
            f"{format_percent(topics.figures['expected'])} are expected (p = {topics.p_value:.2g})",
            topics.examples,
        )


def _raise_decision_alarms(found: WindowResult, params: MonitoringParams) -> Iterator[Alarm]:
    figures = found.figures
    unknown = found.compared.get("chunks")
    if unknown and unknown.figures["share"] > params.max_unknown_chunks:
        yield Alarm(
            Code.UNKNOWN_CHUNKS,
            f"{format_percent(unknown.figures['share'])} of the answers rest on chunks that data/ does not know, "
            f"{format_percent(params.max_unknown_chunks)} allowed",
            unknown.examples,
        )
    if changed := _describe_model_change(found):
        yield Alarm(Code.MODEL_CHANGED, changed[0], tuple(changed[1]))
    if (figures["unavailable"] or 0) > params.max_unavailable:
        by_code = ", ".join(f"{code} {count:,}" for code, count in figures["unavailable_codes"].items())
        yield Alarm(
            Code.TOO_MANY_UNAVAILABLE,
            f"{format_percent(figures['unavailable'])} of {figures['decisions']:,} answers got no decision, "
            f"{format_percent(params.max_unavailable)} allowed{f': {by_code}' if by_code else ''}",
            tuple(found.examples["unavailable"]),
        )
    if coverage := _get_significant(found, "coverage", params):
        yield Alarm(
            Code.COVERAGE_CHANGED,
            f"{format_percent(coverage.figures['now'])} of the answers are shown, "
            f"{format_percent(coverage.figures['before'])} before under this version (p = {coverage.p_value:.2g})",
            coverage.examples,
        )
    for what, quiet in figures["feed"].items():
        if quiet and quiet["is_dead"]:
            yield Alarm(
                Code.FEED_SILENT,
                f"no {what} for {quiet['hours']:,.0f} hours, {quiet['longest']:,.0f} at most before",
            )
            break


def _describe_model_change(found: WindowResult) -> tuple[str, Sequence[str]] | None:
    """What is said of another model or layout, and examples of it."""
    figures, writers = found.figures, found.compared.get("writers")
    if writers and writers.figures["new"] >= MIN_NEW_MODEL_SHARE:
        before = writers.figures["before"]
        new = join_words([name for name in writers.figures["now"] if before.get(name, 0.0) < MAX_RARE_SHARE])
        said = f"{format_percent(writers.figures['new'])} of the answers are by {new}, less than {format_configured_share(MAX_RARE_SHARE)} each before"
        return said, writers.examples
    misfits = {code: count for code, count in figures["unavailable_codes"].items() if code in MISMATCH_CODES}
    if figures["decisions"] and sum(misfits.values()) >= max(1, MIN_MISMATCH_SHARE * figures["decisions"]):
        said = ", ".join(f"{code} {count:,}" for code, count in misfits.items())
        return f"what was given does not fit the live scorer: {said} decisions", found.examples["unavailable"]
    return None


def _get_significant(found: WindowResult, name: str, params: MonitoringParams) -> ComparisonResult | None:
    """The comparison `name`, where it was judged and differs."""
    one = found.compared.get(name)
    return one if one and one.p_value is not None and one.p_value <= params.level else None
