"""The charts of the page as inline SVG, drawn on the server: colours are those of the page's style, by class.

Each has a title and a description for who does not see it; the table below them has the same figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from markupsafe import Markup, escape

from abstain.core.formatting import format_percent
from abstain.data.decision_log.monitoring_windows import MonitoringWindow
from abstain.serving.status_page.status_data import DayStatistics

WIDTH, HEIGHT = 320, 190
LEFT, RIGHT, TOP, BOTTOM = 62, 4, 10, 24
KINDS = ("show", "abstain", "unavailable")


def decisions_chart(days: Sequence[DayStatistics]) -> Markup:
    """Decisions a day, one bar: shown at the bottom, then withheld, then unavailable."""
    most = _rounded_up(max(day.total for day in days))
    bars = []
    for at, day in enumerate(days):
        below = 0
        for kind in KINDS:
            count = getattr(day, kind)
            if count:
                y, height = _y(below + count, most), _y(below, most) - _y(below + count, most)
                width = 0.72 * _step(len(days))
                x = _x(at, len(days)) - width / 2
                bars.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>')
                below += count
    totals = {kind: sum(getattr(day, kind) for day in days) for kind in KINDS}
    said = ", ".join(f"{count:,} {kind}" for kind, count in totals.items())
    return _chart(
        "decisions", "Decisions a day", f"In {len(days)} days: {said}.", _dates(days), most, f"{most:,.0f}", bars
    )


def coverage_chart(days: Sequence[DayStatistics]) -> Markup:
    """The share of answers shown, by day."""
    decided = sum(day.total for day in days)
    shown = sum(day.shown for day in days)
    said = (
        f"In {len(days)} days {format_percent(shown / decided, 0)} of {decided:,} answers."
        if decided
        else "No decisions."
    )
    line = _line("show", [day.coverage for day in days], 1.0)
    return _chart("coverage", "Coverage: share of answers shown", said, _dates(days), 1.0, "100 %", line)


def latency_chart(days: Sequence[DayStatistics]) -> Markup:
    """The milliseconds of half of a day's decisions, and of 99 in 100."""
    highest = [day.p99_ms for day in days if day.p99_ms is not None]
    most = _rounded_up(max(highest, default=1.0))
    lines = [
        *_line("p50", [day.p50_ms for day in days], most),
        *_line("p99", [day.p99_ms for day in days], most),
    ]
    label = f"{most:,.0f} ms" if most < 10_000 else f"{most / 1000:,.0f} s"
    said = f"The slowest day's p99 is {max(highest):,.0f} ms." if highest else "No decisions."
    return _chart("latency", "Latency: p50 and p99", said, _dates(days), most, label, lines)


def history_chart(windows: Sequence[MonitoringWindow]) -> Markup:
    """Coverage and precision by window of the monitoring, one or more."""
    coverage = [one.figures["coverage"] for one in windows]
    precision = [(one.figures["precision"] or {}).get("precision") for one in windows]
    alarms = sum(bool(one.alarms) for one in windows)
    said = f"{len(windows)} windows, {alarms} with an alarm. Newest: {windows[-1].headline}."
    lines = [*_line("show", precision, 1.0), *_line("p99", coverage, 1.0)]
    ends = [one.end for one in windows]
    return _chart("history", "Coverage and precision by window", said, ends, 1.0, "100 %", lines)


def _chart(
    name: str, title: str, said: str, dates: Sequence[datetime], most: float, label: str, marks: Sequence[str]
) -> Markup:
    """Axes, first and last of `dates`, and `marks` of a chart whose y axis goes from 0 to `most`, labelled `label`."""
    bottom = HEIGHT - BOTTOM
    grid = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(part * most, most):.1f}" '
        f'y2="{_y(part * most, most):.1f}"/>'
        for part in (0, 0.5, 1)
    )
    ends = "".join(
        f'<text x="{_x(at, len(dates)):.1f}" y="{bottom + 16}" text-anchor="{anchor}">{dates[at]:%d %b}</text>'
        for at, anchor in ((0, "start"), (len(dates) - 1, "end"))
    )
    scale = (
        f'<text x="{LEFT - 6}" y="{TOP + 9}" text-anchor="end">{escape(label)}</text>'
        f'<text x="{LEFT - 6}" y="{bottom}" text-anchor="end">0</text>'
    )
    return Markup(  # noqa: S704 (numbers, and texts of this module)
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(said)}</desc>'
        f"{grid}{scale}{ends}{''.join(marks)}</svg>"
    )


def _line(kind: str, values: Sequence[float | None], most: float) -> list[str]:
    """A line through the days or windows that have a value, broken where one has none, with a dot on each."""
    runs: list[list[str]] = [[]]
    dots = []
    for at, value in enumerate(values):
        if value is None:
            runs.append([])
            continue
        x, y = f"{_x(at, len(values)):.1f}", f"{_y(value, most):.1f}"
        runs[-1].append(f"{x},{y}")
        dots.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="2.5"/>')
    return [*(f'<polyline class="{kind}" points="{" ".join(run)}"/>' for run in runs if len(run) > 1), *dots]


def _dates(days: Sequence[DayStatistics]) -> list[datetime]:
    return [day.date for day in days]


def _step(count: int) -> float:
    return (WIDTH - LEFT - RIGHT) / count


def _x(at: int, count: int) -> float:
    """The middle of a day or window, of so many."""
    return LEFT + (at + 0.5) * _step(count)


def _y(value: float, most: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / most


def _rounded_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... from `value` on."""
    size = 1.0
    while True:
        for step in (1, 2, 5):
            if value <= step * size:
                return step * size
        size *= 10
