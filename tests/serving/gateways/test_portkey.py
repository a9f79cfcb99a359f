"""Portkey's webhook: the verdict comes in time, and a withheld answer is replaced as well as rejected."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import pytest

from abstain.config.serve_settings import ServeSettings
from abstain.serving.gate import Gate
from abstain.serving.gateways.portkey import GRACE_S
from tests.serving.clients import GateClient
from tests.serving.gateways.conftest import WITHHELD, Answers, Connect, make_registration, read_recorded

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

PORTKEY_WAITS_S = 3.0


def send(client: GateClient, body: dict[str, Any]) -> dict[str, Any]:
    sent = client.post("/gateways/portkey", content=json.dumps(body), headers={"content-type": "application/json"})
    assert sent.status_code == 200, sent.text
    return sent.json()


def make_event(*texts: str | None) -> dict[str, Any]:
    """What is sent after a call."""
    body = read_recorded("portkey_after")
    body["response"]["json"]["choices"] = [
        {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for index, text in enumerate(texts)
    ]
    body["response"]["text"] = texts[-1] or ""
    return body


@pytest.fixture
def client(connect: Connect) -> GateClient:
    return connect()


def test_portkey_shown_answer_passes(client: GateClient, answers: Answers) -> None:
    client.post("/v1/contexts", json=make_registration())
    outcome = send(client, make_event(answers[0]))
    assert outcome["verdict"] is True and "transformedData" not in outcome
    decision = client.read_decision(outcome["data"]["answers"][0]["interaction_id"]).decision
    assert (decision.decision, decision.source) == ("show", "portkey")
    client.post("/v1/contexts", json=make_registration(question="How long may a company's be overdrawn?"))
    (summary,) = send(client, make_event(answers[0]))["data"]["answers"]
    interaction = client.read_decision(summary["interaction_id"]).decision.interaction
    assert interaction.question == "How long may a company's be overdrawn?", "it precedes the last message"


def test_portkey_withheld_answer_is_replaced(client: GateClient, answers: Answers) -> None:
    client.post("/v1/contexts", json=make_registration())
    event = make_event(*answers)
    event["response"]["json"]["id"] = "\udfff"  # half a surrogate pair
    outcome = send(client, event)
    assert outcome["verdict"] is False
    response = outcome["transformedData"]["response"]
    assert [choice["message"]["content"] for choice in response["json"]["choices"]] == [answers[0], WITHHELD]
    assert response["text"] == WITHHELD
    assert response["json"].keys() == event["response"]["json"].keys()
    assert answers[1] not in str(outcome)
    event["request"]["json"] = {"prompt": "How long may an account be overdrawn?"}
    event["response"]["json"]["choices"] = [{"index": 0, "text": answers[1]}]
    completion = send(client, event)
    assert completion["verdict"] is False
    assert completion["transformedData"]["response"]["json"]["choices"][0]["text"] == WITHHELD
    assert send(client, make_event(answers[1] + "\ud800"))["transformedData"]["response"]["text"] == WITHHELD


def test_portkey_reasoning_is_cut_out(client: GateClient, answers: Answers) -> None:
    client.post("/v1/contexts", json=make_registration())
    event = make_event(f"<think>For ever?</think>{answers[0]}")
    event["response"]["json"]["choices"][0]["message"]["reasoning_content"] = "For ever?"
    outcome = send(client, event)
    response = outcome["transformedData"]["response"]
    (choice,) = response["json"]["choices"]
    assert outcome["verdict"] is True and response["text"] == answers[0]
    assert choice["message"] == {"role": "assistant", "content": answers[0]}
    assert "threshold" in outcome["data"]["answers"][0]["reason"]


def test_portkey_missing_part_is_unavailable(client: GateClient, answers: Answers) -> None:
    without_question, without_answer = make_event(answers[0]), make_event(None)
    verdicts = [send(client, make_event(answers[0]))["verdict"]]  # without contexts
    client.post("/v1/contexts", json=make_registration())
    without_question["request"]["json"]["messages"] = []
    without_answer["response"] = {"json": {"output": [answers[0]]}, "text": "", "statusCode": 200}
    verdicts += [send(client, event)["verdict"] for event in (without_question, without_answer)]
    assert verdicts == [False] * 3 and client.count_decisions() == {"unavailable": 3}


def test_portkey_error_of_the_gate_is_no_pass(
    client: GateClient, answers: Answers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service, fail = client.service, Mock(side_effect=RuntimeError("a defect"))
    monkeypatch.setattr(service, "decide", fail)
    assert send(client, make_event(answers[0]))["verdict"] is False
    assert client.count_decisions() == {"unavailable": 1} and "a defect" in caplog.text
    for owner, broken in ((service, "record_failure"), (service.gatherer, "get_registered_call")):
        monkeypatch.setattr(owner, broken, fail)
        assert send(client, make_event(answers[0]))["verdict"] is False


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """What keeps others waiting for the whole test."""
    event = threading.Event()
    yield event
    event.set()


def test_portkey_slow_decision_is_no_pass(
    connect: Connect, answers: Answers, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ServeSettings().portkey_timeout_s + GRACE_S < PORTKEY_WAITS_S
    client = connect(portkey_timeout_s=0.05)
    client.post("/v1/contexts", json=make_registration())
    score_with_model = Gate.score_with_model
    monkeypatch.setattr(Gate, "score_with_model", lambda *inputs: stuck.wait(30) and score_with_model(*inputs))
    assert send(client, make_event(answers[0]))["verdict"] is False
    assert client.count_decisions() == {"unavailable": 1}
    stuck.set()


@pytest.mark.parametrize("slow", ["get_call", "record_decision"])
def test_portkey_slow_log_is_no_pass(
    connect: Connect, answers: Answers, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    client = connect(portkey_timeout_s=0.5, on_unavailable="show")
    client.post("/v1/contexts", json=make_registration())
    never: Callable[..., object] = (lambda *_: stuck.wait(30)) if slow == "get_call" else (lambda *_: Future())
    monkeypatch.setattr(client.service.log, slow, never)
    outcome = send(client, make_event(*answers))
    assert outcome["verdict"] is False and outcome["transformedData"]["response"]["text"] == WITHHELD
    assert [summary["decision"] for summary in outcome["data"]["answers"]] == ["unavailable"] * 2
    counts = [line for line in client.read_metrics().splitlines() if line.startswith("abstain_decisions_total")]
    assert len(counts) == 1 and counts[0].endswith(" 2.0")
    assert all(part in counts[0] for part in ('decision="unavailable"', 'shown="no"', 'source="portkey"'))
    stuck.set()
