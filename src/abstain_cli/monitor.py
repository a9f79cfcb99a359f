"""`abstain monitor`: judge what is live, and print what the newest window says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tasks.monitoring import Monitoring

Since = Annotated[
    str | None, typer.Option(metavar="DAY", help="judge the windows again that end later than 2026-11-01, for instance")
]


def monitor(since: Since = None) -> None:
    """Watch what is live: judge the windows of decisions, store and publish them, and print the newest."""
    from tasks.server import server_for_run

    with server_for_run():
        from flows.monitor import monitor as flow

    for line in lines(flow(since)):
        print(line)


def lines(result: Monitoring | None) -> Iterator[str]:
    """The newest window in a few lines: its status, its alarms with what to do, its figures."""
    from abstain.reports.monitored import title, window_lines

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
    yield f"{window.headline}: {title(window)}"
    for alarm in window.alarms:
        yield f"{alarm.code}: {alarm.what}"
        yield f"  to do: {alarm.to_do}"
        if alarm.examples:
            yield f"  examples: {', '.join(alarm.examples)}"
    for what, value in window_lines(window):
        yield f"{what:28} {value}"
