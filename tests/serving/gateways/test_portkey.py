"""Portkey's webhook: the verdict comes in time, and a withheld answer is replaced as well as refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from fastapi.testclient import TestClient

from abstain.config.serve_settings import ServeSettings
from abstain.data.decision_log import queries
from abstain.serving.gate import Gate
from abstain.serving.gateways.portkey import GRACE_S
from abstain.serving.service.gate_service import GateService
from tests.serving.gateways.conftest import WITHHELD, counted, registered

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

Recorded = Callable[..., dict[str, Any]]
Worker = Callable[..., GateService]
Connect = Callable[..., TestClient]
PATH = "/gateways/portkey"
PORTKEY_WAITS_S = 3.0


def verdict(client: TestClient, body: dict[str, Any]) -> dict[str, Any]:
    sent = client.post(PATH, content=json.dumps(body), headers={"content-type": "application/json"})
    assert sent.status_code == 200, sent.text
    found: dict[str, Any] = sent.json()
    return found


def after(recorded: Recorded, *texts: str | None) -> dict[str, Any]:
    body = recorded("portkey_after")
    body["response"]["json"]["choices"] = [
        {"index": at, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for at, text in enumerate(texts)
    ]
    body["response"]["text"] = texts[-1] or ""
    return body


def test_what_comes_before_the_call_passes(make_worker: Worker, connect: Connect, recorded: Recorded) -> None:
    worker = make_worker()
    assert verdict(connect(worker), recorded("portkey_before"))["verdict"] is True
    assert counted(worker) == {}


def test_a_shown_answer_passes_unchanged(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    worker = make_worker()
    client = connect(worker)
    client.post("/v1/contexts", json=registered("call-1"))
    found = verdict(client, after(recorded, answers[0]))
    assert found["verdict"] is True and "transformedData" not in found
    (told,) = found["data"]["answers"]
    logged = queries.get_decision(worker.log.database, told["interaction_id"])
    assert logged is not None and (logged.decision.decision, logged.decision.source) == ("show", "portkey")


def test_a_question_that_was_registered_goes_before_the_last_message(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    worker = make_worker()
    client = connect(worker)
    client.post("/v1/contexts", json=registered("call-1", question="How long may a company's be overdrawn?"))
    (told,) = verdict(client, after(recorded, answers[0]))["data"]["answers"]
    logged = queries.get_decision(worker.log.database, told["interaction_id"])
    assert logged is not None and logged.decision.interaction is not None
    assert logged.decision.interaction.question == "How long may a company's be overdrawn?"


def test_a_withheld_answer_is_refused_and_its_text_is_replaced_in_a_whole_response(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    shown, withheld = answers
    client = connect(make_worker())
    client.post("/v1/contexts", json=registered("call-1"))
    sent = after(recorded, shown, withheld)
    found = verdict(client, sent)
    assert found["verdict"] is False
    response = found["transformedData"]["response"]
    assert [one["message"]["content"] for one in response["json"]["choices"]] == [shown, WITHHELD]
    assert response["text"] == WITHHELD
    assert response["json"].keys() == sent["response"]["json"].keys()
    assert withheld not in str(found)


@pytest.mark.parametrize("lacking", ["contexts", "question", "answer"])
def test_what_was_not_found_is_no_pass(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str], lacking: str
) -> None:
    worker = make_worker()
    client = connect(worker)
    body = after(recorded, answers[0])
    if lacking != "contexts":
        client.post("/v1/contexts", json=registered("call-1"))
    if lacking == "question":
        body["request"]["json"]["messages"] = []
    if lacking == "answer":
        body["response"] = {"json": {"output": [answers[0]]}, "text": "", "statusCode": 200}
    assert verdict(client, body)["verdict"] is False
    assert counted(worker) == {"unavailable": 1}


def test_a_completion_is_decided_about_as_a_chat_is(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    client = connect(make_worker())
    client.post("/v1/contexts", json=registered("call-1"))
    body = after(recorded, answers[1])
    body["request"]["json"] = {"prompt": "How long may an account be overdrawn?"}
    body["response"]["json"]["choices"] = [{"index": 0, "text": answers[1]}]
    found = verdict(client, body)
    assert found["verdict"] is False
    assert found["transformedData"]["response"]["json"]["choices"][0]["text"] == WITHHELD


@pytest.mark.parametrize(
    "choice",
    [
        {"message": {"role": "assistant", "content": {"text": "For ever."}}},
        {"message": {"role": "assistant", "content": [{"type": "output", "value": "For ever."}]}},
        {"message": {"role": "assistant", "parts": "For ever."}},
        {"message": {"role": "assistant", "content": {"text": "For ever."}, "tool_calls": [{"id": "t"}]}},
        {"message": "For ever."},
        {"delta": {"content": "For ever."}},
        "For ever.",
    ],
)
def test_a_choice_that_cannot_be_read_is_no_pass(
    make_worker: Worker, connect: Connect, recorded: Recorded, choice: Any
) -> None:
    worker = make_worker()
    body = after(recorded, None, None)
    body["response"]["json"]["choices"][1] = choice
    body["response"]["text"] = "For ever."
    found = verdict(connect(worker), body)
    assert found["verdict"] is False and counted(worker) == {"unavailable": 1}
    assert WITHHELD in str(found["transformedData"]["response"]["json"]["choices"][1])


@pytest.mark.parametrize("message", [{"content": ""}, {"content": []}, {"tool_calls": [{"type": "function"}]}])
def test_a_choice_without_an_answer_passes(
    make_worker: Worker, connect: Connect, recorded: Recorded, message: dict[str, Any]
) -> None:
    worker = make_worker()
    body = after(recorded, None)
    body["response"]["json"]["choices"][0]["message"] = {"role": "assistant", **message}
    assert verdict(connect(worker), body)["verdict"] is True and counted(worker) == {}


def test_half_a_surrogate_pair_is_no_reason_to_pass(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    body = after(recorded, answers[1] + "\ud800")
    body["response"]["json"]["id"] = "\udfff"
    found = verdict(connect(make_worker()), body)
    assert found["verdict"] is False and found["transformedData"]["response"]["text"] == WITHHELD


def test_an_error_of_the_gate_is_no_pass(
    make_worker: Worker,
    connect: Connect,
    recorded: Recorded,
    answers: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = make_worker()

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a defect")

    client = connect(worker)
    monkeypatch.setattr(worker, "decide", fail)
    assert verdict(client, after(recorded, answers[0]))["verdict"] is False
    assert counted(worker) == {"unavailable": 1} and "a defect" in caplog.text
    for of, broken in ((worker, "record_failure"), (worker.gatherer, "get_registered_call")):
        monkeypatch.setattr(of, broken, fail)
        assert verdict(client, after(recorded, answers[0]))["verdict"] is False


def test_a_call_of_tools_passes(make_worker: Worker, connect: Connect, recorded: Recorded) -> None:
    assert verdict(connect(make_worker()), after(recorded, None))["verdict"] is True


def test_the_verdict_is_sent_before_portkey_would_take_the_answer_for_a_good_one() -> None:
    assert ServeSettings().portkey_timeout_s + GRACE_S < PORTKEY_WAITS_S


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """What keeps others waiting for the whole test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def hurried(make_worker: Worker) -> GateService:
    return make_worker(portkey_timeout_s=0.05)


