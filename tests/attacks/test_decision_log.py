"""Rows that hold up others, pass for others, fill the log or belong to another key; and a log that cannot be used."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from abstain.config.params import load_params
from abstain.config.settings import Settings
from abstain.data.decision_log import database, queries
from abstain.data.decision_log import log as module
from abstain.data.decision_log.log import DecisionLog
from abstain.ingest.privacy.policy import Privacy
from abstain.ingest.privacy.pseudonyms import derive_log_key
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys, create_key
from tests.attacks.conftest import Count
from tests.conftest import ROOT
from tests.data.decision_log.test_log import wait_until
from tests.serving.conftest import model, settings  # noqa: F401
from tests.serving.gateways.conftest import (  # noqa: F401
    CONTEXTS,
    QUESTION,
    answers,
    connect,
    counted,
    gate_folder,
    make_worker,
    registered,
)

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

TWINS = [
    ("+49 30 901820", "+1 212 555 0199"),
    ("help@opal.example.org", "x@evil.example.net"),
    ("4111 1111 1111 1111", "5500 0000 0000 0004"),
    ("DE89370400440532013000", "GB29NWBK60161331926819"),
]
"""Pairs that redaction makes one text of."""
SLOW = {"+1 2 3 4 5 6 7 ": 20_000, "4111 1111 1111 1111 ": 100_000, "a@b.c ": 100_000}
"""What redaction takes longest for, of the texts that were tried, and characters that take it some 0.3 s."""
MOST = 100_000
"""Characters of the texts of a request."""
MakeWorker = Callable[..., GateService]
Connect = Callable[..., TestClient]
Answers = tuple[str, str]


@pytest.fixture
def privacy(settings: Settings) -> Privacy:  # noqa: F811
    """The rules of the params that a project begins with."""
    params = load_params(ROOT / "src/abstain/config/template/params.yaml")
    return Privacy.from_params(params.privacy, settings)


@pytest.fixture
def open_log(tmp_path: Path, settings: Settings, privacy: Privacy) -> Iterator[Callable[[], DecisionLog]]:  # noqa: F811
    """Open a log with these rules, which remembers three calls of each key."""
    opened = []

    def make() -> DecisionLog:
        rules: dict[str, Any] = {"redact": privacy.redact_row, "pseudonym": privacy.get_pseudonym, "calls_each": 3}
        opened.append(DecisionLog.open(f"sqlite:///{tmp_path / 'log.sqlite'}", key=derive_log_key(settings), **rules))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def asked(answer: str, **more: Any) -> dict[str, Any]:
    return {"question": QUESTION, "contexts": CONTEXTS, "answer": answer, **more}


def thumb(key: str, **more: Any) -> dict[str, Any]:
    return {"feedback_id": key, "interaction_id": "i", "thumb": "up", **more}


def review(key: str, **more: Any) -> dict[str, Any]:
    verdicts = {"complete": True, "correct": True, "truthful": True}
    return {"feedback_id": key, "interaction_id": "i", **verdicts, **more}


def key_of(*roles: Any, name: str) -> tuple[str, dict[str, str]]:
    """The line of a new key, and the header that sends it."""
    key, line = create_key(name, roles)
    return line, {"Authorization": f"Bearer {key}"}


def status(client: TestClient, path: str, body: Any, headers: dict[str, str] | None = None) -> int:
    return client.post(path, json=body, headers=headers).status_code


def test_no_answer_gets_the_decision_on_another(
    make_worker: MakeWorker,  # noqa: F811
    connect: Connect,  # noqa: F811
    privacy: Privacy,
    assert_repelled: Count,
) -> None:
    client, repelled = connect(make_worker()), 0
    for number, (one, other) in enumerate((*TWINS, *(twin[::-1] for twin in TWINS))):
        first, second = (f"Call or pay {text} today." for text in (one, other))
        assert privacy.redact(first) == privacy.redact(second) != first
        for path, ask in (("/v1/gate", asked), ("/v1/feedback", None)):
            bodies = [
                ask(text, interaction_id=f"t-{number}") if ask else thumb(f"t-{number}", comment=text)
                for text in (first, first, second)
            ]
            replies = [status(client, path, body) for body in bodies]
            assert replies[:2] == [200, 200], "the same once more is no attempt"
            repelled += replies[2] == 409
    assert_repelled("other texts under a used id", 4 * len(TWINS), repelled)


def test_a_text_that_is_slow_to_redact_delays_nobody(
    make_worker: MakeWorker,  # noqa: F811
    connect: Connect,  # noqa: F811
    answers: Answers,  # noqa: F811
    assert_repelled: Count,
) -> None:
    """Eve sends many at once; what Ann sends then, short or as long, is done before half of them."""
    (line, ann), (other, eve) = (key_of("ask", "feedback", name=name) for name in ("ann", "eve"))
    client, times = connect(make_worker(timeout_s=60), ApiKeys(f"{line}\n{other}")), 3
    status(client, "/v1/feedback", thumb("first", comment="mail a@b.de"), ann)  # what is imported is there
    comments = [(unit * length)[:length].strip() for unit, length in SLOW.items()] * times
    replies: list[int] = []

    def send(number: int) -> None:
        replies.append(status(client, "/v1/feedback", thumb(f"eve-{number}", comment=comments[number]), eve))

    slow = [threading.Thread(target=send, args=(number,)) for number in range(len(comments))]
    for one in slow:
        one.start()
    wait_until(lambda: len(replies) > 0)
    repelled = 0
    for path, body in (("/v1/gate", asked(answers[0])), ("/v1/feedback", thumb("ann", comment=comments[0]))):
        repelled += status(client, path, body, ann) == 200 and len(replies) <= len(comments) // 2
    for one in slow:
        one.join()
    assert replies == [200] * len(comments)
    assert_repelled("slow redactions", 2, repelled)


def test_no_field_takes_more_than_its_part_of_the_log(
    make_worker: MakeWorker,  # noqa: F811
    connect: Connect,  # noqa: F811
    assert_repelled: Count,
) -> None:
    worker = make_worker()
    client, name, text = connect(worker), "n" * 201, "t" * (MOST + 1)
    tried = [
        *(("/v1/gate", asked("a", **{field: name})) for field in ("product", "line_of_business", "group")),
        *(("/v1/gate", asked("a", **{field: name})) for field in ("user", "model")),
        ("/v1/gate", asked("a", writer_scores={name: 1.0})),
        ("/v1/gate", asked("a", writer_scores={str(at): 1.0 for at in range(101)})),
        ("/v1/gate", asked("a", entitlements=[name])),
        ("/v1/gate", asked("a", interaction_id="i" * 1001)),
        ("/v1/gate", asked(text)),
        ("/v1/feedback", thumb("f", comment=text)),
        ("/v1/feedback", thumb("f", user=name)),
        ("/v1/feedback", review("f", reviewer=name)),
        ("/v1/feedback", review("f", reviewer="ann", ideal_answer=text)),
        *(("/v1/contexts", registered("c", **{field: name})) for field in ("user", "product")),
        ("/v1/contexts", registered("c", contexts=[text])),
    ]
    refused = [status(client, path, body) for path, body in tried]
    assert_repelled("long names and texts", len(tried), sum(one in (413, 422) for one in refused))
    assert sum(queries.count_decisions(worker.log.database).values()) == 0


def test_a_registered_call_is_its_keys_alone(
    make_worker: MakeWorker,  # noqa: F811
    connect: Connect,  # noqa: F811
    answers: Answers,  # noqa: F811
    assert_repelled: Count,
) -> None:
    """Eve registers the withheld answer as its own context, floods the log with calls, and asks by the id alone."""
    (line, ann), (other, eve) = (key_of("ask", name=name) for name in ("ann", "eve"))
    client = connect(make_worker(), ApiKeys(f"{line}\n{other}"))
    assert status(client, "/v1/contexts", registered("call", question=QUESTION), ann) == 204
    ours = {"call_id": "call", "answer": answers[0]}
    before = client.post("/v1/gate", json=ours, headers=ann).json()
    assert before["show"] is True
    repelled = 0
    for body in (registered("call", contexts=[answers[1]]), *(registered(f"flood-{at}") for at in range(10))):
        assert status(client, "/v1/contexts", body, eve) == 204
        after = client.post("/v1/gate", json=ours, headers=ann).json()
        repelled += after["confidence"] == before["confidence"]
    theirs = client.post("/v1/gate", json=ours | {"question": QUESTION, "call_id": "flood-0"}, headers=eve).json()
    assert theirs["decision"] == "unavailable", "of the ten calls of one key three are kept"
    read = client.post("/v1/gate", json=ours | {"question": QUESTION}, headers=ann | eve)
    repelled += read.json()["confidence"] != before["confidence"]
    assert_repelled("registered calls of another key", 12, repelled)


def test_nobody_reviews_under_another_name(
    make_worker: MakeWorker,  # noqa: F811
    connect: Connect,  # noqa: F811
    assert_repelled: Count,
) -> None:
    """Nor are words taken for yes and no, or a time or a weight from a caller."""
    (of_thumbs, thumbs), (of_ann, ann) = key_of("feedback", name="thumbs"), key_of("review", name="ann")
    worker = make_worker()
    client = connect(worker, ApiKeys(f"{of_thumbs}\n{of_ann}"))
    tried: list[tuple[dict[str, Any], dict[str, str], int]] = [
        *((review(f"sme-{at}", reviewer=f"sme-{at}"), thumbs, 403) for at in range(5)),
        (review("own"), thumbs, 403),
        *((review(f"as-{name}", reviewer=name), ann, 403) for name in ("thumbs", "Ann", "sme-0")),
        *((review("yes", **{name: "yes"}), ann, 422) for name in ("complete", "correct", "truthful")),
        *((review("one", **{name: 1}), ann, 422) for name in ("complete", "correct", "truthful")),
        (review("late", reviewed_at="1999-01-01T00:00:00Z"), ann, 422),
        (review("heavy", inclusion_probability=1e-6), ann, 422),
        (thumb("both", correct=True), thumbs, 422),
        (thumb("late", given_at="1999-01-01T00:00:00Z"), thumbs, 422),
        (thumb("queue", feedback_id="page/sampled/x"), thumbs, 409),
    ]
    repelled = sum(status(client, "/v1/feedback", body, headers) == wanted for body, headers, wanted in tried)
    assert queries.count_decisions(worker.log.database)["feedback"] == 0
    assert status(client, "/v1/feedback", thumb("f"), thumbs) == status(client, "/v1/feedback", review("r"), ann) == 200
    again = [thumb("f", thumb="down"), thumb("f", interaction_id="j"), thumb("f", comment="no"), thumb("r")]
    repelled += sum(status(client, "/v1/feedback", body, thumbs) == 409 for body in again)
    assert_repelled("forged feedback", len(tried) + len(again), repelled)


def test_one_caller_fills_the_log_no_faster_than_allowed(
    make_worker: MakeWorker,  # noqa: F811
    connect: Connect,  # noqa: F811
    answers: Answers,  # noqa: F811
    assert_repelled: Count,
) -> None:
    (line, eve), (other, ann) = (key_of("ask", "feedback", name=name) for name in ("eve", "ann"))
    worker = make_worker(caller={"rows_per_minute": 5}, on_unavailable="show")
    client = connect(worker, ApiKeys(f"{line}\n{other}"))
    assert status(client, "/v1/gate", [asked(answers[0])] * 5, eve) == 200
    tried = [
        ("/v1/gate", asked(answers[0])),
        ("/v1/gate", [asked(answers[0])] * 64),
        ("/v1/answer", {"question": QUESTION, "contexts": CONTEXTS}),
        ("/v1/feedback", thumb("f")),
        ("/v1/contexts", registered("c")),
    ]
    replies = [client.post(path, json=body, headers=eve) for path, body in tried]
    repelled = sum(one.status_code == 429 and int(one.headers["retry-after"]) >= 1 for one in replies)
    litellm = {"input_type": "response", "litellm_call_id": "c", "texts": [answers[1]]}
    verdict = client.post("/beta/litellm_basic_guardrail_api", json=litellm, headers=eve).json()
    repelled += verdict["action"] == "BLOCKED"
    assert status(client, "/v1/gate", asked(answers[0]), ann) == 200
    assert counted(worker) == {"show": 6}, "what is not decided on is not logged"
    assert_repelled("rows beyond the limit", len(tried) + 1, repelled)


def test_a_log_that_was_deleted_is_missed(
    make_worker: MakeWorker,  # noqa: F811
    connect: Connect,  # noqa: F811
    answers: Answers,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    assert_repelled: Count,
) -> None:
    monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.02)
    client, times = connect(make_worker()), 3
    for at in range(times):
        assert client.post("/v1/gate", json=asked(answers[0], interaction_id="i")).json()["show"] is True
        for one in tmp_path.glob("log.sqlite*"):
            one.unlink()
        wait_until(lambda at=at: f"abstain_log_replaced {at + 1}.0" in client.get("/metrics").text)
    assert client.get("/readyz").status_code == 200
    said = caplog.text.count("the file was removed or replaced")
    assert_repelled("deleted log file", times, said)


@contextmanager
def junk(log: DecisionLog, file: Path, _: pytest.MonkeyPatch) -> Iterator[None]:
    for one in file.parent.glob("log.sqlite*"):
        one.unlink()
    file.write_bytes(b"junk" * 5000)
    yield
    file.unlink()


@contextmanager
def locked(log: DecisionLog, file: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setattr(database, "_PRAGMAS", ("busy_timeout=1",))
    log.database.close()
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


@pytest.mark.parametrize("spoilt", [junk, locked])
def test_a_log_that_takes_no_rows_shows_nothing(
    make_worker: MakeWorker,  # noqa: F811
    connect: Connect,  # noqa: F811
    answers: Answers,  # noqa: F811
    spoilt: Callable[[DecisionLog, Path, pytest.MonkeyPatch], AbstractContextManager[None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    assert_repelled: Count,
) -> None:
    monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.02)
    worker = make_worker(on_unavailable="show")
    client, file = connect(worker), tmp_path / "log.sqlite"
    assert client.get("/readyz").status_code == 200
    litellm = {"input_type": "response", "litellm_call_id": "c", "texts": [answers[0]]}
    with spoilt(worker.log, file, monkeypatch):
        wait_until(lambda: client.get("/readyz").status_code == 503)
        replies = [
            client.post("/v1/gate", json=asked(answers[0])),
            client.post("/v1/gate", json={"call_id": "c", "answer": answers[0]}),
            client.post("/v1/feedback", json=thumb("f", comment="no")),
            client.post("/v1/contexts", json=registered("c")),
            client.get("/readyz"),
            client.post("/beta/litellm_basic_guardrail_api", json=litellm),
        ]
        assert "abstain_log_writable 0.0" in client.get("/metrics").text
    assert replies[0].status_code == replies[2].status_code == replies[3].status_code == 503
    assert replies[-1].json()["action"] == "BLOCKED"
    repelled = sum(str(tmp_path) not in one.text and '"show":true' not in one.text for one in replies)
    wait_until(lambda: client.get("/readyz").status_code == 200)
    assert client.post("/v1/gate", json=asked(answers[0])).json()["show"] is True
    tried = f"{spoilt.__name__} log"
    assert_repelled(tried, len(replies), repelled)
