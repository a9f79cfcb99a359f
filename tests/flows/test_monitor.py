from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from abstain.core.codes import Code
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.monitoring_windows import read_windows
from abstain.release.registry import Registry
from abstain_tasks.runs.events import ALARM, DRIFT
from abstain_tasks.server.addresses import post
from tests.conftest import Project, new_project
from tests.data.decision_log.builders import url_of
from tests.monitoring.builders import traffic, write_data, write_log
from tests.release.builders import promotion
from tests.tasks.server.test_server import wait_until

pytestmark = pytest.mark.slow

DAYS = 10


@pytest.fixture
def project(prefect_server: str, tmp_path: Path) -> Project:
    """v1.0.0 is live; its runs report to the server."""
    made = replace(new_project(tmp_path), server=prefect_server)
    event = promotion(occurred_at=midnight() - timedelta(days=DAYS + 1))
    (made.root / "registry.json").write_text(Registry(history=(event,)).to_json())
    made.run("dvc", "cache", "dir", "--local", str(made.home / "dvc-cache"))
    made.edit_params("  min_reviews: 50 ", "  min_reviews: 1000 ")  # two windows, of five days each
    made.git("tag", "probe@v1.0.0")
    return made


def midnight() -> datetime:
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def read_payloads(server: str, event: str) -> list[dict[str, Any]]:
    found = post(f"{server}/events/filter", {"filter": {"event": {"name": [event]}}, "limit": 50})
    return [one["payload"] for one in found["events"]]


def test_monitor_rewritten_documents_raise_alarm_once(project: Project, prefect_server: str) -> None:
    now, start = datetime.now(UTC), midnight() - timedelta(days=DAYS)
    answers = traffic(start, DAYS + 1, rewritten_from=DAYS // 2)
    write_log(url_of(project.home), [one for one in answers if one.decision.decided_at <= now])
    write_data(project.root / "data", [one for one in answers if one.decision.decided_at < midnight()])
    project.run("dvc", "add", "--quiet", "data")
    project.git("commit", "-qam", "The reviews so far")
    output = project.run("abstain", "monitor")
    with closing(LogDatabase.open(url_of(project.home))) as database:
        window = read_windows(database)[-1]
    raised = {alarm.code for alarm in window.alarms}
    assert Code.INPUT_DRIFT in raised, output
    filters = {"flows": {"name": {"any_": ["monitor"]}}, "sort": "START_TIME_DESC", "limit": 1}
    (run,) = post(f"{prefect_server}/flow_runs/filter", filters)
    assert (run["state_type"], run["state_name"]) == ("COMPLETED", window.headline)
    assert window.headline.startswith("Alarm: ")
    listed = post(f"{prefect_server}/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})
    artifacts = {artifact["key"]: artifact["type"] for artifact in listed}
    assert artifacts["monitoring-history"] == "table"
    assert sorted(kind for key, kind in artifacts.items() if "v1-0-0" in key) == ["image"] * 2 + ["markdown"] * 2
    wait_until(lambda: len(read_payloads(prefect_server, ALARM)) == len(raised))
    wait_until(lambda: bool(read_payloads(prefect_server, DRIFT)))
    payloads = read_payloads(prefect_server, ALARM)
    assert {payload["code"] for payload in payloads} == raised
    assert all(payload["text"] and payload["remedy"] for payload in payloads)
    for alarm in window.alarms:
        assert alarm.code in output and alarm.action in output
        assert all(f"example {key}: " in output for key in alarm.examples)

    assert window.headline in project.run("abstain", "monitor")
    assert len(read_payloads(prefect_server, ALARM)) == len(raised)  # the same alarm of the same window is told once
