"""What the page says and to whom; how it works in a browser is in test_page_browser.py."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Callable, Iterator
from contextlib import closing
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
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.monitoring_windows import Alarm, MonitoringWindow, write_windows
from abstain.data.decision_log.queue import SampledAnswer, fill_queue
from abstain.ingest.sources.decision_log import DecisionLogSource
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys, create_key
from abstain.serving.service.version_follower import VersionInfo
from tests.data.builders import cited, interaction
from tests.data.decision_log.builders import decision, make_window_statistics, url_of
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

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</textarea></title><h1>",
    "{{ 7 * 7 }} {% raise %}",
    "&lt;b&gt; &amp;",
]
TRIED = {"question": "What is the fee?", "contexts": "There is no fee.\n\nAsk.", "answer": "None, é 😀."}


@pytest.fixture(scope="module")
def bundle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    return fused_release(folder / "bundle", model, Settings(home=folder / "home", device="cpu", dtype="float32"))


@pytest.fixture
def service(bundle: Path, settings: Settings, tmp_path: Path) -> GateService:
    """v1.2.0 is live."""
    made = make_service(tmp_path, FixedReleases(VersionInfo("v1.2.0", "0", SINCE, ("a notice",)), bundle), settings)
    made.follower.refresh()
    assert made.follower.current, made.follower.last_error
    return made


@pytest.fixture
def page(service: GateService) -> Iterator[TestClient]:
    """The page of a server without keys."""
    with TestClient(make_server(service, ApiKeys())) as client:
        yield client


@pytest.fixture
def guarded(service: GateService, tmp_path: Path) -> Iterator[Callable[..., tuple[TestClient, str]]]:
    """A server with keys: a browser, and the key of a holder with these roles."""
    file = tmp_path / "keys"
    file.write_text("")
    app = make_server(service, ApiKeys(file=file))

    def of(*roles: str, name: str = "ann") -> tuple[TestClient, str]:
        key, line = create_key(name, roles)
        file.write_text(f"{file.read_text()}{line}\n")
        browser = TestClient(app)
        browser.portal = server.portal  # one event loop: a loop of each request's own ends before its tasks do
        return browser, key

    with TestClient(app) as server:
        yield of


def token_of(reply: Response) -> str:
    return BeautifulSoup(reply.text, "html.parser").find("input", {"name": "token"})["value"]


def log_in(browser: TestClient, key: str) -> Response:
    return browser.post("/login", data={"token": token_of(browser.get("/")), "key": key})


def send(browser: TestClient, path: str, **fields: str) -> Response:
    return browser.post(path, data={"token": token_of(browser.get("/")), **fields})


def text_of(reply: Response) -> str:
    return " ".join(BeautifulSoup(reply.text, "html.parser").get_text(" ").split())


VERDICTS = {"complete": "yes", "correct": "no", "truthful": "yes"}


def send_review(browser: TestClient, address: str = "/review?id=w-1", **changes: str) -> Response:
    """Fill in the form at `address`, with `changes` of its fields, those among them that it does not have."""
    form = BeautifulSoup(browser.get(address).text, "html.parser").select_one("form[action='/review']")
    hidden = {field["name"]: field["value"] for field in form.select("input[type=hidden]")} if form else {}
    return browser.post("/review", data={**hidden, **VERDICTS, **changes})


def reviews_in(service: GateService, folder: Path) -> list[Review]:
    """What ingest takes of reviews, in the order of the log."""
    return [row.review for row in DecisionLogSource(name="decisions", url=url_of(folder)).read({}) if row.review]


def shown_and_reviewed(service: GateService, key: str, right: bool, **changes: object) -> None:
    fields = {"version": "v1.2.0", "decided_at": SINCE + timedelta(days=1), **changes}
    service.log.record_decision(decision(key, **fields))
    verdict = {"complete": False, "correct": right, "truthful": True}
    row = Review(interaction_id=key, reviewed_at=datetime.now(UTC), reviewer="Bo", **verdict)
    service.log.record_feedback(f"f-{key}", row).result()


def test_the_page_says_what_is_live_and_what_it_guarantees(page: TestClient) -> None:
    said = text_of(page.get("/"))
    for what in ("v1.2.0 is live", "2026-11-01 09:30 UTC", GUARANTEE, "a notice", "min_log_prob, probe", "0.500"):
        assert what in said
    assert "nothing can be said" in said, "no answer was reviewed"


def window(start: int, *alarms: Alarm, **statistics: object) -> MonitoringWindow:
    """A window of three days from that day of November on."""
    begin = datetime(2026, 11, start, tzinfo=UTC)
    told = {
        "decisions": 400,
        "shown": 300,
        "coverage": 0.75,
        "unavailable": 0.01,
        "expected": {"value": 0.9, "low": 0.85, "high": 0.95},
        "reviews": 60,
        "precision": {"reviews": 60, "documents": 30, "n_eff": 60, "precision": 0.875},
    }
    return MonitoringWindow(
        "v1.2.0", begin, begin + timedelta(days=3), make_window_statistics(**told | statistics), alarms
    )


def test_the_page_has_the_stored_windows_of_the_monitoring(tmp_path: Path, page: TestClient) -> None:
    assert "No window has been judged yet" in text_of(page.get("/"))


def test_the_newest_window_is_said_with_its_alarms_and_the_others_in_a_chart_and_a_table(
    service: GateService, tmp_path: Path, page: TestClient
) -> None:
    key = HOSTILE[0]
    raised = Alarm(Code.INPUT_DRIFT, f"contexts differ {HOSTILE[1]}", (key, "i-2"))
    with closing(LogDatabase.open(url_of(tmp_path))) as database:
        write_windows(database, [window(2), window(5, coverage=None, precision=None), window(8, raised)])
    reply = page.get("/")
    said = text_of(reply)
    for what in ("Alarm: input drift", "A703", "contexts differ", Code.INPUT_DRIFT.remedy, key, "75.0 %", "87.5 %"):
        assert what in said
    read = BeautifulSoup(reply.text, "html.parser")
    assert read.find("script") is None and read.find("img") is None
    chart = read.find("svg", {"aria-labelledby": "history-title history-desc"})
    assert [len(chart.find_all("circle", kind)) for kind in ("show", "p99")] == [2, 2]
    rows = read.find("div", {"aria-label": "Windows of the monitoring"}).find("tbody").find_all("tr")
    assert [row.find("td").text for row in rows] == ["2026-11-08", "2026-11-05", "2026-11-02"]


def test_a_refused_version_is_said_beside_the_one_that_goes_on(service: GateService, page: TestClient) -> None:
    releases = service.follower._source
    assert isinstance(releases, FixedReleases)
    releases.now = VersionInfo("v1.3.0", "1", SINCE)
    releases.error = AbstainError(Code.BAD_ARTIFACT, "a file was changed")
    service.follower.refresh()
    said = text_of(page.get("/"))
    assert "v1.2.0 is live" in said and "v1.3.0 fails to load" in said and "a file was changed" in said


def test_without_a_version_the_page_says_so_and_nothing_can_be_tried(
    settings: Settings, tmp_path: Path, bundle: Path
) -> None:
    service = make_service(tmp_path, FixedReleases(None, bundle), settings)
    with TestClient(make_server(service, ApiKeys())) as page:
        service.follower.refresh()
        assert "nothing is in production yet" in text_of(page.get("/"))
        tried = send(page, "/try", **TRIED)
    assert tried.status_code == 503 and Code.NO_VERSION in text_of(tried)


def test_a_version_that_guarantees_nothing_is_not_said_to_be_well(
    model: Path, settings: Settings, tmp_path: Path
) -> None:
    bundle = fused_release(tmp_path / "bundle", model, settings, guaranteed=False)
    service = make_service(tmp_path, FixedReleases(VersionInfo("v1.2.0", "0", SINCE), bundle), settings)
    service.follower.refresh()
    with TestClient(make_server(service, ApiKeys())) as page:
        reply = page.get("/")
    assert BeautifulSoup(reply.text, "html.parser").select_one(
        ".verdict.failed"
    ) and "nothing is guaranteed" in text_of(reply)


def test_reviews_of_what_the_live_version_showed_are_counted_with_their_interval(
    service: GateService, page: TestClient
) -> None:
    for number in range(4):
        shown_and_reviewed(service, f"i-{number}", right=number < 3)
    shown_and_reviewed(service, "another-version", False, version="v1.1.0")
    shown_and_reviewed(service, "before", False, decided_at=SINCE - timedelta(seconds=1))
    shown_and_reviewed(service, "withheld", False, shown=False)
    shown_and_reviewed(service, "no-decision", False, decision="unavailable")
    said = text_of(page.get("/"))
    assert "3 of 4 reviewed answers that it showed are correct: 75.0 % (95 % interval: 19.4 % to 99.4 %)" in said
    assert "Too few" in said and "no random sample" in said


def test_the_last_verdict_on_an_answer_counts(service: GateService, page: TestClient) -> None:
    shown_and_reviewed(service, "i-1", right=False)
    later = {"reviewed_at": datetime.now(UTC) + timedelta(hours=1), "complete": True, "correct": True, "truthful": True}
    service.log.record_feedback("f-2", Review(interaction_id="i-1", reviewer="Cy", **later)).result()
    assert "1 of 1 reviewed" in text_of(page.get("/"))


def test_enough_reviews_are_not_called_few(service: GateService, page: TestClient) -> None:
    for number in range(30):
        shown_and_reviewed(service, f"i-{number}", right=True)
    said = text_of(page.get("/"))
    assert "30 of 30" in said and "Too few" not in said


def test_decisions_of_the_last_days_are_drawn_and_in_the_table(service: GateService, page: TestClient) -> None:
    now = datetime.now(UTC)
    kinds = ["show"] * 3 + ["abstain"] * 2 + ["unavailable"]
    for number, kind in enumerate(kinds):
        row = decision(
            f"i-{number}", shown=kind == "show", decision=kind, decided_at=now, duration_ms=10.0 * (number + 1)
        )
        service.log.record_decision(row)
    service.log.record_decision(decision("old", decided_at=now - timedelta(days=20))).result()
    found = BeautifulSoup(page.get("/").text, "html.parser")
    newest = [cell.get_text() for cell in found.select("tbody tr")[0].select("th, td")]
    assert newest == [f"{now:%Y-%m-%d}", "3", "2", "1", "50.0 %", "30.0", "60.0"]
    drawn = {kind: found.select_one(f"figure > svg rect.{kind}") for kind in ("show", "abstain", "unavailable")}
    heights = {kind: float(bar["height"]) for kind, bar in drawn.items() if bar}
    assert heights["show"] == pytest.approx(3 * heights["unavailable"], abs=0.2)
    assert "3 show, 2 abstain, 1 unavailable" in found.select_one("#decisions-desc").get_text()


def test_a_log_that_is_away_does_not_take_the_page_with_it(
    service: GateService, page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise AbstainError(Code.NO_SERVICE, "decision log: disk I/O error")

    monkeypatch.setattr(queries, "count_by_interval", away)
    reply = page.get("/")
    assert reply.status_code == 200 and "v1.2.0 is live" in text_of(reply) and "disk I/O error" in text_of(reply)


def test_a_log_that_was_removed_is_said_on_the_page(service: GateService, page: TestClient, tmp_path: Path) -> None:
    assert "was removed or replaced" not in text_of(page.get("/"))
    for file in tmp_path.glob("decisions.sqlite*"):
        file.unlink()
    service.log.record_decision(decision("new")).result()
    assert "The decision log was removed or replaced while this server ran" in text_of(page.get("/"))


@pytest.mark.parametrize("text", [*HOSTILE, "\u05e9\u05dc\u05d5\u05dd \u202eabc", "long " * 5000, "x" * 20_000])
def test_what_people_wrote_is_shown_as_text(service: GateService, page: TestClient, text: str) -> None:
    service.log.record_decision(
        withheld("w-1", question=text, answer=text, contexts=cited(text)),
    ).result()
    drawn = interaction("q", question=text, answer=text, contexts=cited(text))
    fill_queue(service.log.database, [SampledAnswer(drawn, 1.0)], (), datetime.now(UTC))
    replies = [page.get(address) for address in ("/", "/review?id=w-1", "/review")]
    for reply in (*replies, send(page, "/try", question=text, answer=text[:99])):
        assert reply.status_code == 200
        found = BeautifulSoup(reply.text, "html.parser")
        assert not found.find_all(["script", "img", "iframe"])
        assert len(found.find_all("h1")) == 1
        assert text[:90].strip() in html.unescape(reply.text)


def test_any_id_has_its_page(service: GateService, page: TestClient) -> None:
    for key in ("a/b", "?x=1#y", "é % &", "<b>", '"', "a\nb", "..", "a+b"):
        service.log.record_decision(withheld(key, question=f"about {key}")).result()
        found = BeautifulSoup(page.get("/").text, "html.parser")
        address = found.find("a", href="/review?id=" + quote(key, safe=""))["href"]
        opened = page.get(address)
        assert opened.status_code == 200 and f"about {key}" in html.unescape(opened.text)


def test_a_tried_answer_is_explained_and_is_no_traffic(service: GateService, page: TestClient) -> None:
    reply = send(page, "/try", **TRIED)
    said, found = text_of(reply), BeautifulSoup(reply.text, "html.parser")
    assert reply.status_code == 200 and GUARANTEE in said and "threshold 0.500" in said
    scores = {row.th.get_text(): float(row.td.get_text()) for row in found.select("tbody tr") if not row.bdi}
    assert scores.keys() == {"min_log_prob", "probe"} and all(0 <= score <= 1 for score in scores.values())
    pieces = found.select("#pieces mark")
    assert "".join(piece.get_text() for piece in pieces) == TRIED["answer"] and pieces[-2].get_text() == "😀"
    assert {name: found.find(id=name).get_text().strip() for name in TRIED} == TRIED, "to change it and try again"
    assert sum(queries.count_decisions(service.log.database).values()) == 0


def test_an_answer_without_contexts_is_tried_where_that_is_meant(page: TestClient) -> None:
    asked = {**TRIED, "contexts": " \n\n"}
    assert "No decision" in text_of(send(page, "/try", **asked))
    assert "What the scorers say" in text_of(send(page, "/try", **asked, allow_no_context="yes"))


def test_an_answer_that_cannot_be_tried_is_one_line(page: TestClient) -> None:
    reply = send(page, "/try", **{**TRIED, "answer": " "})
    assert reply.status_code == 422 and BeautifulSoup(reply.text, "html.parser").select_one("[role=alert] p")


def test_a_review_is_recorded_once_and_shown(service: GateService, page: TestClient) -> None:
    service.log.record_decision(withheld("w-1")).result()
    assert "reviewed" not in text_of(page.get("/")).partition("Newest withheld")[2].partition("Try")[0]
    for _ in range(2):
        reply = send_review(page, ideal_answer="  5 euros\r\na month ")
        assert reply.status_code == 200 and reply.url.query == b"id=w-1"
    assert "loopback : complete yes, correct no, truthful yes" in text_of(reply)
    found = queries.get_decision(service.log.database, "w-1")
    assert found and len(found.feedback) == 1
    (review,) = found.feedback
    assert isinstance(review, Review) and review.ideal_answer == "5 euros\na month" and not review.correct
    assert "reviewed" in text_of(page.get("/")).partition("Newest withheld")[2].partition("Try")[0]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"correct": ""}, 422),
        ({"correct": "maybe"}, 422),
        ({"interaction_id": "nowhere"}, 403),
        ({"interaction_id": "w-2"}, 403),
        ({"answer_token": ""}, 403),
    ],
)
def test_what_is_no_review_is_not_recorded(
    service: GateService, page: TestClient, changes: dict[str, str], status: int
) -> None:
    service.log.record_decision(withheld("w-1"))
    service.log.record_decision(withheld("w-2")).result()
    assert send_review(page, **changes).status_code == status
    assert queries.count_decisions(service.log.database)["feedback"] == 0


def test_the_queue_is_reviewed_answer_by_answer(service: GateService, page: TestClient, tmp_path: Path) -> None:
    queue_answers(service, "a", "b")
    assert "0 of the 2 answers" in text_of(page.get("/"))
    said = text_of(page.get("/review"))
    assert "Is it a?" in said and "about a" in said and "confidence" not in said
    reply = send_review(page, "/review", ideal_answer=" 5 euros ")
    assert "Saved." in text_of(reply) and "1 of the 2 answers" in text_of(reply) and "Is it b?" in text_of(reply)
    reply = send_review(page, "/review?after=1", correct="yes")
    assert "Nothing is left to review" in text_of(reply) and "2 of the 2 answers" in text_of(reply)
    found = [(row.interaction_id, row.correct, row.ideal_answer) for row in reviews_in(service, tmp_path)]
    assert found == [("a", False, "5 euros"), ("b", True, None)]


def test_a_form_chooses_neither_weight_nor_reviewer(
    service: GateService, guarded: Callable[..., tuple[TestClient, str]], tmp_path: Path
) -> None:
    queue_answers(service, "a", "b", probability=3 / 17)
    ann, key = guarded("review")
    log_in(ann, key)
    forged = {"reviewer": "eve", "inclusion_probability": "0.000001", "probability": "0.5", "reviewed_at": "2020-01-01"}
    assert send_review(ann, "/review", **forged).status_code == 200
    assert send_review(ann, "/review?id=a", interaction_id="b").status_code == 403, "a form is of one answer"
    (review,) = reviews_in(service, tmp_path)
    assert (review.interaction_id, review.reviewer, review.inclusion_probability) == ("a", "ann", 3 / 17)
    assert review.reviewed_at > datetime.now(UTC) - timedelta(minutes=5)


def test_a_form_posted_twice_is_one_review(service: GateService, page: TestClient, tmp_path: Path) -> None:
    queue_answers(service, "a")
    for _ in range(3):
        assert send_review(page, "/review?id=a", ideal_answer="ann@example.com").status_code == 200
    assert len(reviews_in(service, tmp_path)) == 1
    send_review(page, "/review?id=a", correct="yes")
    assert [row.correct for row in reviews_in(service, tmp_path)] == [False, True], "and may be corrected"


def test_two_reviewers_lose_no_verdict(
    service: GateService, guarded: Callable[..., tuple[TestClient, str]], tmp_path: Path
) -> None:
    queue_answers(service, "a", "b")
    browsers = {}
    for name in ("ann", "bob"):
        browsers[name], key = guarded("review", name=name)
        log_in(browsers[name], key)
    assert ["Is it a?" in text_of(each.get("/review")) for each in browsers.values()] == [True, False]
    for each in browsers.values():
        send_review(each, "/review?id=a")
    assert [(row.interaction_id, row.reviewer) for row in reviews_in(service, tmp_path)] == [("a", "ann"), ("a", "bob")]


def test_a_withheld_answer_of_the_queue_has_its_weight(service: GateService, page: TestClient, tmp_path: Path) -> None:
    service.log.record_decision(withheld("w-1", code="A206", reason="too unsure")).result()
    queue_answers(service, "w-1", probability=0.25)
    closed = BeautifulSoup(page.get("/review?id=w-1").text, "html.parser").select_one("details:not([open])")
    assert closed and "A206: too unsure" in closed.get_text(), "what the gate thinks of it is not in sight"
    send_review(page)
    assert [row.inclusion_probability for row in reviews_in(service, tmp_path)] == [0.25]


def test_an_answer_whose_texts_are_gone_is_listed_and_cannot_be_reviewed(
    service: GateService, page: TestClient
) -> None:
    service.log.record_decision(replace(withheld("w-1"), interaction=None)).result()
    assert "not kept" in text_of(page.get("/"))
    reply = page.get("/review?id=w-1")
    assert "not kept" in text_of(reply) and not BeautifulSoup(reply.text, "html.parser").find("form")


def test_shown_answers_have_no_page(service: GateService, page: TestClient) -> None:
    service.log.record_decision(decision("i-1", interaction=interaction("i-1", answer="shown to its asker"))).result()
    reply = page.get("/review?id=i-1")
    assert reply.status_code == 404 and "shown to its asker" not in reply.text


def test_the_page_runs_and_loads_nothing(service: GateService, page: TestClient) -> None:
    service.log.record_decision(withheld("w-1")).result()
    for reply in (
        page.get("/"),
        page.get("/review?id=w-1"),
        page.get("/review"),
        send(page, "/try", **TRIED),
        page.get("/review?id=none"),
    ):
        assert not re.search(r"https?:|//[a-z]|@import|url\(|<script|<iframe|src=| on\w+=| style=", reply.text)
        policy = reply.headers["content-security-policy"]
        (style,) = re.findall(r"<style>(.*?)</style>", reply.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert policy.startswith("default-src 'none'; ") and f"style-src 'sha256-{digest}'" in policy
        assert "unsafe" not in policy and "form-action 'self'" in policy and "frame-ancestors 'none'" in policy
        assert reply.headers["cache-control"] == "no-store"


def test_without_a_key_nothing_is_seen_or_done(
    service: GateService, guarded: Callable[..., tuple[TestClient, str]]
) -> None:
    service.log.record_decision(withheld("w-1", question="a secret")).result()
    stranger, _ = guarded("ask")
    token = token_of(stranger.get("/"))
    replies = [stranger.get("/"), stranger.get("/review?id=w-1"), stranger.get("/review")]
    replies += [
        stranger.post(path, data={"token": token, **TRIED, **VERDICTS}) for path in ("/try", "/review", "/logout")
    ]
    for reply in replies:
        assert reply.status_code == 403 and BeautifulSoup(reply.text, "html.parser").find(id="key")
        assert "v1.2.0" not in reply.text and "a secret" not in reply.text
    assert queries.count_decisions(service.log.database)["feedback"] == 0


def test_a_key_opens_a_session_whose_cookie_no_script_and_no_other_site_gets(
    guarded: Callable[..., tuple[TestClient, str]],
) -> None:
    browser, key = guarded("ask")
    token = token_of(browser.get("/"))
    reply = browser.post("/login", data={"token": token, "key": key}, follow_redirects=False)
    cookie = reply.headers["set-cookie"]
    assert reply.status_code == 303 and "HttpOnly" in cookie and "SameSite=strict" in cookie and key not in cookie
    opened = browser.get("/")
    assert "v1.2.0 is live" in text_of(opened) and key not in opened.text
    assert "ann" in text_of(opened)


@pytest.mark.parametrize("wrong", ["", "abstain_wrong", "ann", "é", "x" * 10_000])
def test_a_wrong_key_opens_nothing_and_is_not_repeated(
    guarded: Callable[..., tuple[TestClient, str]], wrong: str
) -> None:
    browser, _ = guarded("ask")
    reply = log_in(browser, wrong)
    assert reply.status_code == 403 and "no valid key" in text_of(reply) and "v1.2.0" not in reply.text
    assert not wrong or wrong == "ann" or wrong not in reply.text
    assert browser.get("/").status_code == 403


def test_a_form_of_another_session_is_refused(
    service: GateService, guarded: Callable[..., tuple[TestClient, str]]
) -> None:
    service.log.record_decision(withheld("w-1")).result()
    ann, key = guarded("ask", "read_withheld", "review")
    eve, other = guarded("ask", "read_withheld", "review", name="eve")
    log_in(ann, key)
    log_in(eve, other)
    foreign = token_of(eve.get("/"))
    for path in ("/try", "/review", "/logout"):
        for token in (foreign, "", "é"):
            reply = ann.post(path, data={"token": token, **TRIED, **VERDICTS})
            assert reply.status_code == 403 and "another session" in text_of(reply)
    assert queries.count_decisions(service.log.database)["feedback"] == 0 and ann.get("/").status_code == 200, (
        "nor was she logged out"
    )


def test_another_site_cannot_log_somebody_in(guarded: Callable[..., tuple[TestClient, str]]) -> None:
    """Its form has no token of this browser's log-in, however it was got."""
    eve, key = guarded("ask")
    victim, _ = guarded("ask")
    token = token_of(eve.get("/"))
    victim.get("/")
    assert victim.post("/login", data={"token": token, "key": key}).status_code == 403
    victim.cookies.clear()
    assert victim.post("/login", data={"token": token, "key": key}).status_code == 403
    assert victim.get("/").status_code == 403


