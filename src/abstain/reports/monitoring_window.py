"""A window of the monitoring in words: the same lines for the terminal, the Prefect UI and the gate's page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from abstain.core.formatting import format_count, format_number, format_percent
from abstain.core.markdown import bullet_list, document, heading, paragraph, table
from abstain.data.decision_log.monitoring_windows import Alarm, MonitoringWindow

DRIFTS = {
    "questions": "drift of questions",
    "answers": "drift of answers",
    "contexts": "drift of contexts",
    "states": "drift of hidden states",
}


def render_window(window: MonitoringWindow) -> str:
    """The whole of a window: alarms with what to do, its figures, its products."""
    blocks = [heading(1, window.headline), paragraph(format_title(window))]
    blocks += [_alarm(alarm) for alarm in window.alarms]
    blocks.append(table(("figure", "value"), format_statistics(window), words=("value",)))
    rows = [(name, of["decisions"], format_percent(of["coverage"])) for name, of in window.figures["products"].items()]
    if rows:
        blocks.append(table(("product", "decisions", "shown"), rows))
    blocks.append(bullet_list(window.figures["notes"]))
    return document(blocks)


def format_title(window: MonitoringWindow) -> str:
    """Version and days."""
    return f"{window.version}, {window.start:%Y-%m-%d} to {window.end:%Y-%m-%d} (UTC, the end not included)"


def format_statistics(window: MonitoringWindow) -> list[tuple[str, str]]:
    """The figures, as (what it is, value)."""
    return [*_format_decisions(window.figures), *_format_reviews(window.figures), *_format_drift(window.figures)]


def history_rows(windows: Sequence[MonitoringWindow]) -> list[dict[str, Any]]:
    """A row a window, the newest first, as tables show them."""
    return [
        {
            "from": f"{one.start:%Y-%m-%d}",
            "to": f"{one.end:%Y-%m-%d}",
            "version": one.version,
            "decisions": one.figures["decisions"],
            "coverage": format_percent(one.figures["coverage"]),
            "precision": format_percent((one.figures["precision"] or {}).get("precision")),
            "expected": format_percent((one.figures["expected"] or {}).get("value")),
            "status": one.headline,
        }
        for one in reversed(windows)
    ]


def _alarm(alarm: Alarm) -> str:
    lines = [f"to do: {alarm.action}"]
    if alarm.examples:
        lines.append(f"examples: {', '.join(alarm.examples)}")
    return f"{heading(2, f'{alarm.code}: {alarm.kind}')}\n\n{paragraph(alarm.message)}\n\n{bullet_list(lines)}"


def _format_decisions(figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    said = f"{figures['decisions']:,}, {figures['shown']:,} shown (coverage {format_percent(figures['coverage'])})"
    yield "decisions", said if figures["decisions"] else "none"
    codes = ", ".join(f"{code} {number:,}" for code, number in figures["unavailable_codes"].items())
    yield "unavailable", f"{format_percent(figures['unavailable'])}{f' ({codes})' if codes else ''}"
    deciles, index = figures["confidence"]["deciles"], figures["confidence"]["stability_index"]
    if deciles:
        low, middle, high = deciles[0], deciles[4], deciles[8]
        shift = "" if index is None else f"; stability index {index:.2f} against those before (0.25 is a large shift)"
        yield "confidence", f"median {middle:.3f}, eight in ten from {low:.3f} to {high:.3f}{shift}"


def _format_reviews(figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    said = ""
    if figures["left_out"]:
        said = f"; {_format_self_selected(figures['left_out'])} left out"
    elif figures["volunteers"]:
        said = f"; {_format_self_selected(figures['volunteers'])} counted as they are"
    yield "reviews", f"{figures['reviews']:,} arrived{said}"
    if found := figures["precision"]:
        worth = f"{format_count(found['reviews'], 'review')} about {format_count(found['documents'], 'document')}"
        yield "precision of what was shown", f"{format_percent(found['precision'])} by {worth}"
    if promise := figures["promise"]:
        kept = f"broken since {promise['broken_on']}" if promise["broken"] else "not shown to be broken"
        least = "at least" if promise["metric"] == "precision" else "at most"
        yield (
            "promise",
            f"{promise['metric'].replace('_', ' ')} {least} {promise['target']:g}: {kept}; "
            f"{format_number(promise['estimate'])} ({format_number(promise['low'])} to {format_number(promise['high'])}) by "
            f"{format_count(promise['reviews'], 'review')} since it is live; e-value "
            f"{format_number(promise['e_value'], '.3g')}, the alarm is at {1 / promise['level']:g} (1 / monitoring.level)",
        )
    if found := figures["calibration"]:
        yield "correct less probability", f"{found['difference']:+.3f} ({found['low']:+.3f} to {found['high']:+.3f})"
    if found := figures["expected"]:
        record = figures["record"]
        was = f"; in {format_count(record['windows'], 'window')} it was wrong by {record['mean_error'] or 0:.3f} in the mean"
        said = f"{format_percent(found['value'])} ({format_percent(found['low'])} to {format_percent(found['high'])})"
        yield "expected precision", said + (was if record["windows"] else "; how wrong it was is not known yet")
    for what, quiet in figures["feed"].items():
        yield f"no {what} for", f"{quiet['hours']:,.1f} hours, {quiet['longest']:,.1f} at most before"


def _format_self_selected(number: int) -> str:
    """The start of a sentence about reviews whose reviewers chose what to review."""
    chose = "chose its answer itself and is" if number == 1 else "chose their answers themselves and are"
    return f"{format_count(number, 'review')} of the version {chose}"


def _format_drift(figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    compared = figures["compared"]
    for name, what in DRIFTS.items():
        if found := compared.get(name):
            p_value = found["p_value"]
            yield what, found["note"] or "not judged" if p_value is None else f"p = {p_value:.2g}"
    if found := compared.get("topics"):
        shares = found["figures"]
        yield (
            "new topics",
            f"{format_percent(shares['share'])} of the questions, {format_percent(shares['expected'])} expected",
        )
    if found := compared.get("coverage"):
        yield (
            "coverage before",
            f"{format_percent(found['figures']['before'])} (p = {format_number(found['p_value'], '.2g')})",
        )
    if found := compared.get("chunks"):
        yield "unknown chunks", f"in {format_percent(found['figures']['share'])} of the answers"
    models = compared["writers"]["figures"]["now"]
    if models:
        yield "written by", ", ".join(f"{model} {format_percent(share)}" for model, share in models.items())
