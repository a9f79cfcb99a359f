"""The monitoring's artifacts in the Prefect UI: a page and a plot a window, and one table of all windows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact

from abstain.data.decision_log.monitoring_windows import MonitoringWindow
from abstain.reports.monitoring_window import format_title, history_rows, render_window
from tasks.monitoring.publish import svg_address

HISTORY = "monitoring-history"


def key_of(window: MonitoringWindow) -> str:
    """The key of a window's artifact: Prefect allows lower-case letters, digits and dashes."""
    version = re.sub("[^a-z0-9]+", "-", window.version.lower())
    return f"monitoring-{version}-{window.start:%Y-%m-%d}"


def publish_monitoring(windows: Sequence[MonitoringWindow], history: Sequence[MonitoringWindow]) -> None:
    """Artifacts of `windows`, those that changed, and of the whole history; nothing where there is no window."""
    from abstain.reports.monitoring_plot import plot_history  # matplotlib, which a run does not need before

    for window in windows:
        until = [one for one in history if one.end <= window.end]
        create_markdown_artifact(render_window(window), key=key_of(window), description=format_title(window))
        create_image_artifact(
            svg_address(plot_history(until)), key=f"{key_of(window)}-plot", description=f"until {window.end:%Y-%m-%d}"
        )
    if history:
        create_table_artifact(history_rows(history), key=HISTORY, description="every window, the newest first")