@pytest.mark.parametrize("token", ["", "0", "é"])
def test_without_keys_a_form_needs_its_token_too(service: GateService, page: TestClient, token: str) -> None:
    service.log.record_decision(withheld("w-1")).result()
    assert send_review(page, token=token).status_code == 403
    assert page.post("/try", data={"token": token, **TRIED}).status_code == 403
    assert queries.count_decisions(service.log.database)["feedback"] == 0


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
def test_a_role_opens_its_part_alone(
    service: GateService,
    guarded: Callable[..., tuple[TestClient, str]],
    roles: list[str],
    may_try: bool,
    may_see: bool,
    may_review: bool,
    has_queue: bool,
) -> None:
    service.log.record_decision(withheld("w-1", question="a secret question", answer="a secret answer")).result()
    queue_answers(service, "drawn")
    browser, key = guarded(*roles)
    log_in(browser, key)
    status, one, queued = browser.get("/"), browser.get("/review?id=w-1"), browser.get("/review")
    assert status.status_code == 200 and ("a secret" in status.text) == may_see
    assert one.status_code == (200 if may_see else 403) and ("a secret" in one.text) == may_see
    assert queued.status_code == (200 if has_queue else 403) and ("Is it drawn?" in queued.text) == has_queue
    assert bool(status.text.count('href="/review"')) == has_queue
    assert bool(BeautifulSoup(status.text, "html.parser").find(id="question")) == may_try
    assert send(browser, "/try", **TRIED).status_code == (200 if may_try else 403)
    assert send_review(browser, token=token_of(status)).status_code == (200 if may_review else 403)
    assert send_review(browser, "/review?id=drawn", token=token_of(status)).status_code == (200 if has_queue else 403)
    found = queries.get_decision(service.log.database, "w-1")
    assert found and [one.reviewer for one in found.feedback if isinstance(one, Review)] == ["ann"] * may_review, (
        "under the name of the key"
    )


