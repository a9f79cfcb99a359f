import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys, create_key
from tests.data.decision_log.builders import decision, read_reviews
from tests.factories import cited
from tests.serving.status_page.builders import listening, make_server, queue_answers, withheld

pytestmark = pytest.mark.slow

BACKGROUNDS = {"light": "rgb(246, 247, 249)", "dark": "rgb(20, 23, 27)"}
LONG = "x" * 5000
HEBREW = "\u05e9\u05dc\u05d5\u05dd \u202e\u05e2\u05d5\u05dc\u05dd"
EXPECTED = ("[DOM] Password forms", "Failed to load resource: the server responded with a status of 403")
"""What Chromium says of a form for a key without a user's name, and of a page that asks for a key."""
NEWEST = "w/%2F <b>"
"""The id of the newest withheld answer."""


@pytest.fixture
def service(service: GateService) -> GateService:
    """A service with two weeks of decisions, and withheld answers with texts that are hard to show."""
    log = service.log
    now = datetime.now(UTC)
    for number in range(40):
        kind = ("show", "show", "abstain", "unavailable")[number % 4]
        changes = {"decided_at": now - timedelta(hours=8 * number), "duration_ms": 900.0 + 40_000 * (number % 7)}
        log.record_decision(decision(f"i-{number}", shown=kind == "show", decision=kind, **changes))
    log.record_decision(withheld("long", question=LONG, answer=LONG, contexts=cited(LONG)))
    log.record_decision(withheld("rtl", question=HEBREW, answer="<script>document.title = 1</script>"))
    log.record_decision(withheld(NEWEST, question="May I pay late?", answer="None.", contexts=cited("fees#0"))).result()
    return service


@contextmanager
def open_page(browser: Browser, address: str, **options: Any) -> Iterator[Page]:
    """A page without JavaScript that reaches `address` alone; nothing else is asked for, and nothing complained of."""
    requests: list[str] = []
    complaints: list[str] = []

    def allow_own(route: Route) -> None:
        route.continue_() if route.request.url.startswith(f"{address}/") else route.abort()

    context = browser.new_context(**{"java_script_enabled": False, **options})
    context.route("**/*", allow_own)
    page = context.new_page()
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{address}/")
    yield page
    assert [text for text in complaints if not text.startswith(EXPECTED)] == []
    assert [url for url in requests if not url.startswith((f"{address}/", "data:"))] == []
    context.close()


def tab_to(page: Page, wanted: Any, press: str | None = None) -> None:
    """Go on with Tab to `wanted`, as often as it takes, and press a key there; what has the focus is always in sight."""
    for _ in range(80):
        page.keyboard.press("Tab")
        focused = page.locator(":focus-visible")
        if focused.count():
            expect(focused).to_be_in_viewport()
        if wanted.and_(page.locator(":focus")).count():
            if press:
                page.keyboard.press(press)
            return
    raise AssertionError(f"Tab does not reach {wanted}")


def press_access_key(page: Page, key: str) -> None:
    """Alt and this key, as a keyboard sends it: Playwright's own presses with Alt have no text, and reach no form."""
    session = page.context.new_cdp_session(page)
    pressed = {"type": "keyDown", "modifiers": 1, "key": key, "text": key, "unmodifiedText": key}
    session.send("Input.dispatchKeyEvent", pressed)
    session.send("Input.dispatchKeyEvent", {"type": "keyUp", "modifiers": 1, "key": key})


