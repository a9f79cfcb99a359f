"""What a person finds in the Prefect UI after the demo, seen with a real browser."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from abstain.evaluate.plots import PLOTS
from tests.browser import headless
from tests.conftest import Project
from tests.ports import free_port
from tests.tasks.test_server import processes_of

pytestmark = pytest.mark.slow

ARTIFACTS = {
    "leaderboard": "markdown",
    "thresholds": "table",
    "validation": "markdown",
    "validation-report": "markdown",
    **{f"plot-{name.replace('_', '-')}": "image" for name in PLOTS},
    "evaluation": "markdown",
    "evaluation-report": "markdown",
}
SECONDS = 1000
RUN_TAKES = 10 * 30 * SECONDS  # ten times the goal: a worker polls, then imports everything anew


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def server(trained: tuple[Project, str], port: int) -> Iterator[Callable[[str], subprocess.CompletedProcess[str]]]:
    """`python -m tasks.server up|down` in the project that the demo has run in; down at the end in any case."""

    def call(what: str) -> subprocess.CompletedProcess[str]:
        command = ["env", f"ABSTAIN_UI_PORT={port}", sys.executable, "-m", "tasks.server", what]
        return trained[0].command(command)

    yield call
    call("down")


@pytest.fixture
def refused() -> list[str]:
    """What the pages asked of anybody but the server."""
    return []


@pytest.fixture
def page(port: int, refused: list[str]) -> Iterator[Page]:
    """A page of headless Chromium that reaches the server and nothing else."""

    def is_elsewhere(url: str) -> bool:
        return urlsplit(url).netloc != f"127.0.0.1:{port}"

    def refuse(route: Route) -> None:
        refused.append(route.request.url)
        route.abort()

    with headless() as browser:
        # The UI draws no more of a list than the window shows.
        context = browser.new_context(base_url=f"http://127.0.0.1:{port}", viewport={"width": 1280, "height": 3000})
        context.route(is_elsewhere, refuse)
        # Routed and not connected: no websocket opens there.
        context.route_web_socket(is_elsewhere, lambda opened: refused.append(opened.url))
        context.set_default_timeout(30 * SECONDS)
        expect.set_options(timeout=30 * SECONDS)
        yield context.new_page()


def test_shows_what_the_demo_did_and_runs_a_deployment(
    page: Page,
    refused: list[str],
    server: Callable[[str], subprocess.CompletedProcess[str]],
    trained: tuple[Project, str],
    port: int,
) -> None:
    up = server("up")
    assert up.returncode == 0, up.stdout + up.stderr
    shows_the_retrain_and_its_artifacts(page)
    runs_the_hourly_ingest(page)
    assert refused == []  # no telemetry, no fonts
    down = server("down")
    assert down.returncode == 0 and down.stdout == "stopped: worker and server\n", down.stdout + down.stderr
    assert processes_of(trained[0]) == []
    with socket.create_server(("127.0.0.1", port)):
        pass  # the port is free


def shows_the_retrain_and_its_artifacts(page: Page) -> None:
    page.goto("/")
    expect(page).to_have_url("/dashboard")  # not /v2/dashboard, which asks amplitude.com
    page.get_by_role("button", name="Runs", exact=True).click()
    retrain = page.locator(".state-list-item").filter(has=page.get_by_role("link", name="retrain", exact=True))
    # The temporary server of `abstain demo` is gone, its history is not.
    completed = retrain.filter(has_text="Completed").last
    expect(completed).to_be_visible()
    completed.locator("a[href*='/runs/flow-run/']").click()
    page.get_by_text("Artifacts", exact=True).click()
    cards = {
        key: page.get_by_role("link", name=re.compile(f"^{kind} {key} Created")) for key, kind in ARTIFACTS.items()
    }
    for card in cards.values():
        expect(card).to_be_visible()
    cards["leaderboard"].click()
    expect(page.get_by_role("cell", name="length_only", exact=True).first).to_be_visible()
    page.go_back()
    page.get_by_text("Artifacts", exact=True).click()
    cards["evaluation"].click()
    expect(page.get_by_role("heading", name="Model card")).to_be_visible()  # its text, and no link to a file


def runs_the_hourly_ingest(page: Page) -> None:
    page.get_by_role("button", name="Deployments", exact=True).click()
    for deployment, flow in (("nightly", "retrain"), ("hourly", "ingest"), ("gpu", "extract")):
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=deployment, exact=True))
        expect(row.get_by_role("link", name=flow, exact=True)).to_be_visible()
    page.get_by_role("link", name="hourly", exact=True).click()
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="Quick run").click()
    page.get_by_role("button", name="View run").last.click()  # the message comes twice, one on the other
    # Its own page: the one before lists all runs. The drop folder is empty, which is no failure.
    state = page.locator(".page-heading-flow-run").get_by_text("Completed", exact=True)
    expect(state).to_be_visible(timeout=RUN_TAKES)