def test_a_session_ends_with_its_key_and_with_logging_out(
    guarded: Callable[..., tuple[TestClient, str]], tmp_path: Path
) -> None:
    browser, key = guarded("ask", "read_withheld")
    log_in(browser, key)
    cookie = browser.cookies["abstain-gate"]
    assert browser.get("/").status_code == 200
    send(browser, "/logout")
    assert browser.get("/").status_code == 403
    browser.cookies.set("abstain-gate", cookie)
    assert browser.get("/").status_code == 403, "the session is gone, not the cookie alone"
    browser.cookies.clear()

    log_in(browser, key)
    file = tmp_path / "keys"
    file.write_text(file.read_text().replace("ask,read_withheld", "ask"))
    assert browser.get("/review?id=w-1").status_code == 403, "a role that was taken away"
    assert browser.get("/").status_code == 200
    file.write_text("# nobody")
    assert browser.get("/").status_code == 403


def test_keys_that_became_damaged_let_nobody_in(guarded: Callable[..., tuple[TestClient, str]], tmp_path: Path) -> None:
    browser, key = guarded("ask")
    log_in(browser, key)
    (tmp_path / "keys").write_text("damaged")
    reply = browser.get("/")
    assert reply.status_code == 503 and "v1.2.0" not in reply.text and Code.NO_SERVICE in text_of(reply)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_session_that_is_opened_behind_tls_stays_there(
    guarded: Callable[..., tuple[TestClient, str]], scheme: str
) -> None:
    browser, key = guarded("ask")
    form = {"token": token_of(browser.get("/")), "key": key}
    origin = {"Origin": f"{scheme}://gate.example"}  # as browsers send it with every form
    opened = browser.post("/login", data=form, headers=origin, follow_redirects=False)
    assert opened.status_code == 303 and ("; Secure" in opened.headers["set-cookie"]) is (scheme == "https")


