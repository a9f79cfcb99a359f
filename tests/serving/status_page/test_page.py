import base64
import hashlib
import html
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import quote

import pytest
from bs4 import BeautifulSoup
from httpx import Response
from starlette.testclient import TestClient

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.decision_log import queries
from abstain.data.decision_log.monitoring_windows import Alarm, MonitoringWindow, write_windows
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys, create_key
from abstain.serving.status_page.status_data import ReviewStatistics
from tests.data.decision_log.builders import decision, make_window_statistics, read_reviews
from tests.factories import cited, interaction, review
from tests.learning.thresholds.builders import make_guarantee
from tests.serving.builders import MISSING_GUARANTEE
from tests.serving.conftest import MadeUpReleases, MakeService, Promote
from tests.serving.status_page.builders import SINCE, make_server, queue_answers, withheld

pytestmark = pytest.mark.heavy

SCRIPT, IMAGE = "<script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>"
TRIED = {"question": "What is the fee?", "contexts": "There is no fee.\n\nAsk.", "answer": "None, é 😀."}
CRITERIA = {"complete": "yes", "correct": "no", "truthful": "yes"}
GUARANTEE = make_guarantee().message
CHINESE = "年费是多少" * 4000
OpenBrowser = Callable[..., TestClient]


@pytest.fixture
def page(service: GateService) -> Iterator[TestClient]:
    """The page of a server without keys."""
    with TestClient(make_server(service, ApiKeys())) as client:
        yield client


@pytest.fixture
def open_browser(service: GateService, tmp_path: Path) -> Iterator[OpenBrowser]:
    """A server with keys: makes a browser and its `key` with these roles, and logs it in unless it is a stranger."""
    file = tmp_path / "keys"
    file.write_text("")
    app = make_server(service, ApiKeys(file=file))

    def open_browser(*roles: str, name: str = "ann", stranger: bool = False) -> TestClient:
        key, line = create_key(name, roles)
        file.write_text(f"{file.read_text()}{line}\n")
        browser = TestClient(app)
        browser.portal = server.portal  # one event loop: a loop of each request's own ends before its tasks do
        browser.key = key
        assert stranger or log_in(browser, key).status_code == 200
        return browser

    with TestClient(app) as server:
        yield open_browser


def parse(reply: Response) -> BeautifulSoup:
    return BeautifulSoup(reply.text, "html.parser")


def token_of(reply: Response) -> str:
    return parse(reply).find("input", {"name": "token"})["value"]


def get_text(reply: Response) -> str:
    return " ".join(parse(reply).get_text(" ").split())


def log_in(browser: TestClient, key: str) -> Response:
    return send(browser, "/login", key=key)


def send(browser: TestClient, path: str, **fields: str) -> Response:
    return browser.post(path, data={"token": token_of(browser.get("/")), **fields})


def send_review(browser: TestClient, address: str = "/review?id=w-1", **changes: str) -> Response:
    """Fill in the form at `address`, with `changes` of its fields, those among them that it does not have."""
    form = parse(browser.get(address)).select_one("form[action='/review']")
    hidden = {field["name"]: field["value"] for field in form.select("input[type=hidden]")} if form else {}
    return browser.post("/review", data={**hidden, **CRITERIA, **changes})


def count_feedback(service: GateService) -> int:
    return queries.count_decisions(service.log.database)["feedback"]


def test_status_has_version_guarantee_and_scorer(
    service: GateService, page: TestClient, releases: MadeUpReleases, tmp_path: Path
) -> None:
    text = get_text(page.get("/"))
    for part in ("v1.2.0", "2026-11-01 09:30 UTC", GUARANTEE, "a notice", "min_log_prob, probe", "0.500"):
        assert part in text
    assert "nothing can be said" in text, "no answer was reviewed"
    releases.promote("v1.3.0", tmp_path / "away" / "probe.onnx")
    service.follower.refresh()
    text = get_text(page.get("/"))
    assert "v1.2.0 is live" in text and "v1.3.0 fails to load" in text and str(tmp_path / "away") in text


