import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_tasks.runs.failures import coded_failures
from abstain_tasks.server.addresses import post
from tests.conftest import Project, Up, processes_of
from tests.factories import row, write_lines
from tests.tasks.receiver import Receiver
from tests.tasks.server.test_server import wait_until


@flow(name="ingest", flow_run_name="tuesday")
@coded_failures()
def fail() -> None:
    raise AbstainError(Code.BATCH_REJECTED, "batch rejected, nothing accepted: 3 of 4 rows fail: fix them")


@flow(name="other")
def fail_unwatched() -> None:
    raise AbstainError(Code.BATCH_REJECTED, "no alert for this flow")


def run_failing_flows(up: Up) -> None:
    with temporary_settings({PREFECT_API_URL: up.api}):
        for run in (fail_unwatched, fail):
            with pytest.raises(AbstainError):
                run()


@pytest.fixture
def listener() -> Iterator[Receiver]:
    with Receiver() as listening:
        yield listening
        listening.shutdown()


def list_alerts(ui: str) -> list[str]:
    found = [automation["name"] for automation in post(f"{ui}/api/automations/filter", {})]
    return sorted(name for name in found if "alert" in name)


def has_alert_worker(up: Up) -> bool:
    return any("worker start --pool alerts" in command for command in processes_of(up.project))


@pytest.mark.slow
def test_up_alerts_post_failed_runs(up: Up, listener: Receiver) -> None:
    listener.statuses = [500]  # which is asked again
    added = up.call("automations", listener.url)  # on a server that is up without alerts, and their worker
    assert added.returncode == 0, added.stdout + added.stderr
    wait_until(lambda: has_alert_worker(up), 60)
    again = up.call("up", None)  # in a shell without the variable: what the server has is kept
    ui = f"http://127.0.0.1:{up.ui}"
    assert again.stdout.startswith(f"already up: {ui}\n") and "8 unchanged" in again.stdout, again.stdout + again.stderr
    for done in (added, again):
        assert f"alerts       posted to 127.0.0.1:{listener.server_port}\n" in done.stdout
        assert "secret" not in done.stdout
    assert list_alerts(ui) == [f"abstain-alert-{name}" for name in ("alarm", "failed", "rejected", "silence")]

    run_failing_flows(up)
    wait_until(lambda: bool(listener.alerts), 60)
    subject, message, link = listener.texts[0].split("\n")
    assert subject == "ingest: run tuesday has failed"
    assert "CodedFailure: A105: batch rejected, nothing accepted: 3 of 4 rows fail: fix them" in message
    assert link.startswith(f"{ui}/runs/flow-run/")
    as_a_browser = urllib.request.Request(link, headers={"Accept": "text/html"})
    with urllib.request.urlopen(as_a_browser, timeout=10) as reply:
        assert reply.status == 200
    notified = {"flows": {"name": {"any_": ["notify"]}}}
    # A post that is stopped with its worker is run again, which is right: it may not have arrived.
    wait_until(lambda: {run["state_type"] for run in post(f"{ui}/api/flow_runs/filter", notified)} == {"COMPLETED"}, 30)
    assert len(set(listener.texts)) == 1  # not of the flow that is not watched

    without = up.call("automations")
    assert "none: set ABSTAIN_ALERT_URL" in without.stdout
    assert list_alerts(ui) == []
    wait_until(lambda: not has_alert_worker(up), 20)


@pytest.mark.soak(twin="test_up_alerts_post_failed_runs")
def test_up_after_cut_off_start_removes_alerts(up: Up, listener: Receiver) -> None:
    ui = f"http://127.0.0.1:{up.ui}"
    assert up.call("automations", listener.url).returncode == 0
    note = up.project.home / "up.json"
    note.write_text(note.read_text().replace('"deployed": "yes"', '"cut off": "after the worker had started"'))
    without = up.call("up")
    assert without.stdout.startswith(f"started deployments: {ui}\n"), without.stdout + without.stderr
    assert list_alerts(ui) == []
    run_failing_flows(up)
    assert listener.alerts == []


@pytest.mark.slow
def test_rejected_batch_alerts_and_blocks_retrain(small_project: Project, listener: Receiver, tmp_path: Path) -> None:
    project = replace(small_project, server=None)  # its runs bring their own
    bad = [row(f"bad-{number}", model=None) for number in range(5)]
    batch = write_lines(tmp_path / "batch.jsonl", row("good"), *bad)
    command = ["env", f"ABSTAIN_ALERT_URL={listener.url}", "python", "-m", "abstain_cli.app"]
    done = project.command([*command, "ingest", str(batch)])
    assert done.returncode == 1 and "rejected, nothing accepted: 5 of 6" in done.stderr, done.stdout + done.stderr
    assert processes_of(project) == [], "its server has ended, too"
    (text,) = listener.texts  # sent before the temporary server ended with the command
    assert text.startswith("ingest: run ") and "A105: batch of batch.jsonl rejected, nothing accepted: 5 of 6" in text
    assert text.endswith("\nstart `make up` to look at the run")
    (kept,) = (project.home / "reports").glob("*/ingest.html")
    text = kept.read_text(encoding="utf-8")
    assert "Batch rejected, nothing accepted" in text and "batch.jsonl, line 2" in text

    blocked = project.command([*command, "retrain"])
    assert blocked.returncode == 1 and "the retrain is blocked" in blocked.stderr, blocked.stdout + blocked.stderr
    assert "the retrain is blocked" in listener.texts[1]