def test_an_unreadable_form_is_refused(page: TestClient) -> None:
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    for body in (b"question=%ff", b"\xff", b"&".join(b"a=%d" % n for n in range(100))):
        assert page.post("/try", content=body, headers=kind).status_code == 422


def test_another_site_gets_nothing_of_a_server_without_keys(page: TestClient) -> None:
    token = token_of(page.get("/"))
    for origin in ("https://evil.example", "null"):
        assert page.post("/try", data={"token": token, **TRIED}, headers={"Origin": origin}).status_code == 403
    assert page.get("/", headers={"Host": "evil.example"}).status_code == 400


def test_the_page_is_no_part_of_the_api(service: GateService) -> None:
    described = make_server(service, ApiKeys()).openapi()["paths"]
    assert "/v1/gate" in described and not {"/", "/try", "/review"} & set(described)


CHINESE = "年费是多少" * 4000


def test_long_texts_of_any_script_can_be_tried(page: TestClient) -> None:
    assert send(page, "/try", **{**TRIED, "answer": CHINESE}).status_code == 200
    assert_refused_by_a_page(page.post("/try", data={"answer": 6 * CHINESE}))


def test_long_texts_need_a_session(guarded: Callable[..., tuple[TestClient, str]]) -> None:
    browser, key = guarded("ask")
    assert_refused_by_a_page(browser.post("/try", data={"answer": CHINESE}))
    assert_refused_by_a_page(browser.post("/try", data={"answer": CHINESE}, headers={"Cookie": "abstain-gate=forged"}))
    log_in(browser, key)
    assert send(browser, "/try", **{**TRIED, "answer": CHINESE}).status_code == 200
    assert_refused_by_a_page(browser.post("/login", data={"key": CHINESE}))


def assert_refused_by_a_page(reply: Response) -> None:
    assert reply.status_code == 413 and "are allowed" in text_of(reply)
    assert reply.headers["content-type"].startswith("text/html")
