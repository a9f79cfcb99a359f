"""Text of a monitoring window: the same lines for the terminal, the Prefect UI and the page of the gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from abstain.core.formatting import format_percent
from abstain.data.decision_log.monitoring_windows import MonitoringWindow
from abstain.reports.templating import render_lines, render_template


def render_window(window: MonitoringWindow) -> str:
    """Render a whole window: alarms with the remedy, its statistics, its products.

    Args:
        window: The monitoring window.

    Returns:
        Markdown.
    """
    return render_template("monitoring/window", window=window, lines=format_statistics(window))


def format_statistics(window: MonitoringWindow) -> list[tuple[str, str]]:
    """Return the statistics of `window` as (label, value)."""
    return render_lines("monitoring/statistics", window=window.statistics)


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
