"""LiteLLM's guardrail: the question of the call before, joined with the answer of the call after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from abstain.core.codes import Code
from abstain.data.decision_log import queries
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys, create_key
from tests.serving.gateways.conftest import CONTEXTS, QUESTION, WITHHELD, counted, nearest, registered

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

PATH = "/beta/litellm_basic_guardrail_api"
Recorded = Callable[..., dict[str, Any]]
Worker = Callable[..., GateService]
Connect = Callable[..., TestClient]


def answered(recorded: Recorded, *texts: str, **changes: Any) -> dict[str, Any]:
    return recorded("litellm_response", texts=list(texts), **changes)


def verdict(client: TestClient, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    return {name: value for name, value in response.json().items() if value is not None}


def ask(client: TestClient, recorded: Recorded, **changes: Any) -> None:
    assert verdict(client, recorded("litellm_request", **changes)) == {"action": "NONE"}


def test_two_workers_join_the_question_and_the_answer_of_a_call(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    before, after = make_worker(), make_worker()
    first, second = connect(before), connect(after)
    assert first.post("/v1/contexts", json=registered("call-1")).status_code == 204
    ask(first, recorded)
    assert verdict(second, answered(recorded, answers[0])) == {"action": "NONE"}
    decided = queries.get_decision(after.log.database, "call-1")
    assert decided is not None
    logged = decided.decision
    assert (logged.decision, logged.source, logged.user) == ("show", "litellm", "u-anna")
    assert logged.interaction is not None
    assert logged.interaction.question == QUESTION
    assert [context.text for context in logged.interaction.contexts] == CONTEXTS


def test_a_question_that_was_registered_goes_before_the_last_message(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    worker = make_worker()
    client = connect(worker)
    client.post("/v1/contexts", json=registered("call-1", question=QUESTION))
    ask(client, recorded, structured_messages=[{"role": "user", "content": "And for companies?"}])
    verdict(client, answered(recorded, answers[0]))
    logged = queries.get_decision(worker.log.database, "call-1")
    assert logged is not None and logged.decision.interaction is not None
    assert logged.decision.interaction.question == QUESTION


def test_a_withheld_answer_is_refused_with_the_text_in_its_place(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    client = connect(make_worker())
    ask(client, recorded, additional_provider_specific_params={"contexts": CONTEXTS})
    assert verdict(client, answered(recorded, answers[1])) == {"action": "BLOCKED", "blocked_reason": WITHHELD}


def test_of_several_choices_those_withheld_are_replaced_where_it_is_set(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    shown, withheld = answers
    client = connect(make_worker(litellm_withheld="replace"))
    ask(client, recorded, additional_provider_specific_params={"contexts": CONTEXTS})
    found = verdict(client, answered(recorded, withheld, shown, ""))
    assert found == {"action": "GUARDRAIL_INTERVENED", "texts": [WITHHELD, shown, ""]}


def test_one_withheld_choice_blocks_a_call_of_several(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    client = connect(make_worker())
    ask(client, recorded, additional_provider_specific_params={"contexts": CONTEXTS})
    assert verdict(client, answered(recorded, *answers))["action"] == "BLOCKED"


@pytest.mark.parametrize("lacking", ["question", "contexts", "call id"])
def test_what_was_not_found_is_unavailable_and_never_clean(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str], lacking: str
) -> None:
    worker = make_worker()
    client = connect(worker)
    given = {"additional_provider_specific_params": {"contexts": [] if lacking == "contexts" else CONTEXTS}}
    if lacking != "question":
        ask(client, recorded, **given)
    call_id = {"litellm_call_id": None} if lacking == "call id" else {}
    assert verdict(client, answered(recorded, answers[0], **call_id, **given))["action"] == "BLOCKED"
    assert counted(worker) == {"unavailable": 1}


def test_unavailable_answers_pass_where_the_server_shows_such(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    client = connect(make_worker(on_unavailable="show"))
    assert verdict(client, answered(recorded, answers[0])) == {"action": "NONE"}


def test_an_id_that_was_used_before_shows_no_other_answer(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    client = connect(make_worker(on_unavailable="show"))
    ask(client, recorded, additional_provider_specific_params={"contexts": CONTEXTS})
    assert verdict(client, answered(recorded, answers[0])) == {"action": "NONE"}
    assert verdict(client, answered(recorded, answers[0])) == {"action": "NONE"}  # the same answer again
    assert verdict(client, answered(recorded, answers[1]))["action"] == "BLOCKED"


def test_a_conversation_without_tries_keeps_the_id_and_shows_nothing(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    limits = {"caller": {"max_tries": 1}, "litellm": {"conversation": "litellm_trace_id"}}
    worker = make_worker(on_unavailable="show", **limits)
    client = connect(worker)
    outcomes = []
    for call_id in ("call-1", "call-2"):
        ids = {"litellm_call_id": call_id, "litellm_trace_id": "c-1"}
        ask(client, recorded, **ids, additional_provider_specific_params={"contexts": CONTEXTS})
        verdict(client, answered(recorded, answers[0], **ids))
        logged = queries.get_decision(worker.log.database, call_id)
        assert logged is not None
        outcomes.append((logged.decision.code, logged.decision.shown))
    assert outcomes == [(None, True), (Code.TOO_MANY_TRIES, False)]


@pytest.mark.parametrize("on_unavailable", ["abstain", "show"])
def test_more_answers_than_allowed_are_withheld_by_one_decision(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str], on_unavailable: str
) -> None:
    worker = make_worker(on_unavailable=on_unavailable, litellm_withheld="replace")
    client = connect(worker)
    ask(client, recorded, additional_provider_specific_params={"contexts": CONTEXTS})
    found = verdict(client, answered(recorded, *[answers[0]] * 65))
    assert found == {"action": "GUARDRAIL_INTERVENED", "texts": [WITHHELD] * 65}
    assert counted(worker) == {"unavailable": 1}
    (logged,) = queries.list_withheld(worker.log.database, 5)
    assert logged.code == Code.TOO_LARGE


def test_a_body_of_wrong_elements_is_refused_by_its_first(
    make_worker: Worker, connect: Connect, recorded: Recorded
) -> None:
    client = connect(make_worker())
    refused = client.post(PATH, json=recorded("litellm_response", texts=[0] * 5_000))
    assert refused.status_code == 422 and len(refused.json()["errors"]) == 1


def test_a_call_of_tools_has_no_answer_to_withhold(make_worker: Worker, connect: Connect, recorded: Recorded) -> None:
    worker = make_worker()
    called = recorded("litellm_response", texts=None, tool_calls=[{"id": "t", "function": {"name": "find"}}])
    assert verdict(connect(worker), called) == {"action": "NONE"}
    assert counted(worker) == {}


def test_contexts_are_retrieved_under_the_entitlements_at_their_path(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    worker = make_worker(nearest, litellm={"entitlements": "request_data.user_api_key_team_alias"})
    client = connect(worker)
    for at, team in enumerate(("bank", "guests")):
        call_id, data = {"litellm_call_id": f"call-{at}"}, {"request_data": {"user_api_key_team_alias": team}}
        ask(client, recorded, **call_id, **data)
        verdict(client, answered(recorded, answers[0], **call_id, **data))
    assert counted(worker) == {"show": 1, "unavailable": 1}


def test_a_header_that_was_not_forwarded_is_no_id(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    worker = make_worker(litellm={"call_id": 'request_headers."x-abstain-call-id"'})
    client = connect(worker)
    headers = {"request_headers": {"x-abstain-call-id": "[present]"}}
    client.post("/v1/contexts", json=registered("[present]", question=QUESTION))
    ask(client, recorded, **headers)
    assert verdict(client, answered(recorded, answers[0], **headers))["action"] == "BLOCKED"
    assert counted(worker) == {"unavailable": 1}


def test_a_key_without_the_role_may_not_ask(make_worker: Worker, connect: Connect, recorded: Recorded) -> None:
    teller, asker = create_key("teller", ["feedback"]), create_key("asker", ["ask"])
    client = connect(make_worker(), ApiKeys(f"{teller[1]}\n{asker[1]}"))
    body = recorded("litellm_request")
    codes = [
        client.post(PATH, json=body, headers={"Authorization": f"Bearer {key}"} if key else {}).status_code
        for key in (None, teller[0], asker[0])
    ]
    assert codes == [401, 403, 200]


def test_contexts_without_a_text_are_unavailable(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    worker = make_worker()
    client = connect(worker)
    ask(client, recorded)
    given = {"additional_provider_specific_params": {"contexts": [{"title": "Accounts"}]}}
    assert verdict(client, answered(recorded, answers[0], **given))["action"] == "BLOCKED"
    assert counted(worker) == {"unavailable": 1}
