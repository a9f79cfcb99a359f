"""Monitoring artifacts in the Prefect UI: a page and a plot for each window, and one table of all windows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact

from abstain.data.decision_log.monitoring_windows import MonitoringWindow
from abstain.reports.monitoring_window import history_rows, render_window
from abstain_tasks.monitoring.publish import make_svg_url

HISTORY = "monitoring-history"


def make_artifact_key(window: MonitoringWindow) -> str:
    """Make the key of a window's artifact; Prefect allows lower-case letters, digits and dashes.

    Args:
        window: The window.

    Returns:
        The key.
    """
    version = re.sub("[^a-z0-9]+", "-", window.version.lower())
    return f"monitoring-{version}-{window.start:%Y-%m-%d}"


def publish_monitoring(windows: Sequence[MonitoringWindow], history: Sequence[MonitoringWindow]) -> None:
    """Publish the artifacts of changed windows and of the whole history.

    Args:
        windows: Windows that changed.
        history: All windows; without any, nothing is published.
    """
    from abstain.reports.monitoring_plot import plot_history  # matplotlib, which a run does not need before

    for window in windows:
        until = [past for past in history if past.end <= window.end]
        create_markdown_artifact(render_window(window), key=make_artifact_key(window), description=window.title)
        create_image_artifact(
            make_svg_url(plot_history(until)),
            key=f"{make_artifact_key(window)}-plot",
            description=f"until {window.end:%Y-%m-%d}",
        )
    if history:
        create_table_artifact(history_rows(history), key=HISTORY, description="every window, the newest first")
