"""Text of a monitoring window: the same lines for the terminal, the Prefect UI and the page of the gate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from abstain.core.formatting import format_count, format_number, format_percent
from abstain.core.markdown import bullet_list, document, heading, paragraph, table
from abstain.data.decision_log.monitoring_windows import Alarm, MonitoringWindow, WindowStatistics

DRIFTS = {
    "questions": "drift of questions",
    "answers": "drift of answers",
    "contexts": "drift of contexts",
    "states": "drift of hidden states",
}


def render_window(window: MonitoringWindow) -> str:
    """Render a whole window: alarms with the remedy, its statistics, its products.

    Args:
        window: The monitoring window.

    Returns:
        Markdown.
    """
    blocks = [heading(1, window.headline), paragraph(format_title(window))]
    blocks += [_alarm(alarm) for alarm in window.alarms]
    blocks.append(table(("statistic", "value"), format_statistics(window), text_columns=("value",)))
    rows = [
        (name, product.decisions, format_percent(product.coverage))
        for name, product in window.statistics.products.items()
    ]
    if rows:
        blocks.append(table(("product", "decisions", "shown"), rows))
    blocks.append(bullet_list(window.statistics.notes))
    return document(blocks)


def format_title(window: MonitoringWindow) -> str:
    """Return version and days of `window`."""
    return f"{window.version}, {window.start:%Y-%m-%d} to {window.end:%Y-%m-%d} (UTC, the end not included)"


def format_statistics(window: MonitoringWindow) -> list[tuple[str, str]]:
    """Return the statistics of `window` as (label, value)."""
    formats = (_format_decisions, _format_reviews, _format_drift)
    return [row for format_rows in formats for row in format_rows(window.statistics)]


def history_rows(windows: Sequence[MonitoringWindow]) -> list[dict[str, Any]]:
    """Return one table row per window, the newest first.

    Args:
        windows: Windows, the oldest first.

    Returns:
        Column -> text of each row.
    """
    return [
        {
            "from": f"{window.start:%Y-%m-%d}",
            "to": f"{window.end:%Y-%m-%d}",
            "version": window.version,
            "decisions": window.statistics.decisions,
            "coverage": format_percent(window.statistics.coverage),
            "precision": format_percent(window.statistics.observed_precision),
            "expected": format_percent(window.statistics.expected_precision),
            "status": window.headline,
        }
        for window in reversed(windows)
    ]


def _alarm(alarm: Alarm) -> str:
    lines = [f"to do: {alarm.action}"]
    if alarm.examples:
        lines.append(f"examples: {', '.join(alarm.examples)}")
    return f"{heading(2, f'{alarm.code}: {alarm.kind}')}\n\n{paragraph(alarm.message)}\n\n{bullet_list(lines)}"


def _format_decisions(statistics: WindowStatistics) -> Iterator[tuple[str, str]]:
    text = f"{statistics.decisions:,}, {statistics.shown:,} shown (coverage {format_percent(statistics.coverage)})"
    yield "decisions", text if statistics.decisions else "none"
    codes = ", ".join(f"{code} {number:,}" for code, number in statistics.unavailable_codes.items())
    yield "unavailable", f"{format_percent(statistics.unavailable)}{f' ({codes})' if codes else ''}"
    deciles, index = statistics.confidence.deciles, statistics.confidence.stability_index
    if deciles:
        low, middle, high = deciles[0], deciles[4], deciles[8]
        shift = "" if index is None else f"; stability index {index:.2f} against those before (0.25 is a large shift)"
        yield "confidence", f"median {middle:.3f}, eight in ten from {low:.3f} to {high:.3f}{shift}"


def _format_reviews(statistics: WindowStatistics) -> Iterator[tuple[str, str]]:
    text = ""
    if statistics.excluded_self_selected:
        text = f"; {format_count(statistics.excluded_self_selected, 'self-selected review')} of the version left out"
    elif statistics.self_selected:
        text = f"; {format_count(statistics.self_selected, 'self-selected review')} of the version counted"
    yield "reviews", f"{statistics.reviews:,} arrived{text}"
    if precision := statistics.precision:
        counts = f"{format_count(precision.reviews, 'review')} about {format_count(precision.documents, 'document')}"
        yield "precision of what was shown", f"{format_percent(precision.precision)} by {counts}"
    if guarantee := statistics.guarantee:
        status = f"violated since {guarantee.violated_on}" if guarantee.is_violated else "not shown to be violated"
        limit = "at least" if guarantee.metric == "precision" else "at most"
        yield (
            "guarantee",
            f"{guarantee.metric.replace('_', ' ')} {limit} {guarantee.target:g}: {status}; "
            f"{format_number(guarantee.estimate)} ({format_number(guarantee.low)} to "
            f"{format_number(guarantee.high)}) by "
            f"{format_count(guarantee.reviews, 'review')} since it is live; e-value "
            f"{format_number(guarantee.e_value, '.3g')}, the alarm is at {1 / guarantee.alpha:g} (1 / "
            "monitoring.alpha)",
        )
    if calibration := statistics.calibration:
        yield (
            "correct less probability",
            f"{calibration.difference:+.3f} ({calibration.low:+.3f} to {calibration.high:+.3f})",
        )
    if expected := statistics.expected:
        errors = statistics.prediction_errors
        error_text = (
            f"; in {format_count(errors.windows, 'window')} it was wrong by {errors.mean_error or 0:.3f} in the mean"
        )
        text = f"{format_percent(expected.value)} ({format_percent(expected.low)} to {format_percent(expected.high)})"
        yield "expected precision", text + (error_text if errors.windows else "; how wrong it was is not known yet")
    for what, gap in statistics.feed.items():
        yield f"no {what} for", f"{gap.hours:,.1f} hours, {gap.longest_before:,.1f} at most before"


def _format_drift(statistics: WindowStatistics) -> Iterator[tuple[str, str]]:
    compared = statistics.compared
    for name, label in DRIFTS.items():
        if comparison := compared.get(name):
            p_value = comparison.p_value
            yield label, comparison.note or "not judged" if p_value is None else f"p = {p_value:.2g}"
    if comparison := compared.get("topics"):
        shares = comparison.statistics
        yield (
            "new topics",
            f"{format_percent(shares['share'])} of the questions, {format_percent(shares['expected'])} expected",
        )
    if comparison := compared.get("coverage"):
        yield (
            "coverage before",
            f"{format_percent(comparison.statistics['before'])} (p = {format_number(comparison.p_value, '.2g')})",
        )
    if comparison := compared.get("chunks"):
        yield "unknown chunks", f"in {format_percent(comparison.statistics['share'])} of the answers"
    models = compared["writers"].statistics["now"]
    if models:
        yield "written by", ", ".join(f"{model} {format_percent(share)}" for model, share in models.items())
