import base64
import hashlib
import html
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from bs4 import BeautifulSoup
from httpx import Response
from starlette.testclient import TestClient

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Review
from abstain.core.errors import AbstainError
from abstain.data.decision_log import queries
from abstain.data.decision_log.monitoring_windows import Alarm, MonitoringWindow, write_windows
from abstain.data.decision_log.queue import SampledAnswer, fill_queue
from abstain.ingest.sources.decision_log import DecisionLogSource
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys, create_key
from abstain.serving.service.version_follower import VersionInfo
from abstain.serving.status_page.status_data import ReviewStatistics
from tests.data.decision_log.builders import decision, make_window_statistics, url_of
from tests.factories import cited, interaction
from tests.serving.status_page.builders import (
    GUARANTEE,
    SINCE,
    FixedReleases,
    fused_release,
    make_server,
    make_service,
    queue_answers,
    withheld,
)

pytestmark = pytest.mark.heavy

HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</textarea></title><h1>",
    "{{ 7 * 7 }} {% raise %}",
    "&lt;b&gt; &amp;",
]
TRIED = {"question": "What is the fee?", "contexts": "There is no fee.\n\nAsk.", "answer": "None, é 😀."}
CRITERIA = {"complete": "yes", "correct": "no", "truthful": "yes"}
CHINESE = "年费是多少" * 4000
OpenSession = Callable[..., TestClient]


@pytest.fixture
def page(service: GateService) -> Iterator[TestClient]:
    """The page of a server without keys."""
    with TestClient(make_server(service, ApiKeys())) as client:
        yield client


@pytest.fixture
def open_browser(service: GateService, tmp_path: Path) -> Iterator[Callable[..., tuple[TestClient, str]]]:
    """A server with keys: makes a browser, and a key with these roles."""
    file = tmp_path / "keys"
    file.write_text("")
    app = make_server(service, ApiKeys(file=file))

    def open_browser(*roles: str, name: str = "ann") -> tuple[TestClient, str]:
        key, line = create_key(name, roles)
        file.write_text(f"{file.read_text()}{line}\n")
        browser = TestClient(app)
        browser.portal = server.portal  # one event loop: a loop of each request's own ends before its tasks do
        return browser, key

    with TestClient(app) as server:
        yield open_browser


@pytest.fixture
def open_session(open_browser: Callable[..., tuple[TestClient, str]]) -> OpenSession:
    """Makes a browser that is logged in with these roles."""

    def open_session(*roles: str, name: str = "ann") -> TestClient:
        browser, key = open_browser(*roles, name=name)
        assert log_in(browser, key).status_code == 200
        return browser

    return open_session


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


def read_reviews(folder: Path) -> list[Review]:
    """Read the reviews as ingest does, in the order of the log."""
    return [row.review for row in DecisionLogSource(name="decisions", url=url_of(folder)).read({}) if row.review]


def count_feedback(service: GateService) -> int:
    return queries.count_decisions(service.log.database)["feedback"]


def record_reviewed(service: GateService, key: str, right: bool = False, **changes: object) -> None:
    fields = {"version": "v1.2.0", "decided_at": SINCE + timedelta(days=1), **changes}
    service.log.record_decision(decision(key, **fields))
    row = Review(
        interaction_id=key, reviewed_at=datetime.now(UTC), reviewer="Bo", complete=False, correct=right, truthful=True
    )
    service.log.record_feedback(f"f-{key}", row).result()


def make_window(start: int, *alarms: Alarm, **changes: object) -> MonitoringWindow:
    """Make a window of three days from that day of November on."""
    begin = datetime(2026, 11, start, tzinfo=UTC)
    fields = {"decisions": 400, "shown": 300, "coverage": 0.75}
    fields |= {"precision": {"reviews": 60, "documents": 30, "n_eff": 60, "precision": 0.875}}
    return MonitoringWindow(
        "v1.2.0", begin, begin + timedelta(days=3), make_window_statistics(**fields | changes), alarms
    )


# The status


def test_status_has_version_guarantee_and_scorer(page: TestClient) -> None:
    text = get_text(page.get("/"))
    for part in ("v1.2.0", "2026-11-01 09:30 UTC", GUARANTEE, "a notice", "min_log_prob, probe", "0.500"):
        assert part in text
    assert "nothing can be said" in text, "no answer was reviewed"


