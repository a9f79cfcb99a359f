"""Answers in fields and shapes that a gateway's adapter does not read: none passes without a decision."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from abstain.core.codes import Code
from abstain.data.decision_log import queries
from tests.attacks.conftest import Count
from tests.serving.clients import GateClient
from tests.serving.gateways.conftest import QUESTION, Answers, Connect, make_registration

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

PATHS = {
    "litellm": "/beta/litellm_basic_guardrail_api",
    "kgateway": "/gateways/kgateway/response",
    "portkey": "/gateways/portkey",
}
SENT = json.loads((Path(__file__).parent / "gateway_answers.json").read_text())
"""Gateway -> what it sends after a call. `passes`: why that passes; `EVIL` is an answer that is withheld, `GOOD` one that
is shown, `CALL` the id of a call whose question and contexts are registered."""


def count(client: GateClient, source: str) -> dict[str, int]:
    """What this gateway let pass undecided, by its reason, and all decisions."""
    (metric,) = client.service.metrics.passed.collect()
    passed = [sample for sample in metric.samples if sample.name.endswith("_total")]
    undecided = {sample.labels["reason"]: int(sample.value) for sample in passed if sample.labels["source"] == source}
    return undecided | {"decided": sum(client.count_decisions().values())}


def is_shown(gateway: str, reply: dict[str, Any]) -> bool:
    """Whether the gateway would give the answer, as it came, to its reader."""
    if gateway == "kgateway":
        return set(reply["action"]) == {"reason"}
    if gateway == "litellm":
        return reply.get("action") == "NONE"
    return reply.get("verdict") is True and "transformedData" not in reply


def send(client: GateClient, gateway: str, body: Any, call_id: str) -> httpx.Response:
    headers = {"x-abstain-call-id": call_id, "content-type": "application/json"}
    sent = client.post(PATHS[gateway], content=json.dumps(body), headers=headers)
    assert sent.status_code in (200, 422), sent.text
    return sent


@pytest.mark.parametrize(
    ("gateway", "changes"),
    [("litellm", {"litellm_withheld": how}) for how in ("block", "replace")]
    + [("kgateway", {"kgateway_withheld": how}) for how in ("reject", "mask")]
    + [("portkey", {})],
)
def test_gateway_passes_no_text_undecided(
    gateway: str, changes: dict[str, str], connect: Connect, answers: Answers, assert_repelled: Count
) -> None:
    client = connect(**changes)
    attempts = repelled = 0
    for number, row in enumerate(SENT[gateway]):
        call_id = f"call-{number}"
        client.post("/v1/contexts", json=make_registration(call_id, question=QUESTION))
        text = json.dumps(row["body"]).replace("CALL", call_id)
        body = json.loads(text.replace("GOOD", answers[0]).replace("EVIL", answers[1]))
        before = count(client, gateway)
        sent = send(client, gateway, body, call_id)
        shown = sent.status_code == 200 and is_shown(gateway, sent.json())
        more = {kind: total - before.get(kind, 0) for kind, total in count(client, gateway).items()}
        reason, name = row.get("passes"), f"{gateway}: {row['name']}"
        if reason is None:
            attempts += 1
            repelled += not shown and answers[1] not in sent.text
            is_rejected = sent.status_code == 422 and (gateway == "litellm" or not isinstance(body, dict))
            # reasoning without an answer is left out, and then there is nothing to decide about
            assert attempts == repelled and (is_rejected or more["decided"] or more.get("no_text")), name
        else:
            assert shown and {kind: total for kind, total in more.items() if total} == {reason: 1}, name
    assert_repelled(f"unread fields of {gateway}", attempts, repelled)


def test_gateway_withholds_too_many_answers(connect: Connect, answers: Answers, assert_repelled: Count) -> None:
    client, bad = connect(on_unavailable="show"), answers[1]
    choices = [{"message": {"role": "assistant", "content": bad}}] * 65
    bodies: list[tuple[str, Any]] = [
        ("litellm", {"input_type": "response", "texts": [bad] * 10_001}),
        ("kgateway", {"body": {"choices": choices}}),
        ("portkey", {"response": {"json": {"choices": choices}, "text": bad}}),
    ]
    repelled = 0
    for number, (gateway, body) in enumerate(bodies):
        sent = send(client, gateway, body, f"odd-{number}")
        repelled += sent.status_code == 422 or not is_shown(gateway, sent.json())
    assert client.count_decisions() == {"unavailable": 2}
    assert {logged.code for logged in queries.list_withheld(client.service.log.database, 5)} == {Code.TOO_LARGE}
    assert_repelled("too many answers in a request", len(bodies), repelled)
