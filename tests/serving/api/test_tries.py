"""A conversation has some tries for each question, within an hour; another one has its own."""

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.service.tries import PERIOD_S, Tries
from tests.serving.api.conftest import Connect
from tests.serving.clients import ASKED

FEE = ("key bot", "c1", "What is the fee?")


def test_tries_of_a_conversation_are_limited() -> None:
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


def test_tries_begun_at_once_are_limited() -> None:
    tries = Tries(2)
    first, again, _ = (tries.begin(*FEE, answer) for answer in ("a", "a", "b"))
    with pytest.raises(AbstainError):
        tries.begin(*FEE, "c")
    again(False)
    with pytest.raises(AbstainError):
        tries.begin(*FEE, "c")
    first(False)
    tries.begin(*FEE, "c")


def test_tries_failed_repeat_gives_nothing_back() -> None:
    tries = Tries(1)
    tries.begin(*FEE, "a")(True)
    tries.begin(*FEE, "a")(False)
    with pytest.raises(AbstainError):
        tries.begin(*FEE, "b")


def test_tries_without_a_limit_are_endless() -> None:
    tries = Tries(0)
    for number in range(100):
        tries.begin(*FEE, str(number))(True)
    assert tries.begin(*FEE, "one more") is not None


@pytest.mark.heavy  # a server of a tiny model: not pure functions
def test_answer_without_a_decision_is_no_try(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AbstainError(Code.NO_SERVICE, "the log is away")

    client = connect(caller={"max_tries": 1})
    assert client.decide(conversation="c1", contexts=[])["decision"] == "unavailable"
    asked = {**ASKED, "conversation": "c1"}
    with monkeypatch.context() as patch:
        patch.setattr(client.service.log, "record_decision", fail)
        assert client.post("/v1/gate", json=asked).status_code == 503
    replies = [client.post("/v1/gate", json=asked | {"interaction_id": key}) for key in ("a", "a", "b")]
    assert [reply.status_code for reply in replies] == [200, 200, 409]
    del asked["answer"]
    assert client.post("/v1/answer", json=asked).status_code == 409
