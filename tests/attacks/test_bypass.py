"""Ways to have a withheld answer shown at the gate itself: forged scores, and texts that cannot be sent."""

from typing import Any

import pytest

from abstain.serving.gateways.client import HttpGate, decide_if_complete
from tests.attacks.conftest import Count
from tests.serving.clients import GateClient
from tests.serving.gateways.conftest import CONTEXTS, QUESTION, Answers, Connect, make_transport

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions


def is_shown(client: GateClient, answer: str, **more: Any) -> bool:
    body = {"question": QUESTION, "contexts": CONTEXTS, "answer": answer, **more}
    sent = client.post("/v1/gate", json=body)
    assert sent.status_code < 500, sent.text
    return sent.status_code == 200 and sent.json()["show"] is True


def test_gate_ignores_forged_scores(connect: Connect, answers: Answers, assert_repelled: Count) -> None:
    client = connect()
    forged: list[dict[str, Any]] = [
        {"writer_scores": {"confidence": 1.0}},
        {"token_log_probs": [-0.0] * 5},
        {"model": "gpt"},
        {"show": True},
        {"confidence": 1.0},
        {"threshold": 0.0},
        {"version": "v0.0.1"},
    ]
    shown = [is_shown(client, answers[1], **more) for more in forged]
    assert_repelled("forged scores and settings", len(forged), shown.count(False))


def test_http_gate_withholds_texts_it_cannot_send(connect: Connect, answers: Answers, assert_repelled: Count) -> None:
    """Whatever `on_unavailable` says."""
    gate = HttpGate("http://127.0.0.1", on_unavailable="show", transport=make_transport(connect()))
    shown, bad = answers
    asked: list[tuple[Any, Any, Any]] = [
        (QUESTION, CONTEXTS, bad),
        (QUESTION, CONTEXTS, f"{bad} \ud83d"),
        (f"{QUESTION} \ud83d", CONTEXTS, bad),
        (QUESTION, [f"{text} \ud83d" for text in CONTEXTS], bad),
        (QUESTION, CONTEXTS, bad * 2_000),
        (QUESTION, CONTEXTS, bad * 1_000_000),
        (QUESTION, [CONTEXTS[0] * 200_000], bad),
        (QUESTION, CONTEXTS * 501, bad),
        (QUESTION, CONTEXTS, [bad]),
        (QUESTION, CONTEXTS, {"text": bad}),
        (QUESTION, CONTEXTS, bad.encode()),
        ([QUESTION], CONTEXTS, bad),
        (QUESTION, [None], bad),
        (QUESTION, [bad.encode()], bad),
        (QUESTION, 5, bad),
    ]
    assert decide_if_complete(gate, QUESTION, CONTEXTS, shown).show
    withheld = [not decide_if_complete(gate, *texts).show for texts in asked]
    assert_repelled("texts that cannot be sent", len(asked), sum(withheld))