def test_status_shows_monitoring_windows(service: GateService, page: TestClient) -> None:
    assert "No window has been judged yet" in get_text(page.get("/"))
    alarm = Alarm(Code.INPUT_DRIFT, f"contexts differ {HOSTILE[1]}", (HOSTILE[0], "i-2"))
    write_windows(
        service.log.database, [make_window(2), make_window(5, coverage=None, precision=None), make_window(8, alarm)]
    )
    with TestClient(make_server(service, ApiKeys())) as page:  # what the other page has read is cached
        reply = page.get("/")
    text, content = get_text(reply), parse(reply)
    for part in ("input drift", "A703", "contexts differ", Code.INPUT_DRIFT.remedy, HOSTILE[0], "75.0 %", "87.5 %"):
        assert part in text
    assert content.find("script") is None and content.find("img") is None
    chart = content.find("svg", {"aria-labelledby": "history-title history-desc"})
    assert [len(chart.find_all("circle", kind)) for kind in ("show", "p99")] == [2, 2]
    rows = content.find("div", {"aria-label": "Windows of the monitoring"}).find("tbody").find_all("tr")
    assert [row.find("td").text for row in rows] == ["2026-11-08", "2026-11-05", "2026-11-02"]


def test_status_shows_a_version_that_fails_to_load(service: GateService, page: TestClient) -> None:
    releases = service.follower._source
    releases.now = VersionInfo("v1.3.0", "1", SINCE)
    releases.error = AbstainError(Code.BAD_ARTIFACT, "a file was changed")
    service.follower.refresh()
    text = get_text(page.get("/"))
    assert "v1.2.0 is live" in text and "v1.3.0 fails to load" in text and "a file was changed" in text


def test_status_without_a_version_cannot_try(settings: Settings, tmp_path: Path, bundle: Path) -> None:
    service = make_service(tmp_path, FixedReleases(None, bundle), settings)
    with TestClient(make_server(service, ApiKeys())) as page:
        service.follower.refresh()
        assert "nothing is in production yet" in get_text(page.get("/"))
        reply = send(page, "/try", **TRIED)
    assert reply.status_code == 503 and Code.NO_VERSION in get_text(reply)


def test_status_without_a_guarantee_is_failed(model: Path, settings: Settings, tmp_path: Path) -> None:
    bundle = fused_release(tmp_path / "bundle", model, settings, guaranteed=False)
    service = make_service(tmp_path, FixedReleases(VersionInfo("v1.2.0", "0", SINCE), bundle), settings)
    service.follower.refresh()
    with TestClient(make_server(service, ApiKeys())) as page:
        assert "nothing is guaranteed" in parse(page.get("/")).select_one(".verdict.failed").get_text()


def test_status_counts_the_last_reviews_of_shown_answers(service: GateService, page: TestClient) -> None:
    for number in range(4):
        record_reviewed(service, f"i-{number}", right=number < 2)
    later = Review(
        interaction_id="i-2",
        reviewed_at=datetime.now(UTC) + timedelta(hours=1),
        reviewer="Cy",
        complete=True,
        correct=True,
        truthful=True,
    )
    service.log.record_feedback("corrected", later).result()
    record_reviewed(service, "another-version", version="v1.1.0")
    record_reviewed(service, "before", decided_at=SINCE - timedelta(seconds=1))
    record_reviewed(service, "withheld", shown=False)
    record_reviewed(service, "no-decision", decision="unavailable")
    text = get_text(page.get("/"))
    assert "3 of 4 reviewed answers that it showed are correct: 75.0 % (95 % interval: 19.4 % to 99.4 %)" in text
    assert "Too few" in text and "no random sample" in text


@pytest.mark.parametrize(("answers", "is_few"), [(29, True), (30, False)])
def test_review_statistics_below_30_answers_are_few(answers: int, is_few: bool) -> None:
    assert ReviewStatistics(answers, answers, 0.9, 1.0).is_few is is_few


