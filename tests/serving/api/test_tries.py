"""A conversation has some tries for each question, within an hour; another one has its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.api.app import make_app
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys
from abstain.serving.service.tries import PERIOD_S, Tries
from tests.serving.api.conftest import BASE, MadeUpReleases

FEE = ("key bot", "c1", "What is the fee?")


def test_one_more_answer_than_a_conversation_has_is_refused() -> None:
    now = [0.0]
    tries = Tries(2, clock=lambda: now[0])
    for answer in ("a", "b", "a"):  # the last one comes again
        tries.begin(*FEE, answer)(True)
    with pytest.raises(AbstainError, match="^2 answers to this question"):
        tries.begin("key bot", "c1", " what IS the  fee?", "c")
    for caller, conversation, question in (
        ("key bot", "c2", "What is the fee?"),
        ("key bot", "c1", "And for companies?"),
        ("key other", "c1", "What is the fee?"),
        ("key bot", None, "What is the fee?"),
    ):
        tries.begin(caller, conversation, question, "d")(True)
    now[0] = PERIOD_S
    tries.begin(*FEE, "c")


def test_answers_that_come_at_once_are_no_more_than_there_are() -> None:
    tries = Tries(2)
    first, again, _ = (tries.begin(*FEE, answer) for answer in ("a", "a", "b"))
    with pytest.raises(AbstainError):
        tries.begin(*FEE, "c")
    again(False)
    with pytest.raises(AbstainError):
        tries.begin(*FEE, "c")
    first(False)
    tries.begin(*FEE, "c")


def test_a_repeat_that_fails_gives_nothing_back() -> None:
    tries = Tries(1)
    tries.begin(*FEE, "a")(True)
    tries.begin(*FEE, "a")(False)
    with pytest.raises(AbstainError):
        tries.begin(*FEE, "b")


def test_without_a_limit_every_answer_is_decided_about() -> None:
    tries = Tries(0)
    for at in range(100):
        tries.begin(*FEE, str(at))(True)
    assert tries.begin(*FEE, "one more") is not None


@pytest.mark.heavy  # servers of a tiny model: not pure functions
def test_an_answer_without_a_decision_is_no_try(
    make_service: Callable[..., GateService],
    releases: MadeUpReleases,
    make_release: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    releases.promote("v1.0.0", make_release())
    service = make_service(caller={"max_tries": 1})
    asked = {"question": "What is the fee?", "contexts": ["The fee is 5."], "answer": "5", "conversation": "c1"}

    def refuse(*_: object) -> None:
        raise AbstainError(Code.NO_SERVICE, "the log is away")

    with TestClient(make_app(service, ApiKeys()), BASE) as client:
        unread = client.post("/v1/gate", json=asked | {"contexts": []}).json()
        assert unread["decision"] == "unavailable"
        with monkeypatch.context() as patch:
            patch.setattr(service.log, "record_decision", refuse)
            assert client.post("/v1/gate", json=asked).status_code == 503
        replies = [client.post("/v1/gate", json=asked | {"interaction_id": key}) for key in ("a", "a", "b")]
        assert [one.status_code for one in replies] == [200, 200, 409]
        del asked["answer"]
        assert client.post("/v1/answer", json=asked).status_code == 409
