"""Ways to have a withheld answer shown at the gate itself: ids that are used again, at once, and forged scores."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response

from abstain.config.serve_settings import CallerLimits
from abstain.serving.service.gate_service import GateService
from tests.attacks.conftest import Count
from tests.serving.conftest import model, settings  # noqa: F401
from tests.serving.gateways.conftest import (  # noqa: F401
    CONTEXTS,
    QUESTION,
    answers,
    connect,
    gate_folder,
    make_worker,
    open_log,
)

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

ROUNDS = 20
Asks = Callable[..., bool]


def ask(client: TestClient, answer: str, **more: Any) -> Response:
    return client.post("/v1/gate", json={"question": QUESTION, "contexts": CONTEXTS, "answer": answer, **more})


def is_shown(sent: Response) -> bool:
    return sent.status_code == 200 and sent.json()["show"] is True


@pytest.fixture
def shows(make_worker: Callable[..., GateService], connect: Callable[..., TestClient]) -> Asks:  # noqa: F811
    """Whether a server shows an answer."""
    client = connect(make_worker())

    def shows(answer: str, **more: Any) -> bool:
        sent = ask(client, answer, **more)
        assert sent.status_code < 500, sent.text
        return is_shown(sent)

    return shows


def test_no_id_that_is_used_again_shows_another_answer(
    shows: Asks,
    answers: tuple[str, str],  # noqa: F811
    assert_repelled: Count,
) -> None:
    good, bad = answers
    assert shows(good, interaction_id="Turn-1")
    ids = ["Turn-1", "Turn-1 ", " Turn-1", "Turn-1\u200b", "turn-1", "Turn-1#0", "\uff34urn-1"]
    shown = [shows(bad, interaction_id=one) for one in ids]
    assert_repelled("the id of a shown answer", len(ids), shown.count(False))


def test_no_race_for_an_id_shows_the_other_answer(
    shows: Asks,
    answers: tuple[str, str],  # noqa: F811
    assert_repelled: Count,
) -> None:
    good, bad = answers
    repelled = 0
    with ThreadPoolExecutor(3) as pool:
        for at in range(ROUNDS):
            asked = (bad, good, bad) if at % 2 else (good, bad, bad)
            shown = pool.map(lambda answer, at=at: shows(answer, interaction_id=f"r-{at}"), asked)
            repelled += sum(not show for show, answer in zip(shown, asked, strict=True) if answer == bad)
    assert_repelled("concurrent answers under one id", 2 * ROUNDS, repelled)


def test_no_forged_score_shows_an_answer(
    shows: Asks,
    answers: tuple[str, str],  # noqa: F811
    assert_repelled: Count,
) -> None:
    forged: list[dict[str, Any]] = [
        {"writer_scores": {"confidence": 1.0}},
        {"token_log_probs": [-0.0] * 5},
        {"model": "gpt"},
        {"show": True},
        {"confidence": 1.0},
        {"threshold": 0.0},
        {"version": "v0.0.1"},
    ]
    shown = [shows(answers[1], **more) for more in forged]
    assert_repelled("forged scores and settings", len(forged), shown.count(False))


@pytest.mark.parametrize("on_unavailable", ["abstain", "show"])
def test_no_more_tries_than_a_conversation_has(
    make_worker: Callable[..., GateService],  # noqa: F811
    connect: Callable[..., TestClient],  # noqa: F811
    answers: tuple[str, str],  # noqa: F811
    on_unavailable: str,
    assert_repelled: Count,
) -> None:
    client = connect(make_worker(caller=CallerLimits(max_tries=2), on_unavailable=on_unavailable))
    good, bad = answers

    def shows(answer: str, conversation: str) -> bool:
        sent = ask(client, answer, conversation=conversation)
        assert sent.status_code in (200, 409), sent.text
        return is_shown(sent)

    assert [shows(bad, "c1"), shows(bad, "c1")] == [False, False]
    shown = [shows(good, "c1") for _ in range(5)]
    assert shows(good, "c2")
    assert_repelled("further answers in a conversation", 5, shown.count(False))