def test_status_draws_and_lists_decisions_by_day(service: GateService, page: TestClient) -> None:
    now = datetime.now(UTC)
    for number, kind in enumerate(["show"] * 3 + ["abstain"] * 2 + ["unavailable"]):
        changes = {"decision": kind, "decided_at": now, "duration_ms": 10.0 * (number + 1)}
        service.log.record_decision(decision(f"i-{number}", shown=kind == "show", **changes))
    service.log.record_decision(decision("old", decided_at=now - timedelta(days=20))).result()
    content = parse(page.get("/"))
    newest = [cell.get_text() for cell in content.select("tbody tr")[0].select("th, td")]
    assert newest == [f"{now:%Y-%m-%d}", "3", "2", "1", "50.0 %", "30.0", "60.0"]
    bars = {kind: content.select_one(f"figure > svg rect.{kind}") for kind in ("show", "abstain", "unavailable")}
    assert float(bars["show"]["height"]) == pytest.approx(3 * float(bars["unavailable"]["height"]), abs=0.2)
    assert "3 show, 2 abstain, 1 unavailable" in content.select_one("#decisions-desc").get_text()


def test_status_without_the_log_still_opens(
    service: GateService, page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AbstainError(Code.NO_SERVICE, "decision log: disk I/O error")

    monkeypatch.setattr(queries, "count_by_interval", fail)
    reply = page.get("/")
    assert reply.status_code == 200 and "v1.2.0 is live" in get_text(reply) and "disk I/O error" in get_text(reply)


def test_status_notes_a_removed_log(service: GateService, page: TestClient, tmp_path: Path) -> None:
    assert "was removed or replaced" not in get_text(page.get("/"))
    for file in tmp_path.glob("decisions.sqlite*"):
        file.unlink()
    service.log.record_decision(decision("new")).result()
    assert "was removed or replaced" in get_text(page.get("/"))


# Texts of people


@pytest.mark.parametrize("text", [*HOSTILE, "\u05e9\u05dc\u05d5\u05dd \u202eabc", "long " * 5000, "x" * 20_000])
def test_pages_show_texts_as_text(service: GateService, page: TestClient, text: str) -> None:
    texts = {"question": text, "answer": text, "contexts": cited(text)}
    service.log.record_decision(withheld("w-1", **texts)).result()
    fill_queue(service.log.database, [SampledAnswer(interaction("q", **texts), 1.0)], (), datetime.now(UTC))
    replies = [page.get(address) for address in ("/", "/review?id=w-1", "/review")]
    for reply in (*replies, send(page, "/try", question=text, answer=text[:99])):
        assert reply.status_code == 200
        assert not parse(reply).find_all(["script", "img", "iframe"]) and len(parse(reply).find_all("h1")) == 1
        assert text[:90].strip() in html.unescape(reply.text)


@pytest.mark.parametrize("key", ["a/b", "?x=1#y", "é % &", "<b>", '"', "a\nb", "..", "a+b"])
def test_review_opens_any_id(service: GateService, page: TestClient, key: str) -> None:
    service.log.record_decision(withheld(key, question=f"about {key}")).result()
    address = parse(page.get("/")).find("a", href="/review?id=" + quote(key, safe=""))["href"]
    reply = page.get(address)
    assert reply.status_code == 200 and f"about {key}" in html.unescape(reply.text)


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


# Trying an answer


def test_try_explains_an_answer_and_logs_nothing(service: GateService, page: TestClient) -> None:
    reply = send(page, "/try", **TRIED)
    text, content = get_text(reply), parse(reply)
    assert reply.status_code == 200 and GUARANTEE in text and "threshold 0.500" in text
    scores = {row.th.get_text(): float(row.td.get_text()) for row in content.select("tbody tr") if not row.bdi}
    assert scores.keys() == {"min_log_prob", "probe"} and all(0 <= score <= 1 for score in scores.values())
    pieces = content.select("#pieces mark")
    assert "".join(piece.get_text() for piece in pieces) == TRIED["answer"] and pieces[-2].get_text() == "😀"
    assert {name: content.find(id=name).get_text().strip() for name in TRIED} == TRIED, "to change it and try again"
    assert sum(queries.count_decisions(service.log.database).values()) == 0


def test_try_without_contexts_needs_consent(page: TestClient) -> None:
    asked = {**TRIED, "contexts": " \n\n"}
    assert "No decision" in get_text(send(page, "/try", **asked))
    assert "What the scorers say" in get_text(send(page, "/try", **asked, allow_no_context="yes"))


def test_try_rejects_invalid_answers_and_forms(page: TestClient) -> None:
    reply = send(page, "/try", **{**TRIED, "answer": " "})
    assert reply.status_code == 422 and parse(reply).select_one("[role=alert] p")
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    for body in (b"question=%ff", b"\xff", b"&".join(b"a=%d" % number for number in range(100))):
        assert page.post("/try", content=body, headers=kind).status_code == 422


def assert_too_long(reply: Response) -> None:
    assert reply.status_code == 413 and reply.headers["content-type"].startswith("text/html")


def test_try_accepts_long_texts_of_any_script(page: TestClient) -> None:
    assert send(page, "/try", **{**TRIED, "answer": CHINESE}).status_code == 200
    assert_too_long(page.post("/try", data={"answer": 6 * CHINESE}))


def test_try_long_texts_need_a_session(open_browser: Callable[..., tuple[TestClient, str]]) -> None:
    browser, key = open_browser("ask")
    for headers in ({}, {"Cookie": "abstain-gate=forged"}):
        assert_too_long(browser.post("/try", data={"answer": CHINESE}, headers=headers))
    log_in(browser, key)
    assert send(browser, "/try", **{**TRIED, "answer": CHINESE}).status_code == 200
    assert_too_long(browser.post("/login", data={"key": CHINESE}))


# Reviews


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


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"correct": ""}, 422),
        ({"correct": "maybe"}, 422),
        ({"interaction_id": "nowhere"}, 403),
        ({"interaction_id": "w-2"}, 403),
        ({"answer_token": ""}, 403),
        ({"token": ""}, 403),
        ({"token": "0"}, 403),
        ({"token": "é"}, 403),
    ],
)
def test_review_invalid_form_is_not_recorded(
    service: GateService, page: TestClient, changes: dict[str, str], status: int
) -> None:
    service.log.record_decision(withheld("w-1"))
    service.log.record_decision(withheld("w-2")).result()
    assert send_review(page, **changes).status_code == status
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


