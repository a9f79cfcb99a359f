"""LiteLLM's guardrail: the question of the call before, joined with the answer of the call after."""

from typing import Any

import pytest

from abstain.core.codes import Code
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
    assert decision.interaction is not None and decision.interaction.question == QUESTION
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


def test_litellm_withheld_answer_blocks_by_default(connect: Connect, answers: Answers) -> None:
    client = connect()
    ask(client, **WITH_CONTEXTS)
    assert answer(client, answers[1]) == {"action": "BLOCKED", "blocked_reason": WITHHELD}


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


def test_litellm_listed_refusal_is_shown(connect: Connect) -> None:
    client = connect()
    for call_id, text, action in (("1", "I don\u2019t know.", "NONE"), ("2", "I don't know, 5 perhaps.", "BLOCKED")):
        ask(client, litellm_call_id=call_id, **WITH_CONTEXTS)
        assert answer(client, text, litellm_call_id=call_id)["action"] == action
    refusal = client.read_decision("1").decision
    assert (refusal.shown, refusal.code, refusal.interaction.display) == (True, Code.LISTED_REFUSAL, "shown")


def test_litellm_missing_part_is_unavailable(connect: Connect, answers: Answers) -> None:
    client = connect()
    assert answer(client, answers[0], litellm_call_id="no question", **WITH_CONTEXTS)["action"] == "BLOCKED"
    ask(client, **WITH_CONTEXTS)
    assert answer(client, answers[0], litellm_call_id=None, **WITH_CONTEXTS)["action"] == "BLOCKED"
    no_text = {"additional_provider_specific_params": {"contexts": [{"title": "Accounts"}]}}
    ask(client, litellm_call_id="no text of contexts")
    assert answer(client, answers[0], litellm_call_id="no text of contexts", **no_text)["action"] == "BLOCKED"
    assert client.count_decisions() == {"unavailable": 3}


def test_litellm_used_id_shows_no_other_answer(connect: Connect, answers: Answers) -> None:
    client = connect(on_unavailable="show")
    assert answer(client, answers[0], litellm_call_id="unknown") == {"action": "NONE"}
    assert 'decision="unavailable",shown="yes",source="litellm"' in client.read_metrics()
    ask(client, **WITH_CONTEXTS)
    assert answer(client, answers[0]) == answer(client, answers[0]) == {"action": "NONE"}
    assert answer(client, answers[1])["action"] == "BLOCKED"


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
    client = connect(retrieve=retrieve_for_bank, litellm=path)
    for team in ("bank", "guests"):
        changes = {"litellm_call_id": team, "request_data": {"user_api_key_team_alias": team}}
        ask(client, **changes)
        answer(client, answers[0], **changes)
    assert client.count_decisions() == {"show": 1, "unavailable": 1}


def test_litellm_redacted_header_is_no_call_id(connect: Connect, answers: Answers) -> None:
    client = connect(litellm={"call_id": 'request_headers."x-abstain-call-id"'})
    headers = {"request_headers": {"x-abstain-call-id": "[present]"}}
    client.post("/v1/contexts", json=make_registration("[present]", question=QUESTION))
    ask(client, **headers)
    assert answer(client, answers[0], **headers)["action"] == "BLOCKED"
    assert client.count_decisions() == {"unavailable": 1}