def test_status_shows_monitoring_windows(service: GateService, page: TestClient) -> None:
    assert "No window has been judged yet" in get_text(page.get("/"))

    def make_window(start: int, *alarms: Alarm, **changes: object) -> MonitoringWindow:
        begin = datetime(2026, 11, start, tzinfo=UTC)
        fields = {"coverage": 0.75, "precision": {"reviews": 60, "documents": 30, "n_eff": 60, "precision": 0.875}}
        statistics = make_window_statistics(**fields | changes)
        return MonitoringWindow("v1.2.0", begin, begin + timedelta(days=3), statistics, alarms)

    alarm = Alarm(Code.INPUT_DRIFT, f"contexts differ {IMAGE}", (SCRIPT, "i-2"))
    windows = [make_window(2), make_window(5, coverage=None, precision=None), make_window(8, alarm)]
    write_windows(service.log.database, windows)
    with TestClient(make_server(service, ApiKeys())) as page:  # what the other page has read is cached
        reply = page.get("/")
    text, content = get_text(reply), parse(reply)
    for part in ("input drift", "A703", "contexts differ", Code.INPUT_DRIFT.remedy, SCRIPT, "75.0 %", "87.5 %"):
        assert part in text
    assert content.find("script") is None and content.find("img") is None
    chart = content.find("svg", {"aria-labelledby": "history-title history-desc"})
    assert [len(chart.find_all("circle", kind)) for kind in ("show", "p99")] == [2, 2]


def test_status_without_a_version_or_guarantee(promote: Promote, make_service: MakeService) -> None:
    service = make_service()
    with TestClient(make_server(service, ApiKeys())) as page:
        assert "nothing is in production yet" in get_text(page.get("/"))
        reply = send(page, "/try", **TRIED)
        assert reply.status_code == 503 and Code.NO_VERSION in get_text(reply)
        promote("v1.2.0", guarantee=MISSING_GUARANTEE)
        service.follower.refresh()
        assert "nothing is guaranteed" in parse(page.get("/")).select_one(".verdict.failed").get_text()


def test_status_counts_the_last_reviews_of_shown_answers(service: GateService, page: TestClient) -> None:
    others = [{"version": "v1.1.0"}, {"decided_at": SINCE - timedelta(seconds=1)}]
    for number, changes in enumerate([*[{}] * 4, *others]):
        key, fields = f"i-{number}", {"version": "v1.2.0", "decided_at": SINCE + timedelta(days=1), **changes}
        service.log.record_decision(decision(key, **fields))
        service.log.record_feedback(f"f-{number}", review(key, number < 2, days=80, complete=False)).result()
    service.log.record_feedback("corrected", review("i-2", days=81, reviewer="sme-2")).result()
    text = get_text(page.get("/"))
    assert "3 of 4 reviewed answers that it showed are correct: 75.0 % (95 % interval: 19.4 % to 99.4 %)" in text
    assert "Too few" in text and "no random sample" in text
    assert [ReviewStatistics(answers, answers, 0.9, 1.0).is_few for answers in (29, 30)] == [True, False]


def test_status_draws_and_lists_decisions_by_day(service: GateService, page: TestClient) -> None:
    now = datetime.now(UTC)
    for number, kind in enumerate(["show"] * 3 + ["abstain"] * 2 + ["unavailable"]):
        changes = {"decision": kind, "decided_at": now, "duration_ms": 10.0 * (number + 1)}
        service.log.record_decision(decision(f"i-{number}", shown=kind == "show", **changes))
    service.log.record_decision(decision("old", decided_at=now - timedelta(days=20))).result()
    content = parse(page.get("/"))
    newest = [cell.get_text() for cell in content.select("tbody tr")[0].select("th, td")]
    assert newest == [f"{now:%Y-%m-%d}", "3", "2", "1", "50.0 %", "30.0", "60.0"]
    assert "3 show, 2 abstain, 1 unavailable" in content.select_one("#decisions-desc").get_text()


