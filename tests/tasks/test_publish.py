"""From the Prefect UI to the page about the data, in a real browser, of a run that failed and of a batch refused."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, Route, expect

from tests.browser import headless
from tests.conftest import Project, new_project
from tests.feedback.pages.test_browser import FAILED
from tests.feedback.pages.test_pages import REFUSED
from tests.ports import free_port
from tests.tasks.test_server import processes_of

pytestmark = pytest.mark.slow

PUBLISH = """
from pathlib import Path
from tasks.server import prepare_environment, server_for_run
prepare_environment()
with server_for_run():
    from prefect import flow
    from abstain.feedback.report import IngestReport
    from tasks.publish import publish_ingest, publish_validation
    from tasks.workspace import Workspace

workspace = Workspace(Path("checked"), 0)

@flow(name="retrain", flow_run_name="sunday")
def retrain():
    publish_validation(workspace)

@flow(name="ingest", flow_run_name="monday")
def ingest():
    counts = dict(read=20, accepted=12, duplicate=1, held=2, quarantined=5)
    report = IngestReport(**counts, contracts={"interactions": 12}, quarantine="quarantine/q.jsonl")
    publish_ingest(report, workspace, refused="batch of a.jsonl refused, nothing accepted: 5 of 20 rows fail")

retrain()
ingest()
"""
SECONDS = 1000


@pytest.fixture
def project(tmp_path) -> Project:
    """A checkout beside which a stage and an ingest have left what they found."""
    project = new_project(tmp_path)
    checked = project.root / "checked"
    (checked / "artifacts").mkdir(parents=True)
    found = {**FAILED.to_dict(), "as_of": "2026-11-02T00:00:00+00:00", "markdown": FAILED.to_markdown()}
    (checked / "artifacts" / "validation.json").write_text(json.dumps(found))
    (checked / "artifacts" / "quality.json").write_text("of an earlier run, not to be read after a failure")
    (checked / "data" / "quarantine").mkdir(parents=True)
    lines = "".join(f"{row.canonical()}\n" for row in REFUSED)
    (checked / "data" / "quarantine" / "q.jsonl").write_text(lines)
    return project


@pytest.fixture
def ports() -> tuple[int, int]:
    return free_port(), free_port()


@pytest.fixture
def server(project: Project, ports: tuple[int, int]) -> Iterator[Callable[[str], subprocess.CompletedProcess[str]]]:
    def call(what: str) -> subprocess.CompletedProcess[str]:
        variables = [f"ABSTAIN_UI_PORT={ports[0]}", f"ABSTAIN_REPORTS_PORT={ports[1]}"]
        return project.command(["env", *variables, sys.executable, "-m", "tasks.server", what])

    yield call
    call("down")


@pytest.fixture
def refused() -> list[str]:
    """What the pages asked of anybody but the two servers."""
    return []


@pytest.fixture
def browser(ports: tuple[int, int], refused: list[str]) -> Iterator[BrowserContext]:
    def is_elsewhere(url: str) -> bool:
        return urlsplit(url).netloc not in {f"127.0.0.1:{port}" for port in ports}

    def refuse(route: Route) -> None:
        refused.append(route.request.url)
        route.abort()

    with headless() as opened:
        viewport = {"width": 1280, "height": 2000}
        context = opened.new_context(base_url=f"http://127.0.0.1:{ports[0]}", viewport=viewport)
        context.route(is_elsewhere, refuse)
        context.set_default_timeout(30 * SECONDS)
        expect.set_options(timeout=30 * SECONDS)
        yield context


def test_the_page_is_linked_from_the_run(
    project: Project,
    server: Callable[[str], subprocess.CompletedProcess[str]],
    browser: BrowserContext,
    ports: tuple[int, int],
    refused: list[str],
) -> None:
    up = server("up")
    assert up.returncode == 0, up.stdout + up.stderr
    assert f"reports      http://127.0.0.1:{ports[1]}\n" in up.stdout
    done = project.command([sys.executable, "-c", PUBLISH])
    assert done.returncode == 0, done.stdout + done.stderr

    for run, name, verdict, row in (
        ("sunday", "validation", "1 expectation failed, by 3 rows", "answer: 31,204 characters"),
        ("monday", "ingest", "Batch refused, nothing accepted", "line: not valid UTF-8"),
    ):
        page = browser.new_page()
        page.goto("/runs")
        page.get_by_role("link", name=run, exact=True).click()
        page.get_by_text("Artifacts", exact=True).click()
        page.get_by_role("link", name=re.compile(f"^markdown {name}-report Created")).click()
        with browser.expect_page() as opened:  # the link opens a tab of its own
            page.get_by_role("link", name=f"{name} report", exact=True).click()
        report = opened.value
        assert urlsplit(report.url).netloc == f"127.0.0.1:{ports[1]}"
        expect(report.locator("#verdict")).to_contain_text(verdict)
        expect(report.locator("#failing")).to_contain_text(row)
    assert refused == []

    assert server("down").returncode == 0
    assert processes_of(project) == []
    with socket.create_server(("127.0.0.1", ports[1])):
        pass  # nobody serves the reports any more