def test_review_form_sets_neither_weight_nor_reviewer(
    service: GateService, open_session: OpenSession, tmp_path: Path
) -> None:
    queue_answers(service, "a", "b", probability=3 / 17)
    ann, bob = open_session("review"), open_session("review", name="bob")
    forged = {"reviewer": "eve", "inclusion_probability": "0.000001", "probability": "0.5", "reviewed_at": "2020-01-01"}
    assert "Is it a?" in get_text(ann.get("/review")) and "Is it b?" in get_text(bob.get("/review"))
    assert [send_review(browser, "/review?id=a", **forged).status_code for browser in (ann, bob)] == [200, 200]
    assert send_review(ann, "/review?id=a", interaction_id="b").status_code == 403, "a form is of one answer"
    rows = read_reviews(tmp_path)
    reviews = [(row.interaction_id, row.reviewer, row.inclusion_probability) for row in rows]
    assert reviews == [("a", "ann", 3 / 17), ("a", "bob", 3 / 17)]
    assert rows[0].reviewed_at > datetime.now(UTC) - timedelta(minutes=5)


def test_review_without_texts_has_no_form(service: GateService, page: TestClient) -> None:
    service.log.record_decision(replace(withheld("w-1"), interaction=None)).result()
    assert "not kept" in get_text(page.get("/"))
    reply = page.get("/review?id=w-1")
    assert "not kept" in get_text(reply) and not parse(reply).find("form")


def test_review_of_a_shown_answer_is_not_found(service: GateService, page: TestClient) -> None:
    service.log.record_decision(decision("i-1", interaction=interaction("i-1", answer="shown to its asker"))).result()
    reply = page.get("/review?id=i-1")
    assert reply.status_code == 404 and "shown to its asker" not in reply.text


# Keys and sessions


def test_pages_without_a_key_ask_for_one(
    service: GateService, open_browser: Callable[..., tuple[TestClient, str]]
) -> None:
    service.log.record_decision(withheld("w-1", question="a secret")).result()
    browser, _ = open_browser("ask")
    form = {"token": token_of(browser.get("/")), **TRIED, **CRITERIA}
    replies = [browser.get(path) for path in ("/", "/review?id=w-1", "/review")]
    for reply in (*replies, *(browser.post(path, data=form) for path in ("/try", "/review", "/logout"))):
        assert reply.status_code == 403 and parse(reply).find(id="key")
        assert "v1.2.0" not in reply.text and "a secret" not in reply.text
    assert count_feedback(service) == 0


