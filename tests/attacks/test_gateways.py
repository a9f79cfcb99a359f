"""Answers in fields and shapes that a gateway's adapter does not read: none passes without a decision."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from abstain.serving.service.gate_service import GateService
from tests.attacks.conftest import Count
from tests.serving.conftest import model, settings  # noqa: F401
from tests.serving.gateways.conftest import (  # noqa: F401
    QUESTION,
    answers,
    connect,
    counted,
    gate_folder,
    make_worker,
    open_log,
    registered,
)

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

PATHS = {
    "litellm": "/beta/litellm_basic_guardrail_api",
    "kgateway": "/gateways/kgateway/response",
    "portkey": "/gateways/portkey",
}
GIVEN = json.loads((Path(__file__).parent / "gateway_answers.json").read_text())
"""Gateway -> what it sends after a call. `passes`: why that passes; `EVIL` is an answer that is withheld, `GOOD` one that
is shown, `CALL` the id of a call whose question and contexts are registered."""


def count(worker: GateService, source: str) -> dict[str, int]:
    """What this gateway let pass undecided, by its reason, and all decisions."""
    (figure,) = worker.metrics.passed.collect()
    undecided = [one for one in figure.samples if one.name.endswith("_total") and one.labels["source"] == source]
    return {one.labels["reason"]: int(one.value) for one in undecided} | {"decided": sum(counted(worker).values())}


def is_shown(gateway: str, reply: dict[str, Any]) -> bool:
    """Whether the gateway would give the answer to its reader."""
    if gateway == "kgateway":
        return set(reply["action"]) == {"reason"}
    return reply.get("action") == "NONE" if gateway == "litellm" else reply.get("verdict") is True


def send(client: TestClient, gateway: str, body: Any, call_id: str) -> httpx.Response:
    headers = {"x-abstain-call-id": call_id, "content-type": "application/json"}
    sent = client.post(PATHS[gateway], content=json.dumps(body), headers=headers)
    assert sent.status_code in (200, 422), sent.text
    return sent


@pytest.mark.parametrize("withheld", ["refused", "replaced"])
@pytest.mark.parametrize("gateway", PATHS)
def test_no_text_passes_undecided(
    gateway: str,
    withheld: str,
    make_worker: Callable[..., GateService],  # noqa: F811
    connect: Callable[..., TestClient],  # noqa: F811
    answers: tuple[str, str],  # noqa: F811
    assert_repelled: Count,
) -> None:
    refused = {"litellm_withheld": "block", "kgateway_withheld": "reject"}
    worker = make_worker(**(refused if withheld == "refused" else {"litellm_withheld": "replace"}))
    client = connect(worker)
    attempts = repelled = 0
    for at, given in enumerate(GIVEN[gateway]):
        call_id = f"call-{at}"
        client.post("/v1/contexts", json=registered(call_id, question=QUESTION))
        text = json.dumps(given["body"]).replace("CALL", call_id)
        body = json.loads(text.replace("GOOD", answers[0]).replace("EVIL", answers[1]))
        before = count(worker, gateway)
        sent = send(client, gateway, body, call_id)
        shown = sent.status_code == 200 and is_shown(gateway, sent.json())
        more = {what: number - before.get(what, 0) for what, number in count(worker, gateway).items()}
        why, name = given.get("passes"), f"{gateway}: {given['name']}"
        if why is None:
            attempts += 1
            repelled += not shown and answers[1] not in sent.text
            is_refused = sent.status_code == 422 and (gateway == "litellm" or not isinstance(body, dict))
            assert attempts == repelled and (is_refused or more["decided"]), name
        else:
            assert shown and {what: number for what, number in more.items() if number} == {why: 1}, name
    assert_repelled(f"unread fields of {gateway}", attempts, repelled)


def test_no_answer_of_an_odd_size_passes(
    make_worker: Callable[..., GateService],  # noqa: F811
    connect: Callable[..., TestClient],  # noqa: F811
    answers: tuple[str, str],  # noqa: F811
    assert_repelled: Count,
) -> None:
    client = connect(make_worker(on_unavailable="show"))
    bad = answers[1]
    choices = [{"message": {"role": "assistant", "content": bad}}] * 65
    odd: list[tuple[str, Any]] = [
        ("litellm", {"input_type": "response", "texts": [bad] * 65}),
        ("litellm", {"input_type": "response", "texts": [bad] * 10_001}),
        ("kgateway", {"body": {"choices": choices}}),
        ("portkey", {"response": {"json": {"choices": choices}, "text": bad}}),
    ]
    repelled = 0
    for at, (gateway, body) in enumerate(odd):
        sent = send(client, gateway, body, f"odd-{at}")
        repelled += sent.status_code == 422 or not is_shown(gateway, sent.json())
    assert_repelled("too many answers in a request", len(odd), repelled)
