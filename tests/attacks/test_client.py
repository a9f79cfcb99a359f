"""Texts that keep `HttpGate` from asking: none is a way to have an answer shown, whatever `on_unavailable` says."""

from typing import Any

import pytest

from abstain.serving.gateways.client import HttpGate, decide_if_complete
from tests.attacks.conftest import Count
from tests.serving.gateways.conftest import CONTEXTS, QUESTION, Answers, Connect, make_transport

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions


def test_http_gate_withholds_texts_it_cannot_send(connect: Connect, answers: Answers, assert_repelled: Count) -> None:
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
