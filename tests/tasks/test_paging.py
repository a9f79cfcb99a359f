"""A run that fails is told of: real servers, a real failing flow, and somebody who listens."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from abstain.core.errors import AbstainError
from tasks.server.paging import NAME, receiver, told
from tests.conftest import Project, new_project
from tests.data.builders import row, write_lines
from tests.ports import free_port
from tests.tasks.test_server import wait_until

FAILING = """
from tasks.server import prepare_environment, server_for_run
prepare_environment()
with server_for_run():
    from prefect import flow
from abstain.core.errors import AbstainError

@flow(name="ingest", flow_run_name="monday")
def failing():
    raise AbstainError("batch refused, nothing accepted: 3 of 4 rows fail: mend them")

@flow(name="other")
def other():
    raise AbstainError("nobody is to hear of this")

for run in (other, failing):
    try:
        run()
    except AbstainError as error:
        print("failed:", error)
"""

Server = Callable[..., subprocess.CompletedProcess[str]]


class Receiver(ThreadingHTTPServer):
    """Somebody who is paged."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook/secret"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Receiver)
        self.server.pages.append(json.loads(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def listener() -> Iterator[Receiver]:
    with Receiver() as listening:
        yield listening
        listening.shutdown()


@pytest.fixture
def project(tmp_path) -> Project:
    return new_project(tmp_path)


@pytest.fixture
def server(project: Project) -> Iterator[Server]:
    """`python -m tasks.server up|down`, with somebody to page or nobody; down at the end in any case."""
    ports = {"ABSTAIN_UI_PORT": free_port(), "ABSTAIN_REPORTS_PORT": free_port()}

    def call(what: str, page_url: str = "") -> subprocess.CompletedProcess[str]:
        variables = [f"{name}={value}" for name, value in {**ports, "ABSTAIN_PAGE_URL": page_url}.items()]
        return project.command(["env", *variables, sys.executable, "-m", "tasks.server", what])

    yield call
    call("down")


def automations(ui: str) -> list[str]:
    request = urllib.request.Request(f"{ui}/api/automations/filter", b"{}", {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return [automation["name"] for automation in json.load(reply)]


def ui_of(up: subprocess.CompletedProcess[str]) -> str:
    assert up.returncode == 0, up.stdout + up.stderr
    return next(line.split()[-1] for line in up.stdout.splitlines() if line.startswith(("Prefect UI", "already up")))


@pytest.mark.slow
def test_a_failing_run_pages_once_and_nobody_when_nobody_is_to_be(
    project: Project, server: Server, listener: Receiver
) -> None:
    up = server("up", listener.url)
    ui = ui_of(up)
    assert f"failing runs are posted to 127.0.0.1:{listener.server_port}\n" in up.stdout
    assert "secret" not in up.stdout
    assert ui_of(server("up", listener.url)) == ui
    assert automations(ui) == [NAME]

    run = project.command(["python", "-c", FAILING])
    assert "failed: batch refused" in run.stdout, run.stdout + run.stderr
    wait_until(lambda: bool(listener.pages), 20)
    subject, message, link = listener.pages[0]["text"].split("\n")
    assert subject == "ingest: run monday has failed"
    assert "AbstainError: batch refused, nothing accepted: 3 of 4 rows fail: mend them" in message
    assert link.startswith(f"{ui}/runs/flow-run/")
    as_a_browser = urllib.request.Request(link, headers={"Accept": "text/html"})
    with urllib.request.urlopen(as_a_browser, timeout=10) as reply:
        assert reply.status == 200

    nobody = server("up")
    assert "nobody: set ABSTAIN_PAGE_URL" in nobody.stdout
    assert automations(ui) == []
    assert project.command(["python", "-c", FAILING]).returncode == 0
    assert len(listener.pages) == 1  # neither the flow that is not watched, nor the run that nobody is paged for


@pytest.mark.slow
def test_a_run_without_a_server_pages_too_before_it_ends(project: Project, listener: Receiver) -> None:
    done = project.command(["env", f"ABSTAIN_PAGE_URL={listener.url}", "python", "-c", FAILING])
    assert done.returncode == 0, done.stdout + done.stderr
    (page,) = listener.pages
    assert page["text"].startswith("ingest: run monday has failed\n")
    assert page["text"].endswith("\nstart `make up` to look at the run")


def test_what_is_no_url_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("oncall@example.org", "ftp://example.org", "https://"):
        monkeypatch.setenv("ABSTAIN_PAGE_URL", bad)
        with pytest.raises(AbstainError, match=r"^environment variable ABSTAIN_PAGE_URL: not an http\(s\) URL$"):
            receiver()
    monkeypatch.setenv("ABSTAIN_PAGE_URL", " ")
    assert receiver() is None
    assert told("https://hooks.example.org/services/T0/secret") == "failing runs are posted to hooks.example.org"


@pytest.mark.slow
def test_a_refused_batch_pages_leaves_its_page_and_blocks_the_retrain_which_pages_too(
    small_project: Project, listener: Receiver, tmp_path: Path
) -> None:
    project = replace(small_project, server=None)  # its runs bring their own
    bad = [row(f"bad-{number}", model=None) for number in range(5)]
    batch = write_lines(tmp_path / "batch.jsonl", row("good"), *bad)
    command = ["env", f"ABSTAIN_PAGE_URL={listener.url}", "python", "-m", "abstain_cli.app"]
    done = project.command([*command, "ingest", str(batch)])
    assert done.returncode == 1 and "refused, nothing accepted: 5 of 6" in done.stderr, done.stdout + done.stderr
    (page,) = listener.pages
    assert page["text"].startswith("ingest: run ") and "refused, nothing accepted: 5 of 6" in page["text"]
    (kept,) = (project.home / "reports").glob("*/ingest.html")
    text = kept.read_text(encoding="utf-8")
    assert "Batch refused, nothing accepted" in text and "batch.jsonl, line 2" in text

    blocked = project.command([*command, "retrain"])
    assert blocked.returncode == 1 and "the retrain is blocked" in blocked.stderr, blocked.stdout + blocked.stderr
    assert "the retrain is blocked" in listener.pages[1]["text"]
