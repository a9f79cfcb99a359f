"""What a caller may send: so many rows a minute, and so many tries of a conversation for each question within an hour."""

from unittest.mock import Mock

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.service.callers import MAX_CALLERS, Quota, QuotaExceeded, get_caller_name
from abstain.serving.service.keys import LOOPBACK_KEY, ApiKey
from abstain.serving.service.tries import PERIOD_S, Tries
from tests.serving.clients import ASKED
from tests.serving.conftest import Connect

FEE = ("key bot", "c1", "What is the fee?")


def test_caller_name_is_of_its_key_or_address() -> None:
    scope = {"type": "http", "client": ("10.0.0.1", 5000)}
    assert get_caller_name(scope, ApiKey("ann", frozenset(), "5e")) == "key ann"
    assert get_caller_name(scope, LOOPBACK_KEY) == get_caller_name(scope, None) == "address 10.0.0.1"
    assert get_caller_name({"type": "http", "client": None}, None) == "address unknown"


def test_quota_is_refilled_evenly_for_each_caller() -> None:
    now = [0.0]
    quota = Quota(60, "rows", lambda: now[0])
    quota.take("a", 60)
    with pytest.raises(QuotaExceeded, match="a has sent 60 rows") as rejected:
        quota.take("a", 2)
    assert rejected.value.retry_after == 2
    quota.take("b")
    now[0] = 2.0
    quota.take("a", 2)
    with pytest.raises(QuotaExceeded):
        quota.take("a")
    quota.take("c", 120)  # once in the time of a longer list
    now[0] = 121.0
    with pytest.raises(QuotaExceeded) as rejected:
        quota.take("c", 120)
    assert rejected.value.retry_after == 1
    now[0] = 122.0
    quota.take("c", 120)


def test_quota_forgets_callers_of_long_ago() -> None:
    now = [0.0]
    quota = Quota(60, "rows", lambda: now[0])
    for number in range(MAX_CALLERS):
        quota.take(str(number))
    now[0] = 1.0
    quota.take("new")
    assert len(quota._used) == 1


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
    endless = Tries(0)
    for number in range(100):
        endless.begin(*FEE, str(number))(True)


def test_tries_begun_at_once_are_limited() -> None:
    tries = Tries(2)
    first, again, _ = (tries.begin(*FEE, answer) for answer in ("a", "a", "b"))
    for give_back in (lambda: None, lambda: again(False)):
        give_back()
        with pytest.raises(AbstainError):
            tries.begin(*FEE, "c")
    first(False)
    tries.begin(*FEE, "c")(True)
    tries.begin(*FEE, "c")(False)
    with pytest.raises(AbstainError):
        tries.begin(*FEE, "d")  # a repeat that failed gives nothing back


@pytest.mark.heavy  # a server of a tiny model: not pure functions
def test_answer_without_a_decision_is_no_try(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect(caller={"max_tries": 1})
    assert client.decide(conversation="c1", contexts=[])["decision"] == "unavailable"
    asked = {**ASKED, "conversation": "c1"}
    with monkeypatch.context() as patch:
        away = Mock(side_effect=AbstainError(Code.NO_SERVICE, "the log is away"))
        patch.setattr(client.service.log, "record_decision", away)
        assert client.post("/v1/gate", json=asked).status_code == 503
    replies = [client.post("/v1/gate", json=asked | {"interaction_id": key}) for key in ("a", "a", "b")]
    assert [reply.status_code for reply in replies] == [200, 200, 409]
    del asked["answer"]
    assert client.post("/v1/answer", json=asked).status_code == 409
