"""Failed runs are posted: real servers, a real failing flow, and a webhook."""

import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from abstain_tasks.server.addresses import post
from tests.conftest import Project, Up, processes_of
from tests.factories import row, write_lines
from tests.tasks.receiver import Receiver
from tests.tasks.server.test_server import wait_until

FAILING = """
from abstain_tasks.server import prepare_environment, server_for_run
prepare_environment()
with server_for_run():
    from prefect import flow
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_tasks.runs.failures import coded_failures

@flow(name="ingest", flow_run_name="tuesday")
@coded_failures()
def failing():
    raise AbstainError(Code.BATCH_REJECTED, "batch rejected, nothing accepted: 3 of 4 rows fail: fix them")

@flow(name="other")
def other():
    raise AbstainError(Code.BATCH_REJECTED, "no alert for this flow")

for run in (other, failing):
    try:
        run()
    except AbstainError as error:
        print("failed:", error)
"""


@pytest.fixture
def listener() -> Iterator[Receiver]:
    with Receiver() as listening:
        yield listening
        listening.shutdown()


def list_alerts(ui: str) -> list[str]:
    found = [automation["name"] for automation in post(f"{ui}/api/automations/filter", {})]
    return sorted(name for name in found if "alert" in name)


def has_alert_worker(up: Up) -> bool:
    """Whether there is a worker that does."""
    return any("worker start --pool alerts" in command for command in processes_of(up.project))


def read_ui(up: subprocess.CompletedProcess[str]) -> str:
    assert up.returncode == 0, up.stdout + up.stderr
    line = next(line for line in up.stdout.splitlines() if line.startswith(("Prefect UI", "already up")))
    return line.split()[2]


@pytest.mark.slow
def test_up_alerts_post_failed_runs(up: Up, listener: Receiver) -> None:
    listener.statuses = [500]  # which is asked again
    added = up.call("automations", listener.url)  # on a server that is up without alerts, and their worker
    assert added.returncode == 0, added.stdout + added.stderr
    wait_until(lambda: has_alert_worker(up), 60)
    again = up.call("up", None)  # in a shell without the variable: what the server has is kept
    ui = read_ui(again)
    assert again.stdout.startswith("already up: http://127.0.0.1:"), again.stdout
    assert "8 unchanged" in again.stdout
    for done in (added, again):
        assert f"alerts       posted to 127.0.0.1:{listener.server_port}\n" in done.stdout
        assert "secret" not in done.stdout
    assert list_alerts(ui) == [f"abstain-alert-{name}" for name in ("alarm", "failed", "rejected", "silence")]

    run = up.project.command(["python", "-c", FAILING])
    assert "failed: A105: batch rejected" in run.stdout, run.stdout + run.stderr
    wait_until(lambda: bool(listener.alerts), 60)
    subject, message, link = listener.alerts[0]["text"].split("\n")
    assert subject == "ingest: run tuesday has failed"
    assert "CodedFailure: A105: batch rejected, nothing accepted: 3 of 4 rows fail: fix them" in message
    assert link.startswith(f"{ui}/runs/flow-run/")
    as_a_browser = urllib.request.Request(link, headers={"Accept": "text/html"})
    with urllib.request.urlopen(as_a_browser, timeout=10) as reply:
        assert reply.status == 200
    notified = {"flows": {"name": {"any_": ["notify"]}}}
    # A post that is stopped with its worker is run again, which is right: it may not have arrived.
    wait_until(lambda: {run["state_type"] for run in post(f"{ui}/api/flow_runs/filter", notified)} == {"COMPLETED"}, 30)

    without = up.call("up")
    assert "none: set ABSTAIN_ALERT_URL" in without.stdout
    assert list_alerts(ui) == []
    wait_until(lambda: not has_alert_worker(up), 20)
    assert up.project.command(["python", "-c", FAILING]).returncode == 0
    assert len(set(listener.texts)) == 1  # neither the flow that is not watched, nor the run without a webhook


@pytest.mark.slow
def test_ingest_rejected_batch_alerts_and_blocks_retrain(
    small_project: Project, listener: Receiver, tmp_path: Path
) -> None:
    project = replace(small_project, server=None)  # its runs bring their own
    bad = [row(f"bad-{number}", model=None) for number in range(5)]
    batch = write_lines(tmp_path / "batch.jsonl", row("good"), *bad)
    command = ["env", f"ABSTAIN_ALERT_URL={listener.url}", "python", "-m", "abstain_cli.app"]
    done = project.command([*command, "ingest", str(batch)])
    assert done.returncode == 1 and "rejected, nothing accepted: 5 of 6" in done.stderr, done.stdout + done.stderr
    (alert,) = listener.alerts  # sent before the temporary server ended with the command
    assert (
        alert["text"].startswith("ingest: run ")
        and "A105: batch of batch.jsonl rejected, nothing accepted: 5 of 6" in alert["text"]
    )
    assert alert["text"].endswith("\nstart `make up` to look at the run")
    (kept,) = (project.home / "reports").glob("*/ingest.html")
    text = kept.read_text(encoding="utf-8")
    assert "Batch rejected, nothing accepted" in text and "batch.jsonl, line 2" in text

    blocked = project.command([*command, "retrain"])
    assert blocked.returncode == 1 and "the retrain is blocked" in blocked.stderr, blocked.stdout + blocked.stderr
    assert "the retrain is blocked" in listener.alerts[1]["text"]
