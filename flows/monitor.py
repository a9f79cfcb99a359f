"""The flow that monitors what is live: deployment monitor/daily, or `abstain monitor`."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from prefect import flow
from prefect.states import Completed

from abstain.config.settings import load_settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.monitoring.traffic import read_traffic
from abstain_tasks.monitoring.monitor import (
    MonitoringResult,
    open_log,
    read_workspace,
    retry_while_unavailable,
    run_monitoring,
)
from abstain_tasks.monitoring.publish_windows import publish_monitoring
from abstain_tasks.runs.failures import coded_failures
from abstain_tasks.runs.workspace import open_workspace


@flow(validate_parameters=False)
@coded_failures()
def monitor(since: str | None = None) -> Any:
    """Compute the monitoring windows that are not final; store, publish and report them.

    The run's state is named after the newest window's alarms.

    Args:
        since: Day in UTC; also recompute windows that end later.

    Returns:
        The run's state, with the result as data.
    """
    settings, now, begin = load_settings(), datetime.now(UTC), None if since is None else _parse_day(since)
    database = open_log(settings)
    if database is None:
        return Completed(name="Quiet: no decisions yet", data=None)
    with closing(database):
        traffic = retry_while_unavailable(lambda: read_traffic(database, now))
        with open_workspace() as workspace:
            facts = read_workspace(workspace, traffic)
        result: MonitoringResult = run_monitoring(database, traffic, facts, settings, now, begin)
    publish_monitoring(result.windows, result.history)
    return Completed(name=result.headline, data=result)


def _parse_day(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise AbstainError(Code.USAGE, f"since: '{text}' is no day: write one as in 2026-11-01") from None