def test_pages_are_used_by_keyboard(browser: Browser, service: GateService, tmp_path: Path) -> None:
    queue_answers(service, "a", "b", "c")
    key, line = create_key("ann", ["ask", "read_withheld", "review"])
    with listening(make_server(service, ApiKeys(text=line))) as address, open_page(browser, address) as page:
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="To the content")).to_be_focused()
        for text in ("wrong", key):
            expect(page.get_by_text("v1.2.0")).to_have_count(0)
            tab_to(page, page.get_by_label("Key"))
            page.keyboard.type(text)
            page.keyboard.press("Enter")
            if text == "wrong":
                expect(page.get_by_role("alert")).to_be_visible()
        expect(page.get_by_role("heading", name="v1.2.0 is live")).to_be_visible()
        assert [cookie["httpOnly"] for cookie in page.context.cookies()] == [True, True]

        for label, text in (("Question", "What is the fee?"), ("Contexts", "There is none."), ("Answer", "None, é.")):
            tab_to(page, page.get_by_role("textbox", name=label))
            page.keyboard.type(text)
        tab_to(page, page.get_by_role("button", name="Try it"), "Enter")
        expect(page.get_by_role("heading", level=2, name=re.compile("^It would be "))).to_be_in_viewport()
        expect(page.locator("#pieces")).to_have_text("None, é.")

        page.goto(f"{address}/")
        tab_to(page, page.get_by_role("link", name="Review the next answer"), "Enter")
        expect(page.get_by_text("Is it a?")).to_be_in_viewport()
        expect(page.get_by_role("heading", name="Your review")).to_be_in_viewport()
        press_access_key(page, "1")
        expect(page.get_by_role("group", name="Complete").get_by_role("radio", name="yes")).to_be_checked()
        page.keyboard.press("ArrowDown")
        expect(page.get_by_role("group", name="Complete").get_by_role("radio", name="no")).to_be_checked()
        for access_key in ("3", "6", "i"):
            press_access_key(page, access_key)
        page.keyboard.type("It is 5 euros.")
        press_access_key(page, "s")
        expect(page.get_by_text("Saved.")).to_be_visible()
        expect(page.get_by_text("Is it b?")).to_be_visible()
        press_access_key(page, "k")
        expect(page.get_by_text("Is it c?")).to_be_visible()
        for access_key in ("1", "4", "5", "s"):
            press_access_key(page, access_key)
        expect(page.get_by_text("2 of the 3 answers of this sample are reviewed.")).to_be_visible()
        expect(page.get_by_text("Is it b?")).to_be_visible()

        page.goto(f"{address}/")
        tab_to(page, page.get_by_role("link", name="May I pay late?"), "Enter")
        expect(page.get_by_role("heading", name="A withheld answer")).to_be_visible()
        for name, pressed in (("Complete", "Space"), ("Correct", "ArrowRight"), ("Truthful", "Space")):
            tab_to(page, page.get_by_role("group", name=name).get_by_role("radio", name="yes"), pressed)
        tab_to(page, page.get_by_role("button", name="Save the review"), "Enter")
        expect(page.get_by_text("ann: complete yes, correct no, truthful yes")).to_be_visible()
        tab_to(page, page.get_by_role("link", name="Back to the newest withheld answers"), "Enter")
        expect(page.get_by_role("listitem").filter(has_text="May I pay late?")).to_contain_text("reviewed")

        tab_to(page, page.get_by_role("button", name="Log out"), "Enter")
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        page.go_back()
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    rows = read_reviews(tmp_path)
    assert [(row.interaction_id, row.complete, row.correct, row.truthful, row.ideal_answer) for row in rows] == [
        ("a", False, True, False, "It is 5 euros."),
        ("c", True, False, True, None),
        (NEWEST, True, False, True, None),
    ]


def test_pages_fit_a_phone_and_have_contrast_in_both_schemes(browser: Browser, service: GateService) -> None:
    """Scripts are on here for the test's own questions; the pages have none, and their policy would run none."""
    outside = """width => [...document.querySelectorAll("body *")].filter(one => !one.closest(".scroll, svg, .skip")
        && one.getBoundingClientRect().right > width + 1).map(one => one.outerHTML.slice(0, 99))"""
    with (
        listening(make_server(service, ApiKeys())) as address,
        open_page(browser, address, java_script_enabled=True) as page,
    ):

        def check() -> None:
            for scheme, colour in BACKGROUNDS.items():
                page.emulate_media(color_scheme=scheme)
                assert page.evaluate(CONTRAST) == []
                for width in (360, 1280):
                    page.set_viewport_size({"width": width, "height": 740})
                    assert page.evaluate("document.documentElement.scrollWidth") <= width
                    assert page.evaluate(outside, width) == []
                    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == colour

        page.locator("summary").click()
        check()
        chart_widths = page.evaluate("[...document.querySelectorAll('figure > svg')].map(one => one.clientWidth)")
        assert len(chart_widths) == 3 and min(chart_widths) > 200
        assert page.title() == "Abstain gate: v1.2.0 is live", "no text that people wrote has run"
        queue_answers(service, "a", "b", "c", probability=1.0)
        for path in ("review?id=long", "review?previous=a"):
            page.goto(f"{address}/{path}")
            check()
        page.goto(f"{address}/")
        for name, text in (("Question", HEBREW), ("Contexts", "c" * 200), ("Answer", "a" * 150)):
            page.get_by_role("textbox", name=name).fill(text)
        page.get_by_role("button", name="Try it").click()
        expect(page.locator("#pieces")).to_be_visible()
        check()


CONTRAST = """() => {  // texts with less than 4.5 : 1 to what is behind them (WCAG 2.2 AA)
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (colour) => numbers(colour).slice(0, 3).map((one) => one / 255)
    .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (one) => {
    for (; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (numbers(colour)[3] !== 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const written = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  return [...document.querySelectorAll("body *")].filter((one) => written(one) && !one.closest("title, desc, .skip"))
    .map((one) => {
      const style = getComputedStyle(one);
      const [a, b] = [luminance(one.closest("svg") ? style.fill : style.color), luminance(ground(one))].sort((x, y) => y - x);
      return [(a + 0.05) / (b + 0.05), one.outerHTML.slice(0, 99)];
    }).filter(([ratio]) => ratio < 4.5);
}"""