def test_status_without_a_log_opens(service: GateService, page: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    error = AbstainError(Code.NO_SERVICE, "decision log: disk I/O error")
    monkeypatch.setattr(queries, "count_by_interval", Mock(side_effect=error))
    reply = page.get("/")
    assert reply.status_code == 200 and "v1.2.0 is live" in get_text(reply) and "disk I/O error" in get_text(reply)


def test_status_notes_a_removed_log(service: GateService, page: TestClient, tmp_path: Path) -> None:
    assert "was removed or replaced" not in get_text(page.get("/"))
    for file in tmp_path.glob("decisions.sqlite*"):
        file.unlink()
    service.log.record_decision(decision("new")).result()
    assert "was removed or replaced" in get_text(page.get("/"))
    assert "abstain_log_replaced 1.0" in page.get("/metrics").text


def test_review_opens_any_id(service: GateService, page: TestClient) -> None:
    for key in ("a/b", "?x=1#y", "é % &", "<b>", '"', "a\nb", "..", "a+b"):
        service.log.record_decision(withheld(key, question=f"about {key}")).result()
        address = parse(page.get("/")).find("a", href="/review?id=" + quote(key, safe=""))["href"]
        reply = page.get(address)
        assert reply.status_code == 200 and f"about {key}" in html.unescape(reply.text)


def test_review_names_heading_and_page_of_sources(service: GateService, page: TestClient) -> None:
    service.log.record_decision(withheld("w-1", contexts=cited("manual#1", "other#1"))).result()
    sources = [found.get_text() for found in parse(page.get("/review?id=w-1")).select("details h3, details .soft")]
    assert sources == ["manual#1", "Gold › Fees, page 3", "other#1"]


def test_pages_run_and_load_nothing(service: GateService, page: TestClient) -> None:
    service.log.record_decision(withheld("w-1")).result()
    replies = [page.get(address) for address in ("/", "/review?id=w-1", "/review", "/review?id=none")]
    for reply in (*replies, send(page, "/try", **TRIED)):
        assert not re.search(r"https?:|//[a-z]|@import|url\(|<script|<iframe|src=| on\w+=| style=", reply.text)
        policy = reply.headers["content-security-policy"]
        (style,) = re.findall(r"<style>(.*?)</style>", reply.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert policy.startswith("default-src 'none'; ") and f"style-src 'sha256-{digest}'" in policy
        assert "unsafe" not in policy and "form-action 'self'" in policy and "frame-ancestors 'none'" in policy
        assert reply.headers["cache-control"] == "no-store"


def test_try_explains_an_answer_and_logs_nothing(service: GateService, page: TestClient) -> None:
    reply = send(page, "/try", **TRIED)
    text, content = get_text(reply), parse(reply)
    assert reply.status_code == 200 and GUARANTEE in text and "threshold 0.500" in text
    scores = {row.th.get_text(): float(row.td.get_text()) for row in content.select("tbody tr") if not row.bdi}
    assert scores.keys() == {"min_log_prob", "probe"} and all(0 <= score <= 1 for score in scores.values())
    pieces = content.select("#pieces mark")
    assert "".join(piece.get_text() for piece in pieces) == TRIED["answer"] and pieces[-2].get_text() == "😀"
    assert {name: content.find(id=name).get_text().strip() for name in TRIED} == TRIED, "to change it and try again"
    bare = {**TRIED, "contexts": " \n\n"}
    assert "No decision" in get_text(send(page, "/try", **bare))
    assert "What the scorers say" in get_text(send(page, "/try", **bare, allow_no_context="yes"))
    assert sum(queries.count_decisions(service.log.database).values()) == 0


def test_try_rejects_invalid_answers_and_forms(page: TestClient) -> None:
    reply = send(page, "/try", **{**TRIED, "answer": " "})
    assert reply.status_code == 422 and parse(reply).select_one("[role=alert] p")
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    for body in (b"question=%ff", b"\xff", b"&".join(b"a=%d" % number for number in range(100))):
        assert page.post("/try", content=body, headers=kind).status_code == 422


def assert_too_long(reply: Response) -> None:
    assert reply.status_code == 413 and reply.headers["content-type"].startswith("text/html")


def test_try_long_texts_need_a_session(open_browser: OpenBrowser) -> None:
    browser = open_browser("ask", stranger=True)
    for headers in ({}, {"Cookie": "abstain-gate=forged"}):
        assert_too_long(browser.post("/try", data={"answer": CHINESE}, headers=headers))
    log_in(browser, browser.key)
    assert send(browser, "/try", **{**TRIED, "answer": CHINESE}).status_code == 200, "in any script"
    assert_too_long(send(browser, "/try", **{**TRIED, "answer": 6 * CHINESE}))
    assert_too_long(browser.post("/login", data={"key": CHINESE}))


def test_review_is_recorded_once_and_shown(service: GateService, page: TestClient) -> None:
    service.log.record_decision(withheld("w-1")).result()
    assert "reviewed" not in get_text(page.get("/")).partition("Newest withheld")[2].partition("Try")[0]
    for _ in range(2):
        reply = send_review(page, ideal_answer="  5 euros\r\na month ")
        assert reply.status_code == 200 and reply.url.query == b"id=w-1"
    assert "loopback : complete yes, correct no, truthful yes" in get_text(reply)
    (review,) = queries.get_decision(service.log.database, "w-1").feedback
    assert review.ideal_answer == "5 euros\na month" and not review.correct
    assert "reviewed" in get_text(page.get("/")).partition("Newest withheld")[2].partition("Try")[0]


def test_review_invalid_form_is_not_recorded(service: GateService, page: TestClient) -> None:
    for key in ("w-1", "w-2"):
        service.log.record_decision(withheld(key)).result()
    assert [send_review(page, correct=value).status_code for value in ("", "maybe")] == [422, 422]
    forged = [{"interaction_id": "w-2"}, {"answer_token": ""}, *({"token": token} for token in ("", "0", "é"))]
    for changes in forged:
        assert send_review(page, **changes).status_code == 403, changes
    assert count_feedback(service) == 0


def test_review_goes_through_the_queue(service: GateService, page: TestClient, tmp_path: Path) -> None:
    service.log.record_decision(withheld("b", code="A206", reason="too unsure")).result()
    queue_answers(service, "a", "b")
    assert "0 of the 2 answers" in get_text(page.get("/"))
    text = get_text(page.get("/review"))
    assert "Is it a?" in text and "about a" in text and "confidence" not in text
    closed = parse(page.get("/review?id=b")).select_one("details:not([open])")
    assert "A206: too unsure" in closed.get_text(), "what the gate decided must not sway the reviewer"
    text = get_text(send_review(page, "/review", ideal_answer=" 5 euros "))
    assert "Saved." in text and "1 of the 2 answers" in text and "Is it b?" in text
    text = get_text(send_review(page, "/review?after=1", correct="yes"))
    assert "Nothing is left to review" in text and "2 of the 2 answers" in text
    rows = [(row.interaction_id, row.correct, row.ideal_answer) for row in read_reviews(tmp_path)]
    assert rows == [("a", False, "5 euros"), ("b", True, None)]


def test_form_sets_neither_weight_nor_reviewer(service: GateService, open_browser: OpenBrowser, tmp_path: Path) -> None:
    queue_answers(service, "a", "b", probability=3 / 17)
    ann, bob = open_browser("review"), open_browser("review", name="bob")
    forged = {"reviewer": "eve", "inclusion_probability": "0.000001", "probability": "0.5", "reviewed_at": "2020-01-01"}
    assert "Is it a?" in get_text(ann.get("/review")) and "Is it b?" in get_text(bob.get("/review"))
    assert [send_review(browser, "/review?id=a", **forged).status_code for browser in (ann, bob)] == [200, 200]
    assert send_review(ann, "/review?id=a", interaction_id="b").status_code == 403, "a form is of one answer"
    rows = read_reviews(tmp_path)
    reviews = [(row.interaction_id, row.reviewer, row.inclusion_probability) for row in rows]
    assert reviews == [("a", "ann", 3 / 17), ("a", "bob", 3 / 17)]
    assert rows[0].reviewed_at > datetime.now(UTC) - timedelta(minutes=5)


def test_review_has_no_form_without_texts_or_if_shown(service: GateService, page: TestClient) -> None:
    service.log.record_decision(replace(withheld("w-1"), interaction=None))
    service.log.record_decision(decision("i-1", interaction=interaction("i-1", answer="shown to its asker"))).result()
    assert "not kept" in get_text(page.get("/"))
    reply = page.get("/review?id=w-1")
    assert "not kept" in get_text(reply) and not parse(reply).find("form")
    reply = page.get("/review?id=i-1")
    assert reply.status_code == 404 and "shown to its asker" not in reply.text


def test_pages_without_a_key_ask_for_one(service: GateService, open_browser: OpenBrowser) -> None:
    service.log.record_decision(withheld("w-1", question="a secret")).result()
    browser = open_browser("ask", stranger=True)
    form = {"token": token_of(browser.get("/")), **TRIED, **CRITERIA}
    replies = [browser.get(path) for path in ("/", "/review?id=w-1", "/review")]
    for reply in (*replies, *(browser.post(path, data=form) for path in ("/try", "/review", "/logout"))):
        assert reply.status_code == 403 and parse(reply).find(id="key")
        assert "v1.2.0" not in reply.text and "a secret" not in reply.text
    assert count_feedback(service) == 0


@pytest.mark.parametrize(("scheme", "is_secure"), [("http", False), ("https", True)])
def test_login_sets_a_strict_cookie(open_browser: OpenBrowser, scheme: str, is_secure: bool) -> None:
    browser = open_browser("ask", stranger=True)
    form = {"token": token_of(browser.get("/")), "key": (key := browser.key)}
    origin = {"Origin": f"{scheme}://gate.example"}  # as browsers send it with every form
    reply = browser.post("/login", data=form, headers=origin, follow_redirects=False)
    cookie = reply.headers["set-cookie"]
    assert reply.status_code == 303 and "HttpOnly" in cookie and "SameSite=strict" in cookie and key not in cookie
    assert ("; Secure" in cookie) is is_secure
    if not is_secure:
        opened = browser.get("/")
        assert "v1.2.0 is live" in get_text(opened) and "ann" in get_text(opened) and key not in opened.text


def test_forms_of_another_session_are_rejected(service: GateService, open_browser: OpenBrowser) -> None:
    service.log.record_decision(withheld("w-1")).result()
    ann, eve = (open_browser("ask", "read_withheld", "review", name=name) for name in ("ann", "eve"))
    for path in ("/try", "/review", "/logout"):
        for token in (token_of(eve.get("/")), "", "é"):
            assert ann.post(path, data={"token": token, **TRIED, **CRITERIA}).status_code == 403
    assert count_feedback(service) == 0 and ann.get("/").status_code == 200, "nor was she logged out"


@pytest.mark.parametrize(
    "roles", [["ask"], ["feedback"], ["read_withheld"], ["review"], ["read_withheld", "review"]], ids=",".join
)
def test_roles_open_only_their_parts(service: GateService, open_browser: OpenBrowser, roles: list[str]) -> None:
    may_try, may_see, has_queue = (role in roles for role in ("ask", "read_withheld", "review"))
    may_review = may_see and has_queue
    service.log.record_decision(withheld("w-1", question="a secret question", answer="a secret answer")).result()
    queue_answers(service, "drawn")
    browser = open_browser(*roles)
    status, details, queued = (browser.get(path) for path in ("/", "/review?id=w-1", "/review"))
    token = token_of(status)
    assert status.status_code == 200 and ("a secret" in status.text) == may_see
    assert details.status_code == (200 if may_see else 403) and ("a secret" in details.text) == may_see
    assert queued.status_code == (200 if has_queue else 403) and ("Is it drawn?" in queued.text) == has_queue
    assert bool(status.text.count('href="/review"')) == has_queue
    assert bool(parse(status).find(id="question")) == may_try
    assert send(browser, "/try", **TRIED).status_code == (200 if may_try else 403)
    assert send_review(browser, token=token).status_code == (200 if may_review else 403)
    assert send_review(browser, "/review?id=drawn", token=token).status_code == (200 if has_queue else 403)
    feedback = queries.get_decision(service.log.database, "w-1").feedback
    assert [row.reviewer for row in feedback] == ["ann"] * may_review, "under the name of the key"


def test_session_loses_a_removed_role_and_damaged_keys(open_browser: OpenBrowser, tmp_path: Path) -> None:
    browser, file = open_browser("ask", "read_withheld"), tmp_path / "keys"
    assert browser.get("/review?id=w-1").status_code == 404
    file.write_text(file.read_text().replace("ask,read_withheld", "ask"))
    assert [browser.get(path).status_code for path in ("/review?id=w-1", "/")] == [403, 200]
    file.write_text("damaged")
    reply = browser.get("/")
    assert reply.status_code == 503 and "v1.2.0" not in reply.text and Code.NO_SERVICE in get_text(reply)


def test_pages_are_no_part_of_the_api(service: GateService) -> None:
    paths = make_server(service, ApiKeys()).openapi()["paths"]
    assert "/v1/gate" in paths and not {"/", "/try", "/review"} & set(paths)
