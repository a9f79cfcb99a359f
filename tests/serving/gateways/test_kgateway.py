"""The guardrail webhook of kgateway: a header joins question and answer, and a withheld answer is masked."""

import json
from typing import Any

import pytest

from tests.serving.clients import GateClient
from tests.serving.gateways.conftest import (
    CONTEXTS,
    QUESTION,
    WITHHELD,
    Answers,
    Connect,
    make_registration,
    read_recorded,
    retrieve_for_bank,
)

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

CALL = {"x-abstain-call-id": "call-1", "x-abstain-user": "anna"}
PREFIX = "/gateways/kgateway"


def ask(client: GateClient, headers: dict[str, str] = CALL, *, prefix: str = PREFIX) -> None:
    sent = client.post(f"{prefix}/request", json=read_recorded("kgateway_request"), headers=headers)
    assert sent.status_code == 200
    assert set(sent.json()["action"]) == {"reason"}, "a PassAction, which has neither body nor status"


def make_choices(*texts: str | None) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}} for text in texts]}


def answer(client: GateClient, *texts: str | None, headers: dict[str, str] = CALL) -> dict[str, Any]:
    sent = client.post(f"{PREFIX}/response", json={"body": make_choices(*texts)}, headers=headers)
    assert sent.status_code == 200, sent.text
    return sent.json()["action"]


@pytest.mark.parametrize("prefix", [PREFIX, ""])
def test_kgateway_shown_answer_passes(connect: Connect, answers: Answers, prefix: str) -> None:
    """Also at the root, for a gateway that knows no path."""
    client = connect()
    client.post("/v1/contexts", json=make_registration())
    ask(client, prefix=prefix)
    body = read_recorded("kgateway_response")
    body["body"]["choices"][0]["message"]["content"] = answers[0]
    sent = client.post(f"{prefix}/response", json=body, headers=CALL).json()
    assert set(sent["action"]) == {"reason"}
    decision = client.read_decision("call-1").decision
    assert decision.interaction is not None
    assert (decision.interaction.question, decision.user) == (QUESTION, "u-anna")


def test_kgateway_masks_as_many_choices_or_rejects(connect: Connect, answers: Answers) -> None:
    for how in ("mask", "reject"):
        client = connect(kgateway_withheld=how)
        client.post("/v1/contexts", json=make_registration())
        ask(client)
        action = answer(client, answers[1], None, answers[0])
        if how == "mask":
            masked = make_choices(WITHHELD, "", answers[0])
            assert action["body"] == masked and action["reason"], "agentgateway takes a null for a pass"
        else:
            assert (action["body"], action["status_code"]) == (WITHHELD, 403)
    choice = {"id": "\ud800", "message": {"role": "assistant", "content": "Yes."}}  # half a surrogate pair
    content, headers = json.dumps({"body": {"choices": [choice]}}), {"content-type": "application/json"}
    sent = connect().post(f"{PREFIX}/response", content=content, headers=headers)
    assert sent.status_code == 200 and sent.json()["action"]["body"]["choices"][0]["message"]["content"] == WITHHELD


def test_kgateway_reasoning_is_masked(connect: Connect, answers: Answers) -> None:
    client = connect()
    client.post("/v1/contexts", json=make_registration())
    ask(client)
    parts = [{"type": "thinking", "thinking": "For ever?"}, {"type": "text", "text": answers[0]}]
    for call_id, message in (
        ("1", {"content": answers[0], "reasoning_content": "For ever?"}),
        ("2", {"content": parts}),
        ("3", {"content": f"<think>For ever?</think>{answers[0]}"}),
    ):
        headers = {**CALL, "x-abstain-call-id": call_id}
        client.post("/v1/contexts", json=make_registration(call_id))
        ask(client, headers)
        choice = {"message": {"role": "assistant", **message}}
        sent = client.post(f"{PREFIX}/response", json={"body": {"choices": [choice]}}, headers=headers)
        assert sent.json()["action"]["body"] == make_choices(answers[0])


def test_kgateway_refusal_is_decided_about(connect: Connect, answers: Answers) -> None:
    client, part = connect(), {"type": "refusal", "refusal": answers[0]}
    for call_id, message in (("1", {"content": None, "refusal": answers[0]}), ("2", {"content": [part]})):
        headers = {**CALL, "x-abstain-call-id": call_id}
        client.post("/v1/contexts", json=make_registration(call_id))
        ask(client, headers)
        choice = {"message": {"role": "assistant", **message}}
        sent = client.post(f"{PREFIX}/response", json={"body": {"choices": [choice]}}, headers=headers)
        assert "body" not in sent.json()["action"]
        assert client.read_decision(call_id).decision.interaction.answer == answers[0]


def test_kgateway_further_piece_of_a_stream_is_masked(connect: Connect, answers: Answers) -> None:
    client = connect(on_unavailable="show")
    client.post("/v1/contexts", json=make_registration())
    ask(client)
    assert "body" not in answer(client, answers[0])
    assert answer(client, "And this follows.")["body"] == make_choices(WITHHELD)


def test_kgateway_tool_messages_are_contexts_by_path(connect: Connect, answers: Answers) -> None:
    client = connect(kgateway={"contexts": "messages[?role=='tool'].content"})
    body = read_recorded("kgateway_request")
    body["body"]["messages"][:0] = [{"role": "tool", "content": text} for text in CONTEXTS]
    client.post(f"{PREFIX}/request", json=body, headers=CALL)
    assert "body" not in answer(client, answers[0])


def test_kgateway_entitlements_come_in_a_header(connect: Connect, answers: Answers) -> None:
    path = {"entitlements": 'from_json(headers."x-abstain-entitlements")'}
    client = connect(retrieve=retrieve_for_bank, kgateway=path)
    ask(client)
    assert "body" not in answer(client, answers[0], headers={**CALL, "x-abstain-entitlements": '["bank", "staff"]'})


def test_kgateway_body_of_another_schema_is_withheld(connect: Connect) -> None:
    client = connect()
    bodies = {2: {"choices": ["Yes.", {"message": "Yes."}]}, 3: {"choices": {"0": "Yes."}}, 4: "Yes.", 5: None}
    for total, body in bodies.items():
        action = client.post(f"{PREFIX}/response", json={"body": body}).json()["action"]
        assert action["body"] == make_choices(*[WITHHELD] * (2 if total == 2 else 1))
        assert client.count_decisions() == {"unavailable": total}
