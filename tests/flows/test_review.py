"""The review queue from end to end: a file drawn, judged in a real browser with the keyboard alone, and taken in."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from abstain.core.contracts import Review
from abstain.data.store.dataset import DataStore
from abstain.review.export import export_sample
from abstain.review.sampling import draw
from abstain.review.time_window import read_time_window
from abstain.review.workbook import read_rows
from tasks.review import prioritise
from tasks.workspace import Workspace
from tests.browser import headless
from tests.conftest import Project
from tests.ports import free_port
from tests.review.builders import SEAL_KEY, Cells, cells_of, rows_of

pytestmark = pytest.mark.slow

SECONDS = 1000


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def asked() -> list[str]:
    """Every address that a page asked for anything."""
    return []


@pytest.fixture
def browser(port: int, asked: list[str]) -> Iterator[BrowserContext]:
    """Headless Chromium that reaches the served page and nothing else; its tabs share what the browser remembers."""

    def only_here(route: Route) -> None:
        asked.append(route.request.url)
        if urlsplit(route.request.url).netloc == f"127.0.0.1:{port}":
            route.continue_()
        else:
            route.abort()

    with headless() as opened:
        context = opened.new_context(base_url=f"http://127.0.0.1:{port}", viewport={"width": 1280, "height": 800})
        context.route("**/*", only_here)
        context.route_web_socket("**/*", lambda one: asked.append(one.url))
        context.set_default_timeout(20 * SECONDS)
        expect.set_options(timeout=20 * SECONDS)
        yield context


@contextmanager
def served(project: Project, file: Path, port: int, python: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`abstain review serve`, answering, and the address that it prints; ended with Ctrl-C if it is still there."""
    command = [
        python,
        "-m",
        "abstain_cli.app",
        "review",
        "serve",
        str(file),
        "--port",
        str(port),
        "--no-browser",
    ]
    running = project.start(command, stderr=subprocess.STDOUT)
    assert running.stdout is not None
    try:
        address = re.search(rf"http://127.0.0.1:{port}/#\S+", running.stdout.readline())
        assert address is not None
        yield running, address[0]
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGINT)
        running.wait(timeout=30)


def abstain(project: Project, *arguments: str) -> str:
    done = project.abstain("review", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def saved(page: Page) -> None:
    expect(page.get_by_role("status")).to_have_text("Saved. Enter shows the next one that is open.")


def test_file_judged_by_keyboard_is_taken_in_once(
    small_project: Project, browser: BrowserContext, port: int, asked: list[str], tmp_path: Path
) -> None:
    small_project.edit_params("max_feedback_delay_days: 90", "max_feedback_delay_days: 36500")  # the sample has a date
    file = tmp_path / "week 1.xlsx"
    said = abstain(small_project, "export", "-n", "8", "-o", str(file))
    assert "nothing is in production" in said and "8 at random" in said
    drawn = cells_of(file)
    page = browser.new_page()
    with served(small_project, file, port, "python") as (running, address):
        page.goto("/")  # as another user of the machine does, or who has typed the address
        expect(page.get_by_role("status")).to_contain_text("open the address that `abstain review serve` has printed")
        judges_two_rows(page, address, file)
        running.kill()  # what was said to be saved is
        running.wait()
        press(page, "y")
        expect(page.get_by_role("status")).to_contain_text("Not saved: the program that serves this page has ended")
    assert [cells["complete"] for cells in cells_of(file)] == ["yes", "no", *[""] * 6]
    with served(small_project, file, port, sys.executable) as (running, again):
        assert again != address
        goes_on_at_the_new_address(page, again)
        a_second_tab_overwrites_nothing(page, browser.new_page(), again, file)
        running.send_signal(signal.SIGINT)
        assert running.stdout is not None
        assert "3 of 8 reviewed; take them in with `abstain review import" in running.stdout.read()
        assert running.wait() == 0
    assert asked and {urlsplit(url).netloc for url in asked} == {f"127.0.0.1:{port}"}
    is_taken_in_once(small_project, file, drawn)


def judges_two_rows(page: Page, address: str, file: Path) -> None:
    page.goto(address)
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.get_by_label("Name or id")).to_be_focused()
    page.keyboard.type("Ann")
    press(page, "Enter")
    expect(page.get_by_role("dialog")).to_be_hidden()
    first = rows_of(file)[2].cells
    expect(page.locator("#answer")).to_have_text(first["answer"])
    expect(page.get_by_role("listitem").first).to_contain_text(first["contexts"].split("\n")[0].removeprefix("[1] "))
    press(page, "y", "n", "y")
    saved(page)
    expect(page.get_by_role("group", name="Correct").get_by_role("button", name="no")).to_have_attribute(
        "aria-pressed", "true"
    )
    press(page, "i")
    expect(page.get_by_label("Ideal answer")).to_be_focused()
    page.keyboard.type("=It is 90 euros, y 1 n.")  # no key of the page's inside the field
    press(page, "Escape")
    saved(page)
    expect(page.get_by_text("1 of 8 reviewed")).to_be_visible()
    press(page, "Enter")
    expect(page.get_by_text("Answer 2 of 8")).to_be_visible()
    press(page, "1", "1", "2", "3", "3", "3", "3")  # no; yes; once around, to yes
    saved(page)
    press(page, "ArrowRight", "ArrowLeft", "ArrowLeft")
    expect(page.get_by_text("Answer 1 of 8, reviewed")).to_be_visible()
    expect(page.get_by_label("Ideal answer")).to_have_value("=It is 90 euros, y 1 n.")
    press(page, "Enter")
    expect(page.get_by_text("Answer 3 of 8")).to_be_visible()


