"""The webhooks of gateways: question and answer are joined, and a withheld answer is blocked, masked or replaced."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import pytest

from abstain.config.serve_settings import ServeSettings
from abstain.core.codes import Code
from abstain.serving.gate import Gate
from abstain.serving.gateways.portkey import GRACE_S
from tests.serving.clients import GateClient
from tests.serving.gateways import conftest as gateways
from tests.serving.gateways.conftest import CONTEXTS, WITHHELD, Answers, Connect, make_registration, read_recorded

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

PATH = "/beta/litellm_basic_guardrail_api"
WITH_CONTEXTS = {"additional_provider_specific_params": {"contexts": CONTEXTS}}


def send(client: GateClient, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    return {name: value for name, value in response.json().items() if value is not None}


def ask(client: GateClient, **changes: Any) -> None:
    assert send(client, read_recorded("litellm_request", **changes)) == {"action": "NONE"}


def answer(client: GateClient, *texts: str, **changes: Any) -> dict[str, Any]:
    return send(client, read_recorded("litellm_response", texts=list(texts), **changes))


def test_litellm_call_is_joined_across_two_workers(connect: Connect, answers: Answers) -> None:
    first, second = connect(), connect()
    assert first.post("/v1/contexts", json=make_registration()).status_code == 204
    ask(first)
    assert answer(second, answers[0]) == {"action": "NONE"}
    decision = second.read_decision("call-1").decision
    assert (decision.decision, decision.source, decision.user) == ("show", "litellm", "u-anna")
    assert decision.interaction is not None and decision.interaction.question == gateways.QUESTION
    assert [context.text for context in decision.interaction.contexts] == CONTEXTS
    other = {"litellm_call_id": "call-2"}
    first.post("/v1/contexts", json=make_registration("call-2", question="Registered?"))
    ask(first, structured_messages=[{"role": "user", "content": "And for companies?"}], **other)
    answer(second, answers[0], **other)
    assert second.read_decision("call-2").decision.interaction.question == "Registered?", "it precedes the last message"


def test_litellm_blocks_are_one_answer(connect: Connect, answers: Answers) -> None:
    client, (first, *rest) = connect(litellm_withheld="replace"), answers[0].split(" ")
    ask(client, **WITH_CONTEXTS)
    assert answer(client, first, *(f" {word}" for word in rest)) == {"action": "NONE"}
    assert client.read_decision("call-1").decision.interaction.answer == answers[0]
    other = {"litellm_call_id": "call-2"}
    ask(client, **WITH_CONTEXTS, **other)
    withheld = answer(client, answers[1][:9], answers[1][9:], **other)
    assert withheld == {"action": "GUARDRAIL_INTERVENED", "texts": [WITHHELD, ""]}
    assert client.count_decisions() == {"show": 1, "abstain": 1}


def test_litellm_withheld_answer_names_its_documents(connect: Connect, answers: Answers) -> None:
    client = connect(litellm_withheld="replace", withheld_sources=True)
    contexts = [f"Accounts > Overdraft\n{CONTEXTS[0]}", {"id": "fees#2", "text": CONTEXTS[1]}, "Accounts > Fees\nTen."]
    ask(client, additional_provider_specific_params={"contexts": [*contexts, "No title."]})
    assert answer(client, answers[1])["texts"] == [f"{WITHHELD}\n- Accounts\n- fees"]


def test_litellm_reasoning_is_cut_out(connect: Connect, answers: Answers) -> None:
    client = connect(on_unavailable="show")
    ask(client, **WITH_CONTEXTS)
    cut = answer(client, "<think>Or for ever?</think>\n", answers[0])
    assert cut == {"action": "GUARDRAIL_INTERVENED", "texts": [answers[0], ""]}
    decision = client.read_decision("call-1").decision
    assert (decision.decision, decision.interaction.answer) == ("show", answers[0])
    other = {"litellm_call_id": "call-2"}
    ask(client, **WITH_CONTEXTS, **other)
    assert answer(client, "<think>Or for ever?", **other)["action"] == "BLOCKED"
    assert client.read_decision("call-2").decision.code == Code.ONLY_REASONING


def test_litellm_missing_part_is_unavailable(connect: Connect, answers: Answers) -> None:
    client = connect()
    assert answer(client, answers[0], litellm_call_id="no question", **WITH_CONTEXTS)["action"] == "BLOCKED"
    ask(client, **WITH_CONTEXTS)
    assert answer(client, answers[0], litellm_call_id=None, **WITH_CONTEXTS)["action"] == "BLOCKED"
    assert client.count_decisions() == {"unavailable": 2}


def test_litellm_used_id_shows_no_other_answer(connect: Connect, answers: Answers) -> None:
    client = connect(on_unavailable="show")
    assert answer(client, answers[0], litellm_call_id="unknown") == {"action": "NONE"}
    assert 'decision="unavailable",shown="yes",source="litellm"' in client.read_metrics()
    ask(client, **WITH_CONTEXTS)
    assert answer(client, answers[0]) == answer(client, answers[0]) == {"action": "NONE"}
    assert answer(client, answers[1]) == {"action": "BLOCKED", "blocked_reason": WITHHELD}


def test_litellm_conversation_without_tries_is_withheld(connect: Connect, answers: Answers) -> None:
    limits = {"caller": {"max_tries": 1}, "litellm": {"conversation": "litellm_trace_id"}}
    client, outcomes = connect(on_unavailable="show", **limits), []
    for call_id in ("call-1", "call-2"):
        ids = {"litellm_call_id": call_id, "litellm_trace_id": "c-1"}
        ask(client, **ids, **WITH_CONTEXTS)
        answer(client, answers[0], **ids)
        decision = client.read_decision(call_id).decision
        outcomes.append((decision.code, decision.shown))
    assert outcomes == [(None, True), (Code.TOO_MANY_TRIES, False)]


def test_litellm_contexts_need_entitlements(connect: Connect, answers: Answers) -> None:
    path = {"entitlements": "request_data.user_api_key_team_alias"}
    client = connect(retrieve=gateways.retrieve_for_bank, litellm=path)
    for team in ("bank", "guests"):
        changes = {"litellm_call_id": team, "request_data": {"user_api_key_team_alias": team}}
        ask(client, **changes)
        answer(client, answers[0], **changes)
    assert client.count_decisions() == {"show": 1, "unavailable": 1}


def test_litellm_redacted_header_is_no_call_id(connect: Connect, answers: Answers) -> None:
    client = connect(litellm={"call_id": 'request_headers."x-abstain-call-id"'})
    headers = {"request_headers": {"x-abstain-call-id": "[present]"}}
    client.post("/v1/contexts", json=make_registration("[present]", question=gateways.QUESTION))
    ask(client, **headers)
    assert answer(client, answers[0], **headers)["action"] == "BLOCKED"
    assert client.count_decisions() == {"unavailable": 1}


CALL = {"x-abstain-call-id": "call-1", "x-abstain-user": "anna"}
PREFIX = "/gateways/kgateway"


def ask_kgateway(client: GateClient, headers: dict[str, str] = CALL, *, prefix: str = PREFIX) -> None:
    """Ask the question of a call, whose contexts are registered."""
    client.post("/v1/contexts", json=make_registration(headers["x-abstain-call-id"]))
    sent = client.post(f"{prefix}/request", json=read_recorded("kgateway_request"), headers=headers)
    assert sent.status_code == 200
    assert set(sent.json()["action"]) == {"reason"}, "a PassAction, which has neither body nor status"


def make_choices(*texts: str | None) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}} for text in texts]}


def answer_kgateway(client: GateClient, *texts: str | None) -> dict[str, Any]:
    sent = client.post(f"{PREFIX}/response", json={"body": make_choices(*texts)}, headers=CALL)
    assert sent.status_code == 200, sent.text
    return sent.json()["action"]


@pytest.mark.parametrize("prefix", [PREFIX, ""])
def test_kgateway_shown_answer_passes(connect: Connect, answers: Answers, prefix: str) -> None:
    """Also at the root, for a gateway that knows no path."""
    client = connect()
    ask_kgateway(client, prefix=prefix)
    body = read_recorded("kgateway_response")
    body["body"]["choices"][0]["message"]["content"] = answers[0]
    sent = client.post(f"{prefix}/response", json=body, headers=CALL).json()
    assert set(sent["action"]) == {"reason"}
    decision = client.read_decision("call-1").decision
    assert (decision.interaction.question, decision.user) == (gateways.QUESTION, "u-anna")


def test_kgateway_masks_as_many_choices_or_rejects(connect: Connect, answers: Answers) -> None:
    for how in ("mask", "reject"):
        client = connect(kgateway_withheld=how)
        ask_kgateway(client)
        action = answer_kgateway(client, answers[1], None, answers[0])
        if how == "mask":
            masked = make_choices(WITHHELD, "", answers[0])
            assert action["body"] == masked and action["reason"], "agentgateway takes a null for a pass"
        else:
            assert (action["body"], action["status_code"]) == (WITHHELD, 403)
    choice = {"id": "\ud800", "message": {"role": "assistant", "content": "Yes."}}  # half a surrogate pair
    content, headers = json.dumps({"body": {"choices": [choice]}}), {"content-type": "application/json"}
    sent = connect().post(f"{PREFIX}/response", content=content, headers=headers)
    assert sent.status_code == 200 and sent.json()["action"]["body"]["choices"][0]["message"]["content"] == WITHHELD


def test_kgateway_reasoning_is_masked_refusal_decided_about(connect: Connect, answers: Answers) -> None:
    client, masked = connect(), make_choices(answers[0])
    parts = [{"type": "thinking", "thinking": "For ever?"}, {"type": "text", "text": answers[0]}]
    for call_id, message, body in (
        ("1", {"content": answers[0], "reasoning_content": "For ever?"}, masked),
        ("2", {"content": parts}, masked),
        ("3", {"content": f"<think>For ever?</think>{answers[0]}"}, masked),
        ("4", {"content": None, "refusal": answers[0]}, None),
        ("5", {"content": [{"type": "refusal", "refusal": answers[0]}]}, None),
    ):
        headers = {**CALL, "x-abstain-call-id": call_id}
        ask_kgateway(client, headers)
        choice = {"message": {"role": "assistant", **message}}
        sent = client.post(f"{PREFIX}/response", json={"body": {"choices": [choice]}}, headers=headers)
        assert sent.json()["action"].get("body") == body
        assert client.read_decision(call_id).decision.interaction.answer == answers[0]


def test_kgateway_tool_messages_are_contexts_by_path(connect: Connect, answers: Answers) -> None:
    client = connect(kgateway={"contexts": "messages[?role=='tool'].content"})
    body = read_recorded("kgateway_request")
    body["body"]["messages"][:0] = [{"role": "tool", "content": text} for text in CONTEXTS]
    client.post(f"{PREFIX}/request", json=body, headers=CALL)
    assert "body" not in answer_kgateway(client, answers[0])


def test_kgateway_body_of_another_schema_is_withheld(connect: Connect) -> None:
    client = connect()
    bodies = {2: {"choices": ["Yes.", {"message": "Yes."}]}, 3: {"choices": {"0": "Yes."}}, 4: "Yes.", 5: None}
    for total, body in bodies.items():
        action = client.post(f"{PREFIX}/response", json={"body": body}).json()["action"]
        assert action["body"] == make_choices(*[WITHHELD] * (2 if total == 2 else 1))
        assert client.count_decisions() == {"unavailable": total}


def send_event(client: GateClient, body: dict[str, Any]) -> dict[str, Any]:
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


def test_portkey_withheld_answer_is_replaced(client: GateClient, answers: Answers) -> None:
    client.post("/v1/contexts", json=make_registration())
    event = make_event(*answers)
    event["response"]["json"]["id"] = "\udfff"  # half a surrogate pair
    outcome = send_event(client, event)
    assert outcome["verdict"] is False
    response = outcome["transformedData"]["response"]
    assert [choice["message"]["content"] for choice in response["json"]["choices"]] == [answers[0], WITHHELD]
    assert response["text"] == WITHHELD
    assert response["json"].keys() == event["response"]["json"].keys()
    assert answers[1] not in str(outcome)
    event["request"]["json"] = {"prompt": "How long may an account be overdrawn?"}
    event["response"]["json"]["choices"] = [{"index": 0, "text": answers[1]}]
    completion = send_event(client, event)
    assert completion["verdict"] is False
    assert completion["transformedData"]["response"]["json"]["choices"][0]["text"] == WITHHELD
    assert send_event(client, make_event(answers[1] + "\ud800"))["transformedData"]["response"]["text"] == WITHHELD


def test_portkey_reasoning_is_cut_out(client: GateClient, answers: Answers) -> None:
    client.post("/v1/contexts", json=make_registration())
    event = make_event(f"<think>For ever?</think>{answers[0]}")
    event["response"]["json"]["choices"][0]["message"]["reasoning_content"] = "For ever?"
    outcome = send_event(client, event)
    response = outcome["transformedData"]["response"]
    (choice,) = response["json"]["choices"]
    assert outcome["verdict"] is True and response["text"] == answers[0]
    assert choice["message"] == {"role": "assistant", "content": answers[0]}
    assert "threshold" in outcome["data"]["answers"][0]["reason"]


def test_portkey_missing_part_is_unavailable(client: GateClient, answers: Answers) -> None:
    event = make_event(answers[0])
    assert send_event(client, event)["verdict"] is False, "without contexts"
    client.post("/v1/contexts", json=make_registration())
    event["request"]["json"]["messages"] = []
    assert send_event(client, event)["verdict"] is False, "without a question"
    assert client.count_decisions() == {"unavailable": 2}


def test_portkey_error_of_the_gate_is_no_pass(
    client: GateClient, answers: Answers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service, fail = client.service, Mock(side_effect=RuntimeError("a defect"))
    monkeypatch.setattr(service, "decide", fail)
    assert send_event(client, make_event(answers[0]))["verdict"] is False
    assert client.count_decisions() == {"unavailable": 1} and "a defect" in caplog.text
    for owner, broken in ((service, "record_failure"), (service.gatherer, "get_registered_call")):
        monkeypatch.setattr(owner, broken, fail)
        assert send_event(client, make_event(answers[0]))["verdict"] is False


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """What keeps others waiting for the whole test."""
    event = threading.Event()
    yield event
    event.set()


def test_portkey_slow_decision_is_no_pass(
    connect: Connect, answers: Answers, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ServeSettings().portkey_timeout_s + GRACE_S < 3, "seconds that Portkey waits"
    client = connect(portkey_timeout_s=0.05)
    client.post("/v1/contexts", json=make_registration())
    score_with_model = Gate.score_with_model
    monkeypatch.setattr(Gate, "score_with_model", lambda *inputs: stuck.wait(30) and score_with_model(*inputs))
    assert send_event(client, make_event(answers[0]))["verdict"] is False
    assert client.count_decisions() == {"unavailable": 1}


@pytest.mark.parametrize("slow", ["get_call", "record_decision"])
def test_portkey_slow_log_is_no_pass(
    connect: Connect, answers: Answers, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    client = connect(portkey_timeout_s=0.5, on_unavailable="show")
    client.post("/v1/contexts", json=make_registration())
    never: Callable[..., object] = (lambda *_: stuck.wait(30)) if slow == "get_call" else (lambda *_: Future())
    monkeypatch.setattr(client.service.log, slow, never)
    outcome = send_event(client, make_event(*answers))
    assert outcome["verdict"] is False and outcome["transformedData"]["response"]["text"] == WITHHELD
    assert [summary["decision"] for summary in outcome["data"]["answers"]] == ["unavailable"] * 2
    counts = [line for line in client.read_metrics().splitlines() if line.startswith("abstain_decisions_total")]
    assert len(counts) == 1 and counts[0].endswith(" 2.0")
    assert all(part in counts[0] for part in ('decision="unavailable"', 'shown="no"', 'source="portkey"'))