def test_a_decision_that_takes_too_long_is_no_pass(
    hurried: GateService,
    connect: Connect,
    recorded: Recorded,
    answers: tuple[str, str],
    stuck: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = connect(hurried)
    client.post("/v1/contexts", json=registered("call-1"))
    score_with_model = Gate.score_with_model
    monkeypatch.setattr(Gate, "score_with_model", lambda *given: stuck.wait(30) and score_with_model(*given))
    assert verdict(client, after(recorded, answers[0]))["verdict"] is False
    assert counted(hurried) == {"unavailable": 1}
    stuck.set()


@pytest.mark.parametrize("on_unavailable", ["abstain", "show"])
@pytest.mark.parametrize("slow", ["get_call", "record_decision"])
def test_a_log_that_takes_too_long_is_no_pass(
    make_worker: Worker,
    connect: Connect,
    recorded: Recorded,
    answers: tuple[str, str],
    stuck: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    on_unavailable: str,
    slow: str,
) -> None:
    """What the log does not take in time is withheld, and counted."""
    worker = make_worker(portkey_timeout_s=0.5, on_unavailable=on_unavailable)
    client = connect(worker)
    client.post("/v1/contexts", json=registered("call-1"))
    never: Callable[..., object] = (lambda *_: stuck.wait(30)) if slow == "get_call" else (lambda *_: Future())
    monkeypatch.setattr(worker.log, slow, never)
    found = verdict(client, after(recorded, *answers))
    assert found["verdict"] is False and found["transformedData"]["response"]["text"] == WITHHELD
    assert [one["decision"] for one in found["data"]["answers"]] == ["unavailable"] * 2
    counts = [line for line in client.get("/metrics").text.splitlines() if line.startswith("abstain_decisions_total")]
    assert len(counts) == 1 and counts[0].endswith(" 2.0")
    assert all(part in counts[0] for part in ('decision="unavailable"', 'shown="no"', 'source="portkey"'))
    stuck.set()