def goes_on_at_the_new_address(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.get_by_text("2 of 8 reviewed")).to_be_visible()
    expect(page.get_by_text("Answer 3 of 8")).to_be_visible()
    expect(page.get_by_role("dialog")).to_be_hidden()  # the name was asked for once
    expect(page.locator("#who")).to_have_text("Ann")


def a_second_tab_overwrites_nothing(page: Page, other: Page, address: str, file: Path) -> None:
    other.goto(address)
    expect(other.get_by_text("Answer 3 of 8")).to_be_visible()
    press(page, "y", "y", "y")
    saved(page)
    before = file.read_bytes()
    press(other, "n", "n", "n")
    expect(other.get_by_role("status")).to_contain_text("Not saved: this row was changed elsewhere")
    expect(other.get_by_text("3 of 8 reviewed")).to_be_visible()
    assert file.read_bytes() == before
    tabs_to_a_button(other)


def tabs_to_a_button(page: Page) -> None:
    press(page, "Tab")
    button = page.get_by_role("button", name="Complete: yes")
    expect(button).to_be_focused()
    assert button.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
    press(page, "Space")  # withdrawn, and given again
    expect(page.get_by_text("2 of 8 reviewed")).to_be_visible()
    press(page, "Space")
    saved(page)


def is_taken_in_once(project: Project, file: Path, drawn: list[Cells]) -> None:
    assert "3 reviewed, 5 not yet, 0 to fix" in abstain(project, "import", str(file))
    store = DataStore(project.workspace / "data")
    found = [row for row in store.rows(Review) if row.reviewer == "Ann"]
    verdicts = {row.interaction_id: (row.complete, row.correct, row.truthful, row.ideal_answer) for row in found}
    keys = [row["interaction_id"] for row in drawn]
    assert verdicts == {
        keys[0]: (True, False, True, "=It is 90 euros, y 1 n."),
        keys[1]: (False, True, True, None),
        keys[2]: (True, True, True, None),
    }
    probabilities = {row.interaction_id: row.inclusion_probability for row in found}
    for key, row in list(zip(keys, drawn, strict=True))[:3]:
        numbers = row["inclusion_probability"].split(" of ")
        assert probabilities[key] == int(numbers[0]) / int(numbers[1])
    before = project.git("rev-parse", "main", cwd=project.home / "origin.git")
    copy = file.with_name("copy.xlsx")
    copy.write_bytes(file.read_bytes())
    abstain(project, "import", str(copy))
    assert len([row for row in store.rows(Review) if row.reviewer == "Ann"]) == 3
    assert project.git("rev-parse", "main", cwd=project.home / "origin.git") == before


def test_promoted_probe_decides_which_rows_are_uncertain(
    trained: tuple[Project, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `export` does between reading the window and drawing; without the clock, for the sample has a date."""
    for name, value in trained[0].environment.items():
        monkeypatch.setenv(name, value)
    workspace = Workspace(trained[0].workspace, lock=-1)
    window = read_time_window(DataStore(workspace.path / "data"))
    threshold, messages = prioritise(workspace, window, seed=0, max_inference=0, progress=lambda done, total: None)
    frame = window.frame
    assert threshold is not None and 0 < threshold < 1
    scored = r"probe v1\.0\.0: \d+ answers scored from the cache, 0 read by the base model, [1-9]\d* not scored .*"
    assert re.fullmatch(scored, messages[0])
    known = frame["confidence"].notna()
    assert known.sum() > 40 and not known.all() and frame["confidence"][known].between(0, 1).all()
    assert frame["drift"].between(-1e-6, 2).sum() == frame["drift"].notna().sum() > 40
    frame["reviewed"] = False  # of the sample nearly all are
    design = draw(frame, 12, 0.5, 0, threshold)
    assert design.rows["why"].value_counts().to_dict() == {"random": 6, "uncertain": 3, "drift": 3}
    doubt = (frame.loc[~frame["reviewed"], "confidence"] - threshold).abs()
    assert set(doubt.nsmallest(3).index) == set(design.rows.index[design.rows["why"] == "uncertain"])
    rows = read_rows(export_sample(design, window, DataStore(workspace.path / "data"), SEAL_KEY))
    assert Counter(row.cells["why"] for row in rows) == {"random": 6, "uncertain": 3, "drift": 3}
