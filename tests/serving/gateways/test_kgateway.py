"""The guardrail webhook of kgateway: a header joins question and answer, and a withheld answer is masked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from abstain.data.decision_log import queries
from abstain.serving.service.gate_service import GateService
from tests.serving.gateways.conftest import QUESTION, WITHHELD, counted, nearest, registered

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

Recorded = Callable[..., dict[str, Any]]
Worker = Callable[..., GateService]
Connect = Callable[..., TestClient]
CALL = {"x-abstain-call-id": "call-1", "x-abstain-user": "anna"}
PREFIX = "/gateways/kgateway"


def ask(client: TestClient, recorded: Recorded, headers: dict[str, str] = CALL) -> None:
    sent = client.post(f"{PREFIX}/request", json=recorded("kgateway_request"), headers=headers)
    assert sent.status_code == 200
    assert set(sent.json()["action"]) == {"reason"}, "a PassAction, which has neither body nor status"


def choices(*texts: str | None) -> dict[str, Any]:
    return {"body": {"choices": [{"message": {"role": "assistant", "content": text}} for text in texts]}}


def action(client: TestClient, *texts: str | None, headers: dict[str, str] = CALL) -> dict[str, Any]:
    sent = client.post(f"{PREFIX}/response", json=choices(*texts), headers=headers)
    assert sent.status_code == 200, sent.text
    found: dict[str, Any] = sent.json()["action"]
    return found


def test_a_shown_answer_passes(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    worker = make_worker()
    client = connect(worker)
    client.post("/v1/contexts", json=registered("call-1"))
    ask(client, recorded)
    body = recorded("kgateway_response")
    body["body"]["choices"][0]["message"]["content"] = answers[0]
    sent = client.post(f"{PREFIX}/response", json=body, headers=CALL).json()
    assert set(sent["action"]) == {"reason"}
    logged = queries.get_decision(worker.log.database, "call-1")
    assert logged is not None and logged.decision.interaction is not None
    assert (logged.decision.interaction.question, logged.decision.user) == (QUESTION, "u-anna")


def test_withheld_choices_are_masked_and_stay_as_many(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    shown, withheld = answers
    client = connect(make_worker())
    client.post("/v1/contexts", json=registered("call-1"))
    ask(client, recorded)
    masked = action(client, withheld, None, shown)
    assert masked["body"] == choices(WITHHELD, "", shown)["body"], "agentgateway takes a mask with a null for a pass"
    assert masked["reason"]


def test_a_withheld_answer_is_rejected_where_it_is_set(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    client = connect(make_worker(kgateway_withheld="reject"))
    client.post("/v1/contexts", json=registered("call-1"))
    ask(client, recorded)
    rejected = action(client, answers[1])
    assert (rejected["body"], rejected["status_code"]) == (WITHHELD, 403)


def test_without_an_id_that_joins_them_an_answer_is_masked(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    worker = make_worker()
    client = connect(worker)
    ask(client, recorded, {})
    assert action(client, answers[0], headers={})["body"] == choices(WITHHELD)["body"]
    assert counted(worker) == {"unavailable": 1}


def test_a_further_piece_of_a_streamed_answer_is_masked(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    client = connect(make_worker(on_unavailable="show"))
    client.post("/v1/contexts", json=registered("call-1"))
    ask(client, recorded)
    assert "body" not in action(client, answers[0])
    assert action(client, "And this follows.")["body"] == choices(WITHHELD)["body"]


def test_messages_of_tools_are_contexts_where_the_path_says_so(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    worker = make_worker(kgateway={"contexts": "messages[?role=='tool'].content"})
    client = connect(worker)
    body = recorded("kgateway_request")
    given = [{"role": "tool", "content": text} for text in registered("call-1")["contexts"]]
    body["body"]["messages"] = [*given, *body["body"]["messages"]]
    client.post(f"{PREFIX}/request", json=body, headers=CALL)
    assert "body" not in action(client, answers[0])


def test_entitlements_come_in_a_header_of_the_gateway(
    make_worker: Worker, connect: Connect, recorded: Recorded, answers: tuple[str, str]
) -> None:
    worker = make_worker(nearest, kgateway={"entitlements": 'from_json(headers."x-abstain-entitlements")'})
    client = connect(worker)
    ask(client, recorded)
    assert "body" not in action(client, answers[0], headers={**CALL, "x-abstain-entitlements": '["bank", "staff"]'})


def test_the_webhook_is_at_the_root_where_a_gateway_knows_no_path(
    make_worker: Worker, connect: Connect, recorded: Recorded
) -> None:
    client = connect(make_worker())
    assert client.post("/request", json=recorded("kgateway_request"), headers=CALL).status_code == 200
    assert client.post("/response", json=choices("Yes."), headers=CALL).status_code == 200


def test_half_a_surrogate_pair_beside_the_text_is_no_error(make_worker: Worker, connect: Connect) -> None:
    client = connect(make_worker())
    content = json.dumps({"body": {"choices": [{**choices("Yes.")["body"]["choices"][0], "id": "\ud800"}]}})
    sent = client.post(f"{PREFIX}/response", content=content, headers={**CALL, "content-type": "application/json"})
    assert sent.status_code == 200 and sent.json()["action"]["body"]["choices"][0]["message"]["content"] == WITHHELD


@pytest.mark.parametrize("how", ["mask", "reject"])
@pytest.mark.parametrize(
    "body", [{"choices": ["Yes.", {"message": "Yes."}]}, {"choices": {"0": "Yes."}}, "Yes.", None], ids=str
)
def test_a_body_of_another_schema_is_withheld_and_logged(
    make_worker: Worker, connect: Connect, body: Any, how: str
) -> None:
    worker = make_worker(kgateway_withheld=how)
    sent = connect(worker).post(f"{PREFIX}/response", json={"body": body}, headers=CALL)
    number = 2 if isinstance(body, dict) and isinstance(body["choices"], list) else 1
    told = {"body": choices(*[WITHHELD] * number)["body"]} if how == "mask" else {"body": WITHHELD, "status_code": 403}
    assert sent.status_code == 200 and sent.json()["action"].items() >= told.items()
    assert counted(worker) == {"unavailable": number}
