"""The charts of the page as inline SVG, drawn on the server; the page's style sets their colours by class.

Each has a title and a description for readers who do not see it; the table below them has the same numbers. Reports
are drawn by matplotlib (reports/plots.py); in a server it would hold up decisions for about 50 ms a chart, and need
40 MiB.
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


def draw_decisions_chart(days: Sequence[DayStatistics]) -> Markup:
    """Draw the decisions per day as bars: shown at the bottom, then withheld, then unavailable.

    Args:
        days: The days, oldest first.

    Returns:
        The SVG.
    """
    y_max = _round_up(max(day.total for day in days))
    bars = []
    for index, day in enumerate(days):
        base = 0
        for kind in KINDS:
            count = getattr(day, kind)
            if count:
                y, height = _y(base + count, y_max), _y(base, y_max) - _y(base + count, y_max)
                width = 0.72 * _get_step(len(days))
                x = _x(index, len(days)) - width / 2
                bars.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>')
                base += count
    totals = {kind: sum(getattr(day, kind) for day in days) for kind in KINDS}
    description = ", ".join(f"{count:,} {kind}" for kind, count in totals.items())
    return _draw_chart(
        "decisions",
        "Decisions a day",
        f"In {len(days)} days: {description}.",
        _get_dates(days),
        y_max,
        f"{y_max:,.0f}",
        bars,
    )


def draw_coverage_chart(days: Sequence[DayStatistics]) -> Markup:
    """Draw the share of answers shown by day.

    Args:
        days: The days, oldest first.

    Returns:
        The SVG.
    """
    n_decisions = sum(day.total for day in days)
    n_shown = sum(day.shown for day in days)
    description = (
        f"In {len(days)} days {format_percent(n_shown / n_decisions, 0)} of {n_decisions:,} answers."
        if n_decisions
        else "No decisions."
    )
    line = _draw_line("show", [day.coverage for day in days], 1.0)
    return _draw_chart(
        "coverage", "Coverage: share of answers shown", description, _get_dates(days), 1.0, "100 %", line
    )


def draw_latency_chart(days: Sequence[DayStatistics]) -> Markup:
    """Draw the median and the 99th percentile of the decision time by day, in milliseconds.

    Args:
        days: The days, oldest first.

    Returns:
        The SVG.
    """
    highest = [day.p99_ms for day in days if day.p99_ms is not None]
    y_max = _round_up(max(highest, default=1.0))
    lines = [
        *_draw_line("p50", [day.p50_ms for day in days], y_max),
        *_draw_line("p99", [day.p99_ms for day in days], y_max),
    ]
    label = f"{y_max:,.0f} ms" if y_max < 10_000 else f"{y_max / 1000:,.0f} s"
    description = f"The slowest day's p99 is {max(highest):,.0f} ms." if highest else "No decisions."
    return _draw_chart("latency", "Latency: p50 and p99", description, _get_dates(days), y_max, label, lines)


def draw_history_chart(windows: Sequence[MonitoringWindow]) -> Markup:
    """Draw coverage and precision by monitoring window.

    Args:
        windows: At least one window, oldest first.

    Returns:
        The SVG.
    """
    coverage = [window.statistics.coverage for window in windows]
    precision = [window.statistics.observed_precision for window in windows]
    alarms = sum(bool(window.alarms) for window in windows)
    description = f"{len(windows)} windows, {alarms} with an alarm. Newest: {windows[-1].headline}."
    lines = [*_draw_line("show", precision, 1.0), *_draw_line("p99", coverage, 1.0)]
    end_dates = [window.end for window in windows]
    return _draw_chart("history", "Coverage and precision by window", description, end_dates, 1.0, "100 %", lines)


def _draw_chart(
    name: str,
    title: str,
    description: str,
    dates: Sequence[datetime],
    y_max: float,
    label: str,
    elements: Sequence[str],
) -> Markup:
    """Draw axes, the first and last of `dates`, and `elements`; the y axis goes from 0 to `y_max`, labelled `label`."""
    bottom = HEIGHT - BOTTOM
    grid = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(fraction * y_max, y_max):.1f}" '
        f'y2="{_y(fraction * y_max, y_max):.1f}"/>'
        for fraction in (0, 0.5, 1)
    )
    ends = "".join(
        f'<text x="{_x(index, len(dates)):.1f}" y="{bottom + 16}" text-anchor="{anchor}">{dates[index]:%d %b}</text>'
        for index, anchor in ((0, "start"), (len(dates) - 1, "end"))
    )
    scale = (
        f'<text x="{LEFT - 6}" y="{TOP + 9}" text-anchor="end">{escape(label)}</text>'
        f'<text x="{LEFT - 6}" y="{bottom}" text-anchor="end">0</text>'
    )
    return Markup(  # noqa: S704 (numbers, and texts of this module)
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
        f"{grid}{scale}{ends}{''.join(elements)}</svg>"
    )


def _draw_line(kind: str, values: Sequence[float | None], y_max: float) -> list[str]:
    """Draw a line through the values with a dot on each, broken at missing ones."""
    runs: list[list[str]] = [[]]
    dots = []
    for index, value in enumerate(values):
        if value is None:
            runs.append([])
            continue
        x, y = f"{_x(index, len(values)):.1f}", f"{_y(value, y_max):.1f}"
        runs[-1].append(f"{x},{y}")
        dots.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="2.5"/>')
    return [*(f'<polyline class="{kind}" points="{" ".join(run)}"/>' for run in runs if len(run) > 1), *dots]


def _get_dates(days: Sequence[DayStatistics]) -> list[datetime]:
    return [day.date for day in days]


def _get_step(count: int) -> float:
    return (WIDTH - LEFT - RIGHT) / count


def _x(index: int, count: int) -> float:
    """Return the centre of day or window `index` of `count`."""
    return LEFT + (index + 0.5) * _get_step(count)


def _y(value: float, y_max: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / y_max


def _round_up(value: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, ... that is at least `value`."""
    size = 1.0
    while True:
        for step in (1, 2, 5):
            if value <= step * size:
                return step * size
        size *= 10
