import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from abstain.reports.plots import PLOTS
from abstain_tasks.monitoring.publish import publish_validation
from abstain_tasks.runs.workspace import Workspace
from tests.browser import headless
from tests.conftest import SERVER_KEY, Up
from tests.reports.data_reports.test_pages import FAILED

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
RUN_LIMIT = 10 * 30 * SECONDS
"""Ten times the goal: a worker polls, then imports everything anew."""


@pytest.fixture
def browser(up: Up) -> Iterator[BrowserContext]:
    """Headless Chromium that asks nothing of other addresses than those of the two servers."""
    blocked: list[str] = []

    def is_elsewhere(url: str) -> bool:
        return urlsplit(url).netloc not in {f"127.0.0.1:{port}" for port in (up.ui, up.reports)}

    def block(route: Route) -> None:
        blocked.append(route.request.url)
        route.abort()

    with headless() as opened:
        # The UI draws no more of a list than the window shows.
        context = opened.new_context(base_url=f"http://127.0.0.1:{up.ui}", viewport={"width": 1280, "height": 3000})
        context.route(is_elsewhere, block)
        # Routed and not connected: no websocket opens there.
        context.route_web_socket(is_elsewhere, lambda opened: blocked.append(opened.url))
        context.set_default_timeout(30 * SECONDS)
        expect.set_options(timeout=30 * SECONDS)
        yield context
    assert blocked == []  # no telemetry, no fonts


def log_in(page: Page) -> None:
    page.goto("/")
    page.get_by_placeholder("admin:pass").fill(SERVER_KEY)
    page.get_by_role("button", name="Login").click()
    expect(page).to_have_url("/dashboard")  # not /v2/dashboard, which asks amplitude.com


def test_ui_shows_artifacts_to_holders_of_key(browser: BrowserContext) -> None:
    page = browser.new_page()
    page.goto("/runs")
    expect(page).to_have_url(re.compile("/login"))
    page.get_by_placeholder("admin:pass").fill("admin:pass")
    page.get_by_role("button", name="Login").click()
    expect(page.get_by_text("Authentication failed.").first).to_be_visible()
    log_in(page)
    page.get_by_role("button", name="Runs", exact=True).click()
    retrain = page.locator(".state-list-item").filter(has=page.get_by_role("link", name="retrain", exact=True))
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


@pytest.mark.soak(twin="test_up_printed_command_runs_deployment_and_cancels")
def test_ui_runs_deployment(browser: BrowserContext) -> None:
    page = browser.new_page()
    log_in(page)
    page.get_by_role("button", name="Deployments", exact=True).click()
    deployments = {"nightly": "retrain", "hourly": "ingest", "daily": "monitor", "weekly": "retention"}
    for deployment, name in deployments.items():
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=deployment, exact=True))
        expect(row.get_by_role("link", name=name, exact=True)).to_be_visible()
    page.get_by_role("link", name="hourly", exact=True).click()
    message = page.get_by_role("button", name="View run").last  # it comes twice, one on the other
    for is_last in (False, False, True):  # the page is drawn anew every few seconds: a click in a replaced menu is lost
        page.get_by_role("button", name="Run", exact=True).click()
        page.get_by_role("button", name="Quick run").click()
        try:
            message.click()
            break
        except PlaywrightTimeout:
            if is_last:
                raise
    # Its own page: the one before lists all runs. The drop folder is empty, which is no failure.
    state = page.locator(".page-heading-flow-run").get_by_text("Completed", exact=True)
    expect(state).to_be_visible(timeout=RUN_LIMIT)


def test_ui_links_report_page(up: Up, browser: BrowserContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "artifacts").mkdir()
    validation = {**FAILED.to_dict(), "as_of": "2026-11-02T00:00:00+00:00"}
    (tmp_path / "artifacts" / "validation.json").write_text(json.dumps(validation))
    (tmp_path / "artifacts" / "quality.json").write_text("of an earlier run, not to be read after a failure")
    monkeypatch.setenv("ABSTAIN_HOME", str(up.project.home))

    @flow(name="retrain", flow_run_name="sunday")
    def publish() -> None:
        publish_validation(Workspace(tmp_path, 0))

    with temporary_settings({PREFECT_API_URL: up.api}):
        publish()
    page = browser.new_page()
    log_in(page)
    page.goto("/runs")
    page.get_by_role("link", name="sunday", exact=True).click()
    page.get_by_text("Artifacts", exact=True).click()
    page.get_by_role("link", name=re.compile("^markdown validation-report Created")).click()
    with browser.expect_page() as opened:  # the link opens a tab of its own
        page.get_by_role("link", name="validation report", exact=True).click()
    report = opened.value
    assert urlsplit(report.url).netloc == f"127.0.0.1:{up.reports}"
    expect(report.locator("#verdict")).to_contain_text("1 expectation failed, by 3 rows")
    expect(report.locator("#rows-that-fail")).to_contain_text("answer: 31,204 characters")
