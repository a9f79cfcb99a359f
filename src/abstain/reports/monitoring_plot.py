"""Plot of the monitoring history: coverage and precision by window, and the windows with alarms."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from abstain.data.decision_log.monitoring_windows import MonitoringWindow
from abstain.reports.plots import render_svg
from abstain.reports.theme import LIGHT, add_legend, set_percent_ticks


def plot_history(windows: Sequence[MonitoringWindow]) -> bytes:
    """Draw the history of `windows` as SVG."""
    rows = [
        {
            "end": window.end,
            "coverage": window.statistics.coverage,
            "precision": window.statistics.observed_precision,
            "expected": window.statistics.expected_precision,
            "has_alarm": bool(window.alarms),
        }
        for window in windows
    ]
    return render_svg(_draw_history, pd.DataFrame(rows))


def _draw_history(axes: Axes, table: pd.DataFrame) -> None:
    numbers = table[["coverage", "precision", "expected"]].astype(float)
    for name, colour, style in (("coverage", "orange", "s--"), ("expected", "grey", "^:"), ("precision", "blue", "o-")):
        label = {"expected": "precision expected", "precision": "precision by reviews"}.get(name, name)
        axes.plot(table["end"], numbers[name], style, color=LIGHT[colour], markersize=4, label=label)
    marked = table[table["has_alarm"]]
    if not marked.empty:
        axes.plot(marked["end"], [0.02] * len(marked), "x", color=LIGHT["text"], label="window with an alarm")
    axes.set(xlabel="end of the window", ylim=(0, 1.02))
    axes.tick_params("x", rotation=30)
    set_percent_ticks(axes, y=True)
    add_legend(axes)
