"""The pages in a real browser: whole without a network, readable on a phone and in the dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from abstain.data.validation.results import ValidationResult
from abstain.reports.data_reports.ingest import ingest_report
from abstain.reports.data_reports.validation import validation_report
from tests.browser import headless
from tests.reports.data_reports.test_pages import DRIFT, REFUSED, SPLITS, check, report, rows_result

pytestmark = pytest.mark.slow

HOSTILE = (
    '<img src="http://elsewhere.invalid/x.png" onerror="document.title=1"><script src="http://elsewhere.invalid/x.js">'
)
FAILED = ValidationResult.merge(
    [
        rows_result(
            checks=(check("interactions", "question_chars"), check("interactions", "answer_chars", 3)),
            reasons={
                "interactions/q-17": ("answer: 31,204 characters, 20,000 allowed (validation.max_text_chars)",),
                f"interactions/{HOSTILE}": ("asked_at: 86,400 s in the future",),
                f"interactions/{'long' * 60}": ("contexts: no ingested document holds 'fees#1'",),
            },
        ),
        ValidationResult(
            {"drift": 5}, (check("drift", "shift", 1, "warning", "question language: 3.73"),), figures={"drift": DRIFT}
        ),
        ValidationResult({"labels": 40}, (check("labels", "straddles"),), figures={"splits": SPLITS}),
    ]
)
PAGES = {
    "validation": validation_report([FAILED.to_dict()], "retrain shiny-fox, data as of 2026-11-02")[1],
    "ingest": ingest_report(
        report(reasons={"answer: missing": 5}, validation=FAILED),
        "ingest calm-owl",
        REFUSED,
        "batch of a.jsonl refused",
    )[1],
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with headless() as opened:
        yield opened


def opened(browser: Browser, folder: Path, name: str, **options: object) -> tuple[Page, list[str], list[str]]:
    """The page, what it asked for, and what the browser had to complain about."""
    file = folder / f"{name}.html"
    file.write_text(PAGES[name], encoding="utf-8")
    page = browser.new_context(**options).new_page()
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(file.as_uri())
    return page, asked, complaints


@pytest.mark.parametrize("name", PAGES)
def test_asks_for_nothing_but_itself_and_runs_nothing(browser: Browser, tmp_path: Path, name: str) -> None:
    page, asked, complaints = opened(browser, tmp_path, name)
    page.wait_for_load_state("networkidle")
    assert [url for url in asked if not url.startswith("data:")] == [(tmp_path / f"{name}.html").as_uri()]
    assert complaints == []
    assert page.title() != "1"


def test_the_verdict_and_the_rows_that_fail_are_seen(browser: Browser, tmp_path: Path) -> None:
    page, _, _ = opened(browser, tmp_path, "validation", viewport={"width": 1100, "height": 700})
    verdict = page.locator("#verdict")
    expect(verdict).to_contain_text("1 expectation failed")
    expect(verdict).to_be_in_viewport(ratio=1)
    expect(page.locator("#rows-that-fail").get_by_text("31,204 characters")).to_be_in_viewport()
    expect(page.locator("#rows-that-fail").get_by_text(HOSTILE)).to_be_visible()
    drawing = page.locator("#drift-of-the-newest-batch img").first
    assert drawing.bounding_box()["height"] > 50
    assert drawing.evaluate("one => one.complete && one.naturalWidth > 100")
    suite = page.locator("#what-was-checked details").filter(has_text="labels")
    expect(suite.get_by_text("straddles")).not_to_be_visible()  # what holds is folded
    suite.locator("summary").click()
    expect(suite.get_by_text("straddles")).to_be_visible()
    refused, _, _ = opened(browser, tmp_path, "ingest")
    expect(refused.locator("#verdict")).to_contain_text("Batch refused, nothing accepted")
    expect(refused.get_by_text("line: not valid UTF-8")).to_be_visible()


@pytest.mark.parametrize("name", PAGES)
def test_fits_a_phone_and_turns_dark(browser: Browser, tmp_path: Path, name: str) -> None:
    page, _, _ = opened(browser, tmp_path, name, viewport={"width": 390, "height": 800}, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
