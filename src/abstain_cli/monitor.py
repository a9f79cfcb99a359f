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
    from tasks.monitoring.monitor import MonitoringResult

Since = Annotated[
    str | None, typer.Option(metavar="DAY", help="judge the windows again that end later than 2026-11-01, for instance")
]
SHOWN = 80
"""Characters of a question that are printed."""


def monitor(since: Since = None) -> None:
    """Watch what is live: judge the windows of decisions, store and publish them, and print the newest."""
    from tasks.server import server_for_run

    with server_for_run():
        from flows.monitor import monitor as flow

    result = flow(since)
    asked: Mapping[str, str] = load_example_questions(result.newest) if result and result.newest else {}
    for line in lines(result, asked):
        console.print(line, soft_wrap=True)


def load_example_questions(window: MonitoringWindow) -> Mapping[str, str]:
    """The questions of the alarms' examples by id, as the log keeps them; those whose texts are gone are left out."""
    from abstain.config.settings import load_settings
    from abstain.data.decision_log import queries
    from tasks.monitoring.monitor import open_log, retry_while_unavailable

    ids = [key for alarm in window.alarms for key in alarm.examples]
    database = open_log(load_settings()) if ids else None
    if database is None:
        return {}
    with closing(database):
        return {
            key: row.question
            for key, row in retry_while_unavailable(lambda: queries.interactions(database, ids)).items()
        }


def lines(result: MonitoringResult | None, asked: Mapping[str, str]) -> Iterator[str]:
    """The newest window in a few lines: its status, its alarms with what to do, its figures.

    `asked`: the questions of examples by id; an example without one is its id alone.
    """
    from abstain.core.markdown import to_single_line
    from abstain.reports.monitoring_window import format_statistics, format_title

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
    yield f"{window.headline}: {format_title(window)}"
    for alarm in window.alarms:
        yield f"{alarm.code}: {alarm.message}"
        yield f"  to do: {alarm.action}"
        for key in alarm.examples:
            yield f"  example {to_single_line(key)}{f': {_cut(to_single_line(asked[key]))}' if key in asked else ''}"
    for what, value in format_statistics(window):
        yield f"{what:28} {value}"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1].rstrip()}…"