@pytest.mark.parametrize(("scheme", "is_secure"), [("http", False), ("https", True)])
def test_login_sets_a_strict_cookie(
    open_browser: Callable[..., tuple[TestClient, str]], scheme: str, is_secure: bool
) -> None:
    browser, key = open_browser("ask")
    form = {"token": token_of(browser.get("/")), "key": key}
    origin = {"Origin": f"{scheme}://gate.example"}  # as browsers send it with every form
    reply = browser.post("/login", data=form, headers=origin, follow_redirects=False)
    cookie = reply.headers["set-cookie"]
    assert reply.status_code == 303 and "HttpOnly" in cookie and "SameSite=strict" in cookie and key not in cookie
    assert ("; Secure" in cookie) is is_secure
    if not is_secure:
        opened = browser.get("/")
        assert "v1.2.0 is live" in get_text(opened) and "ann" in get_text(opened) and key not in opened.text


@pytest.mark.parametrize("wrong", ["", "abstain_wrong", "ann", "é", "x" * 10_000])
def test_login_with_a_wrong_key_opens_nothing(open_browser: Callable[..., tuple[TestClient, str]], wrong: str) -> None:
    browser, _ = open_browser("ask")
    reply = log_in(browser, wrong)
    assert reply.status_code == 403 and "v1.2.0" not in reply.text
    assert wrong in ("", "ann") or wrong not in reply.text
    assert browser.get("/").status_code == 403


def test_forms_of_another_session_are_rejected(service: GateService, open_session: OpenSession) -> None:
    service.log.record_decision(withheld("w-1")).result()
    ann, eve = (open_session("ask", "read_withheld", "review", name=name) for name in ("ann", "eve"))
    for path in ("/try", "/review", "/logout"):
        for token in (token_of(eve.get("/")), "", "é"):
            assert ann.post(path, data={"token": token, **TRIED, **CRITERIA}).status_code == 403
    assert count_feedback(service) == 0 and ann.get("/").status_code == 200, "nor was she logged out"


def test_login_by_another_site_is_rejected(open_browser: Callable[..., tuple[TestClient, str]]) -> None:
    """Its form has no token of this browser's log-in, however it was got."""
    (eve, key), (victim, _) = open_browser("ask"), open_browser("ask")
    form = {"token": token_of(eve.get("/")), "key": key}
    victim.get("/")
    assert victim.post("/login", data=form).status_code == 403
    assert victim.get("/").status_code == 403


@pytest.mark.parametrize(
    ("roles", "may_try", "may_see", "may_review", "has_queue"),
    [
        (["ask"], True, False, False, False),
        (["feedback"], False, False, False, False),
        (["read_withheld"], False, True, False, False),
        (["review"], False, False, False, True),
        (["read_withheld", "review"], False, True, True, True),
    ],
)
def test_roles_open_only_their_parts(
    service: GateService,
    open_session: OpenSession,
    roles: list[str],
    may_try: bool,
    may_see: bool,
    may_review: bool,
    has_queue: bool,
) -> None:
    service.log.record_decision(withheld("w-1", question="a secret question", answer="a secret answer")).result()
    queue_answers(service, "drawn")
    browser = open_session(*roles)
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


def test_session_loses_a_removed_role(open_session: OpenSession, tmp_path: Path) -> None:
    browser, file = open_session("ask", "read_withheld"), tmp_path / "keys"
    assert browser.get("/review?id=w-1").status_code == 404
    file.write_text(file.read_text().replace("ask,read_withheld", "ask"))
    assert [browser.get(path).status_code for path in ("/review?id=w-1", "/")] == [403, 200]


def test_damaged_keys_let_nobody_in(open_session: OpenSession, tmp_path: Path) -> None:
    browser = open_session("ask")
    (tmp_path / "keys").write_text("damaged")
    reply = browser.get("/")
    assert reply.status_code == 503 and "v1.2.0" not in reply.text and Code.NO_SERVICE in get_text(reply)


def test_pages_are_no_part_of_the_api(service: GateService) -> None:
    paths = make_server(service, ApiKeys()).openapi()["paths"]
    assert "/v1/gate" in paths and not {"/", "/try", "/review"} & set(paths)
