"""What the monitoring reads of a workspace and of the log, what it stores there, and the events that it emits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import pandas as pd
import yaml
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from abstain.config.params import LLMParams, Params, ThresholdParams, load_params
from abstain.config.settings import Settings, decision_log_url
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
from tasks.runs.events import ALARM, DRIFT, post_event
from tasks.runs.shell import succeeds
from tasks.runs.workspace import Workspace

T = TypeVar("T")

DATABASE_WAIT_S = 120
"""How long a database that is away is waited for."""


RaisedAlarm = tuple[MonitoringWindow, Alarm]


@dataclass(frozen=True)
class MonitoringResult:
    """The result of one run.

    `windows`: those that were judged and came out otherwise than they are stored, oldest first; `history`: all that
    are stored now. `raised`: the alarms that were not there before, each with its window.
    """

    windows: tuple[MonitoringWindow, ...]
    history: tuple[MonitoringWindow, ...]
    raised: tuple[RaisedAlarm, ...]

    @property
    def newest(self) -> MonitoringWindow | None:
        return self.history[-1] if self.history else None

    @property
    def headline(self) -> str:
        """The status of the run in words that a person grasps."""
        return self.newest.headline if self.newest else "Quiet: no window yet"


@dataclass(frozen=True)
class WorkspaceSnapshot:
    """What a workspace says, read at once so that a long computation does not keep its lock."""

    params: Params
    registry: Registry
    reviewed: pd.DataFrame
    known_chunks: frozenset[str] | None
    versions: dict[str, MonitoredVersion]


def retry_while_unavailable(ask: Callable[[], T]) -> T:
    """`ask()`, again for `DATABASE_WAIT_S` while the database is away. Raises its last `AbstainError`."""
    attempts = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, AbstainError) and error.code is Code.NO_SERVICE),
        stop=stop_after_delay(DATABASE_WAIT_S),
        wait=wait_exponential(max=15),
        reraise=True,
    )
    return attempts(ask)


def open_log(settings: Settings) -> LogDatabase | None:
    """The decision log with all its tables; None where nothing was logged yet."""
    url = decision_log_url(settings)
    existing = retry_while_unavailable(lambda: LogDatabase.existing(url))
    if existing is None:
        return None
    existing.close()
    return retry_while_unavailable(lambda: LogDatabase.open(url))


def read_workspace(workspace: Workspace, traffic: Traffic) -> WorkspaceSnapshot:
    """The facts of `workspace` about the answers of `traffic`."""
    store = DataStore(workspace.path / paths.DATA)
    params, registry = load_params(workspace.path / paths.PARAMS), load_registry(workspace.path / paths.REGISTRY)
    chunks = frozenset(chunk.chunk_id for chunk in store.chunks())
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
    facts: WorkspaceSnapshot,
    settings: Settings,
    now: datetime,
    since: datetime | None,
) -> MonitoringResult:
    """Compute and store the windows. Raises `AbstainError` where the log's database stays away."""
    stored = retry_while_unavailable(lambda: read_windows(database))
    source = LoggedAnswers(database, settings)
    states_since = now - timedelta(days=facts.params.retention.feature_days)
    inputs = MonitoringInputs(traffic, facts.reviewed, facts.known_chunks, facts.versions, source, states_since)
    windows = retry_while_unavailable(lambda: compute_windows(inputs, stored, facts.params.monitoring, now, since))
    known = {(one.version, one.start, alarm.code) for one in stored for alarm in one.alarms}
    raised = [
        (one, alarm) for one in windows for alarm in one.alarms if (one.version, one.start, alarm.code) not in known
    ]
    emit_alarm_events(raised, facts.registry.production_version)  # told twice, should the next line fail, not never
    retry_while_unavailable(lambda: write_windows(database, windows))
    history = retry_while_unavailable(lambda: read_windows(database))
    return MonitoringResult(tuple(one for one in windows if one not in stored), history, tuple(raised))


def emit_alarm_events(raised: Sequence[RaisedAlarm], live: str | None) -> None:
    """Tell Prefect each alarm, and whether anything drifted.

    The resource of an alarm is its window and code: by it an automation knows one that is told twice.
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
    of_live = [
        alarm.code for window, alarm in raised if window.version == live
    ]  # one that was replaced needs no retrain
    if drifted := sorted({code.value for code in of_live if code in DRIFT_CODES}):
        post_event(DRIFT, version=live, codes=drifted)


def _load_monitored_version(workspace: Workspace, registry: Registry, name: str) -> MonitoredVersion:
    """What `name` promises and reads, by the parameters at its tag; nothing where it is no version of this history."""
    event = next((one for one in reversed(registry.history) if one.version == name), None)
    tag = make_version_tag(name)
    if event is None or not succeeds(workspace.path, "git", "rev-parse", "--quiet", "--verify", f"{tag}^{{commit}}"):
        return MonitoredVersion(name, None)
    content = yaml.safe_load(workspace.git("show", f"{tag}:{paths.PARAMS}"))
    threshold = ThresholdParams.model_validate(content["threshold"])
    promise = GuaranteedTarget(threshold.metric, threshold.target) if event.guaranteed else None
    llm = LLMParams.model_validate(content["llm"])
    return MonitoredVersion(name, promise, None if llm.layer == "auto" else llm)
