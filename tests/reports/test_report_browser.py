"""The reports in a real browser: whole without a network, readable on a phone, in the dark, and without a mouse."""

from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb
from playwright.sync_api import Browser, Page, expect

from abstain.data.store.profile import MEASURES
from abstain.reports.data_reports.ingest import ingest_report
from abstain.reports.data_reports.validation import validation_report
from abstain.reports.evaluation import render_evaluation
from abstain.reports.page import render_html
from abstain.reports.plots import PLOTS, render_plot
from abstain.reports.theme import DARK, LIGHT
from tests.reports.builders import evaluated
from tests.reports.data_reports.test_pages import FAILED, HOSTILE, REFUSED, make_report

pytestmark = pytest.mark.slow

HEADLINES = {
    "evaluation": "Guarantee holds on the hold-out",
    "validation": "1 expectation failed",
    "ingest": "Batch rejected, nothing accepted",
}
BACKGROUNDS = {"light": "rgb(246, 247, 249)", "dark": "rgb(20, 23, 27)"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page for each of `HEADLINES`, and the plots of the first one."""
    folder = tmp_path_factory.mktemp("reports")
    given = evaluated()
    images = {plot: render_plot(plot, given.tables[plot]) for plot in PLOTS}
    pages = {"evaluation": render_html(render_evaluation(*given), images)}
    _, pages["validation"] = validation_report(FAILED, "retrain shiny-fox, data as of 2026-11-02")
    refused = make_report(reasons={"answer: missing": 5}, validation=FAILED)
    _, pages["ingest"] = ingest_report(refused, "ingest calm-owl", REFUSED, "batch of a.jsonl refused")
    for name, page in pages.items():
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    for plot, svg in images.items():
        (folder / f"{plot}.svg").write_bytes(svg)
    return folder


def open_page(browser: Browser, file: Path, width: int = 1280) -> tuple[Page, list[str]]:
    """Open `file` without a network; returns the page, and what it asks for and complains of from now on."""
    page, heard = browser.new_context(viewport={"width": width, "height": 800}, offline=True).new_page(), list[str]()
    page.on("request", lambda request: heard.append(request.url))
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.goto(file.as_uri())
    return page, heard


@pytest.mark.parametrize(("name", "headline"), HEADLINES.items())
def test_page_is_whole_and_fits_in_both_schemes(browser: Browser, folder: Path, name: str, headline: str) -> None:
    page, heard = open_page(browser, folder / f"{name}.html")
    page.wait_for_load_state("networkidle")
    assert [url for url in heard if not url.startswith("data:")] == [(folder / f"{name}.html").as_uri()]
    assert headline in page.title()  # no text that people wrote has run and changed it
    sizes = page.evaluate("[...document.images].map(one => [one.complete, one.naturalWidth, one.naturalHeight])")
    assert len(sizes) == len(PLOTS if name == "evaluation" else MEASURES)
    assert all(complete and width > 100 and height > 50 for complete, width, height in sizes)
    expect(page.get_by_role("heading", level=2, name=headline)).to_be_in_viewport(ratio=1)
    if name == "evaluation":
        expect(page.get_by_label("Key figures").get_by_text("AUROC of the served scorer")).to_be_in_viewport(ratio=1)
    # Wide tables scroll inside their own box; no text is cut off and none is wider than the page.
    outside = """width => [...document.querySelectorAll("main *")].filter(one =>
        !one.closest(".scroll") && one.getBoundingClientRect().right > width + 1).map(one => one.outerHTML.slice(0, 99))"""
    scrolling = "[...document.querySelectorAll('.scroll')].filter(o => o.scrollWidth > o.clientWidth).length"
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        for scheme, colour in BACKGROUNDS.items():
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate("document.body.scrollWidth") <= width
            assert page.evaluate(outside, width) == []
            assert (page.evaluate(scrolling) > 0) == (width == 390)
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == colour


def test_page_shows_failing_rows_folds_passed_suites(browser: Browser, folder: Path) -> None:
    page, _ = open_page(browser, folder / "validation.html")
    expect(page.locator("#rows-that-fail").get_by_text("31,204 characters")).to_be_in_viewport()
    expect(page.locator("#rows-that-fail").get_by_text(HOSTILE)).to_be_visible()
    suite = page.locator("#what-was-checked details").filter(has_text="labels")
    expect(suite.get_by_text("straddles")).not_to_be_visible()
    suite.locator("summary").click()
    expect(suite.get_by_text("straddles")).to_be_visible()


def test_page_keyboard_reaches_tables(browser: Browser, folder: Path) -> None:
    page, _ = open_page(browser, folder / "evaluation.html", 390)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#evidence"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=2, name="Evidence")).to_be_in_viewport()
    board = page.get_by_role("region", name="All scorers on the hold-out")
    board.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("box => box.scrollLeft > 0", arg=board.element_handle())
    name = board.get_by_role("rowheader", name="min_log_prob")
    assert name.bounding_box()["x"] >= board.bounding_box()["x"], "the names stay where they are"


@pytest.mark.parametrize("name", PLOTS)
def test_plot_follows_colour_scheme(browser: Browser, folder: Path, name: str) -> None:
    page, heard = open_page(browser, folder / f"{name}.svg")
    assert heard == [(folder / f"{name}.svg").as_uri()]
    for scheme, theme, other in (("light", LIGHT, DARK), ("dark", DARK, LIGHT)):
        page.emulate_media(color_scheme=scheme)
        used = page.evaluate(
            """[...document.querySelectorAll("svg *")].filter(one => !one.closest("defs, style")).flatMap(one => {
                const {fill, stroke} = getComputedStyle(one); return [fill, stroke]})"""
        )
        # A text without a colour of its own would be black in the dark.
        texts = page.evaluate("[...document.querySelectorAll('text')].map(one => getComputedStyle(one).fill)")
        assert set(texts) <= {format_rgb(theme["text"]), format_rgb(theme["soft"])}
        assert format_rgb(theme["paper"]) in used
        assert not {format_rgb(colour) for colour in other.values()} & set(used)


def format_rgb(colour: str) -> str:
    return f"rgb({', '.join(f'{255 * part:.0f}' for part in to_rgb(colour))})"


def test_plot_labels_do_not_overlap(browser: Browser, folder: Path) -> None:
    """In the fonts of the reader, which are not those of the layout."""
    page, _ = open_page(browser, folder / "leaderboard.svg")
    sides = "const box = one.getBoundingClientRect(); return [box.left, box.top, box.right, box.bottom]"
    boxes = page.evaluate(f"[...document.querySelectorAll('text')].map(one => {{{sides}}})")
    frame = page.evaluate(f"(one => {{{sides}}})(document.rootElement)")
    for left, top, right, bottom in boxes:
        assert left >= frame[0] - 1 and top >= frame[1] - 1 and right <= frame[2] + 1 and bottom <= frame[3] + 1
    for (left, top, right, bottom), other in combinations(boxes, 2):
        overlap = min(right, other[2]) - max(left, other[0]), min(bottom, other[3]) - max(top, other[1])
        assert min(overlap) <= 3, (left, top, other)
