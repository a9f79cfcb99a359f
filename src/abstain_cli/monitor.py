"""`abstain monitor`: judge what is live, and print what the newest window says.

Only the terminal shows questions, and only those whose texts the log still keeps: windows, events and pages have ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from abstain_cli.terminal import console

if TYPE_CHECKING:
    from abstain.data.decision_log.monitoring_windows import MonitoringWindow
    from abstain_tasks.monitoring.monitor import MonitoringResult

Since = Annotated[
    str | None, typer.Option(metavar="DAY", help="judge the windows again that end later than 2026-11-01, for instance")
]
SHOWN = 80
"""Characters of a question that are printed."""


def monitor(since: Since = None) -> None:
    """Watch what is live: judge the windows of decisions, store and publish them, and print the newest."""
    from abstain_tasks.server import server_for_run

    with server_for_run():
        from abstain_flows.monitor import monitor as flow

    result = flow(since)
    questions: Mapping[str, str] = load_example_questions(result.newest) if result and result.newest else {}
    for line in format_monitoring(result, questions):
        console.print(line, soft_wrap=True)


def load_example_questions(window: MonitoringWindow) -> Mapping[str, str]:
    """Load the questions of the alarms' examples; those whose texts are deleted are left out.

    Args:
        window: The window.

    Returns:
        Question by id.
    """
    from abstain.config.settings import load_settings
    from abstain.data.decision_log import queries
    from abstain_tasks.monitoring.monitor import open_log, retry_while_unavailable

    ids = [key for alarm in window.alarms for key in alarm.examples]
    database = open_log(load_settings()) if ids else None
    if database is None:
        return {}
    with closing(database):
        return {
            key: row.question
            for key, row in retry_while_unavailable(lambda: queries.read_interactions(database, ids)).items()
        }


def format_monitoring(result: MonitoringResult | None, questions: Mapping[str, str]) -> Iterator[str]:
    """Format the newest window in a few lines: status, alarms with what to do, statistics.

    Args:
        result: Result of the run; None if nothing was logged yet.
        questions: Questions of examples by id; an example without one is shown by its id.

    Yields:
        The lines.
    """
    from abstain.core.markdown import to_single_line
    from abstain.reports.monitoring_window import format_statistics

    if result is None:
        yield "nothing to watch yet: the gate has logged no decision"
        return
    window = result.newest
    if window is None:
        yield (
            "no window yet: one needs `monitoring.min_decisions` decisions or `monitoring.min_reviews` reviews of days "
            "that are over (UTC); those of today count tomorrow"
        )
        return
    yield f"{window.headline}: {window.title}"
    for alarm in window.alarms:
        yield f"{alarm.code}: {alarm.message}"
        yield f"  to do: {alarm.action}"
        for key in alarm.examples:
            yield (
                "  example "
                f"{to_single_line(key)}{f': {_shorten(to_single_line(questions[key]))}' if key in questions else ''}"
            )
    for what, value in format_statistics(window):
        yield f"{what:28} {value}"


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1].rstrip()}…"
