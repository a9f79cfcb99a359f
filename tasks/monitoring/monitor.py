"""Reads monitoring inputs from a workspace and the log, stores the windows, and emits events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import pandas as pd
import yaml
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from abstain.config.params import LLMParams, Params, load_params
from abstain.config.settings import Settings, get_decision_log_url
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.monitoring_windows import Alarm, MonitoringWindow, read_windows, write_windows
from abstain.data.store.dataset import DataStore
from abstain.monitoring.alarms import DRIFT_CODES
from abstain.monitoring.answer_source import LoggedAnswers
from abstain.monitoring.live_guarantee import GuaranteedTarget
from abstain.monitoring.reviewed_decisions import join_reviews
from abstain.monitoring.run import MonitoredVersion, MonitoringInputs, compute_windows
from abstain.monitoring.traffic import Traffic
from abstain.release.registry import Registry, load_registry, make_version_tag
from abstain_tasks.runs.events import ALARM, DRIFT, post_event
from abstain_tasks.runs.shell import succeeds
from abstain_tasks.runs.workspace import Workspace

T = TypeVar("T")

DATABASE_WAIT_S = 120
"""How long a database that is away is waited for."""


RaisedAlarm = tuple[MonitoringWindow, Alarm]


@dataclass(frozen=True)
class MonitoringResult:
    """The result of one run.

    Attributes:
        windows: Windows that are new or changed, oldest first.
        history: All windows that are stored now.
        raised: New alarms, each with its window.
    """

    windows: tuple[MonitoringWindow, ...]
    history: tuple[MonitoringWindow, ...]
    raised: tuple[RaisedAlarm, ...]

    @property
    def newest(self) -> MonitoringWindow | None:
        return self.history[-1] if self.history else None

    @property
    def headline(self) -> str:
        """The status of the run in plain words."""
        return self.newest.headline if self.newest else "Quiet: no window yet"


@dataclass(frozen=True)
class WorkspaceSnapshot:
    """The content of a workspace, read at once so that a long computation does not hold its lock.

    Attributes:
        params: Parameters.
        registry: The registry.
        reviewed: Reviewed decisions from `join_reviews`.
        known_chunks: Chunk ids in the knowledge base; None if no document was ingested.
        versions: Version name -> guarantee and base model.
    """

    params: Params
    registry: Registry
    reviewed: pd.DataFrame
    known_chunks: frozenset[str] | None
    versions: dict[str, MonitoredVersion]


def retry_while_unavailable(operation: Callable[[], T]) -> T:
    """Run a database operation, retrying for up to `DATABASE_WAIT_S` while the database is unavailable.

    Args:
        operation: Called without arguments until it succeeds.

    Returns:
        The result of `operation`.

    Raises:
        AbstainError: The error of the last attempt.
    """
    attempts = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, AbstainError) and error.code is Code.NO_SERVICE),
        stop=stop_after_delay(DATABASE_WAIT_S),
        wait=wait_exponential(max=15),
        reraise=True,
    )
    return attempts(operation)


def open_log(settings: Settings) -> LogDatabase | None:
    """Open the decision log with all its tables.

    Args:
        settings: Settings of this machine.

    Returns:
        The log; None if nothing was logged yet.
    """
    url = get_decision_log_url(settings)
    existing = retry_while_unavailable(lambda: LogDatabase.open_existing(url))
    if existing is None:
        return None
    existing.close()
    return retry_while_unavailable(lambda: LogDatabase.open(url))


def read_workspace(workspace: Workspace, traffic: Traffic) -> WorkspaceSnapshot:
    """Read from a workspace what monitoring needs about logged answers.

    Args:
        workspace: The workspace.
        traffic: Decisions and feedback of the log.

    Returns:
        The snapshot.
    """
    store = DataStore(workspace.path / paths.DATA)
    params, registry = load_params(workspace.path / paths.PARAMS), load_registry(workspace.path / paths.REGISTRY)
    chunks = frozenset(chunk.chunk_id for chunk in store.iter_chunks())
    return WorkspaceSnapshot(
        params,
        registry,
        join_reviews(store, traffic, params.labels),
        chunks or None,
        {
            name: _load_monitored_version(workspace, registry, name)
            for name in map(str, traffic.decisions["version"].unique())
        },
    )


def run_monitoring(
    database: LogDatabase,
    traffic: Traffic,
    snapshot: WorkspaceSnapshot,
    settings: Settings,
    now: datetime,
    since: datetime | None,
) -> MonitoringResult:
    """Compute and store the windows, and emit events for new alarms.

    Args:
        database: The decision log.
        traffic: Decisions and feedback of the log.
        snapshot: What was read from the workspace.
        settings: Settings of this machine.
        now: Current time (UTC).
        since: Also recompute final windows that end after this time.

    Returns:
        Changed windows, all windows and new alarms.

    Raises:
        AbstainError: The log's database stays unavailable.
    """
    stored = retry_while_unavailable(lambda: read_windows(database))
    source = LoggedAnswers(database, settings)
    states_since = now - timedelta(days=snapshot.params.retention.feature_days)
    inputs = MonitoringInputs(
        traffic, snapshot.reviewed, snapshot.known_chunks, snapshot.versions, source, states_since
    )
    windows = retry_while_unavailable(lambda: compute_windows(inputs, stored, snapshot.params.monitoring, now, since))
    stored_alarms = {(window.version, window.start, alarm.code) for window in stored for alarm in window.alarms}
    raised = [
        (window, alarm)
        for window in windows
        for alarm in window.alarms
        if (window.version, window.start, alarm.code) not in stored_alarms
    ]
    emit_alarm_events(raised, snapshot.registry.production_version)  # told twice, should the next line fail, not never
    retry_while_unavailable(lambda: write_windows(database, windows))
    history = retry_while_unavailable(lambda: read_windows(database))
    return MonitoringResult(tuple(window for window in windows if window not in stored), history, tuple(raised))


def emit_alarm_events(raised: Sequence[RaisedAlarm], live: str | None) -> None:
    """Emit an event for each alarm, and one if anything drifted.

    The resource of an alarm names its window and code, so that an automation recognizes one that is emitted twice.

    Args:
        raised: New alarms with their windows.
        live: The version in production; other versions need no retrain.
    """
    for window, alarm in raised:
        post_event(
            ALARM,
            f"{ALARM}.{window.version}.{window.start:%Y-%m-%d}.{alarm.code}",
            code=alarm.code.value,
            kind=alarm.kind,
            text=alarm.message,
            remedy=alarm.action,
            version=window.version,
            window=f"{window.start:%Y-%m-%d}",
        )
    live_codes = [
        alarm.code for window, alarm in raised if window.version == live
    ]  # one that was replaced needs no retrain
    if drifted := sorted({code.value for code in live_codes if code in DRIFT_CODES}):
        post_event(DRIFT, version=live, codes=drifted)


def _load_monitored_version(workspace: Workspace, registry: Registry, name: str) -> MonitoredVersion:
    """Read the guarantee of a version, and its base model from the parameters at its tag; empty if it is unknown."""
    event = next((event for event in reversed(registry.history) if event.version == name), None)
    tag = make_version_tag(name)
    if event is None or not succeeds(workspace.path, "git", "rev-parse", "--quiet", "--verify", f"{tag}^{{commit}}"):
        return MonitoredVersion(name, None)
    content = yaml.safe_load(workspace.git("show", f"{tag}:{paths.PARAMS}"))
    guarantee = GuaranteedTarget(event.guarantee.metric, event.guarantee.target) if event.has_guarantee else None
    llm = LLMParams.model_validate(content["llm"])
    return MonitoredVersion(name, guarantee, None if llm.layer == "auto" else llm)
