import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.gate import Gate
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.schemas import MAX_ANSWERS
from tests.learning.thresholds.builders import make_guarantee
from tests.serving.clients import ASKED, QUESTION, GateClient, make_keys
from tests.serving.conftest import Connect, MakeService, Promote

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions


@pytest.fixture
def slow_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch takes the base model 0.1 s longer."""
    score_with_model = Gate.score_with_model
    monkeypatch.setattr(Gate, "score_with_model", lambda *args: time.sleep(0.1) or score_with_model(*args))


def test_gate_decides_and_logs(client: GateClient) -> None:
    gate = client.service.follower.current.gate
    expected = gate.decide(ASKED["question"], ASKED["contexts"], ASKED["answer"])
    engine = gate.predictor.source.load_engine()
    before = engine.stats.forward_tokens
    decision = client.decide(interaction_id="i-1", user="ann", product="card")
    assert 0 < decision["forward_tokens"] <= engine.stats.forward_tokens - before
    assert decision["confidence"] == pytest.approx(expected.confidence)
    assert decision["show"] == (decision["decision"] == "show") == expected.show
    assert (decision["version"], decision["threshold"]) == ("v1.0.0", 0.5)
    assert decision["guarantee"] == make_guarantee().summarize().model_dump() and decision["components"]
    logged = client.read_decision("i-1").decision
    assert logged.confidence == pytest.approx(expected.confidence)
    assert (logged.user, logged.product) == ("u-ann", "card")
    assert logged.interaction is not None and logged.interaction.answer == "5"


def test_gate_answers_a_list_in_its_order(client: GateClient) -> None:
    asked = [{**ASKED, "answer": text, "interaction_id": f"i-{text}"} for text in ("5", "6", "7 or 8")]
    decisions = client.post("/v1/gate", json=asked).json()
    assert [decision["interaction_id"] for decision in decisions] == ["i-5", "i-6", "i-7 or 8"]
    alone = [client.decide(answer=text)["confidence"] for text in ("5", "6", "7 or 8")]
    assert [decision["confidence"] for decision in decisions] == pytest.approx(alone, abs=1e-5)


def test_gate_without_contexts_is_unavailable(client: GateClient) -> None:
    for changes in ({"contexts": None}, {"contexts": None, "call_id": "c-1"}):
        decision = client.decide(**changes)
        assert decision["decision"] == "unavailable"
    assert "call_id" in decision["reason"]["message"]
    assert 'decision="unavailable",shown="no",source="api"' in client.read_metrics()
    assert client.decide(contexts=None, allow_no_context=True)["decision"] in ("show", "abstain")
    registered = {"call_id": "c-1", "question": ASKED["question"], "contexts": ASKED["contexts"]}
    assert client.post("/v1/contexts", json=registered).status_code == 204
    decision = client.decide(question=None, contexts=None, call_id="c-1")
    assert decision["confidence"] == pytest.approx(client.decide()["confidence"], abs=1e-5)


def test_server_without_a_version_is_not_ready(make_service: MakeService) -> None:
    with GateClient(make_service()) as client:
        assert client.get("/healthz").status_code == 200
        ready = client.get("/readyz")
        assert ready.status_code == 503 and ready.json()["code"] == "A407"
        decision = client.decide(interaction_id="i-1")
        assert (decision["decision"], decision["show"], decision["threshold"]) == ("unavailable", False, None)
        version = client.read_version()
    assert [version[name] for name in ("version", "live_since", "scorer")] == [None] * 3
    assert version["error"]["code"] == "A407"


def test_gate_same_request_is_one_row_and_another_a_conflict(client: GateClient, promote: Promote) -> None:
    first = client.decide(interaction_id="i-1")
    with ThreadPoolExecutor(8) as pool:
        repeated = list(pool.map(lambda _: client.decide(interaction_id="i-1"), range(24)))
    assert {decision["decision"] for decision in repeated} == {first["decision"]}
    rejected = client.post("/v1/gate", json={**ASKED, "answer": "another", "interaction_id": "i-1"})
    assert rejected.status_code == 409 and rejected.headers["content-type"] == "application/problem+json"
    assert sum(client.count_decisions().values()) == 1
    promote("v1.1.0", threshold="0.0" if first["decision"] == "abstain" else "1.1")
    client.service.follower.refresh()
    again, new = client.decide(interaction_id="i-1"), client.decide(interaction_id="i-2")
    assert again["confidence"] == pytest.approx(first["confidence"])
    fields = ("decision", "show", "threshold", "version")
    assert [again[field] for field in fields] == [first[field] for field in fields], "those of its first version"
    assert new["version"] == "v1.1.0" and new["decision"] != first["decision"]
    counts = [line for line in client.read_metrics().splitlines() if line.startswith("abstain_decisions_total")]
    assert sum(float(line.split()[-1]) for line in counts) == 2


def test_gate_bad_input_is_a_problem_of_its_field(client: GateClient) -> None:
    for field, value in (("answer", None), ("answer", ""), ("question", None), ("answr", "5"), ("contexts", "one")):
        for asked in ({**ASKED, field: value}, [ASKED, {**ASKED, field: value}]):
            response = client.post("/v1/gate", json=asked)
            assert response.status_code == 422 and response.headers["content-type"] == "application/problem+json"
            problem = response.json()
            assert field in problem["detail"] and problem["status"] == 422 and problem["code"]
    assert client.count_decisions() == {}


def test_gate_returns_trace_context_and_times(client: GateClient) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    response = client.post("/v1/gate", json=ASKED, headers={"traceparent": trace})
    assert response.headers["traceparent"] == trace
    assert "gate;dur=" in response.headers["server-timing"] and "log;dur=" in response.headers["server-timing"]
    asked = {**ASKED, "interaction_id": "i\r\nSet-Cookie: x=1", "call_id": "\u2028"}
    for headers in ({}, {"traceparent": "00-x\ty"}):
        response = client.post("/v1/gate", json=asked, headers=headers)
        assert response.status_code in (200, 422) and response.json()
        assert not {"traceparent", "set-cookie"} & set(response.headers)


@pytest.mark.usefixtures("slow_model")
def test_gate_slow_decision_or_retrieval_is_unavailable(connect: Connect) -> None:
    client = connect(timeout_s=0.05)
    decision = client.decide()
    assert (decision["decision"], decision["show"]) == ("unavailable", False) and decision["reason"]["code"] == "A509"
    go_on, began = threading.Event(), time.monotonic()
    client.service.gatherer._retrieve = lambda question, entitlements, k: go_on.wait(5) and []
    decision = client.decide(contexts=None, entitlements=["staff"])
    assert time.monotonic() - began < 4 and decision["reason"]["code"] == "A509"
    go_on.set()


def test_gate_list_beyond_the_queue_is_not_decided(connect: Connect) -> None:
    client = connect(caller={"max_queued": 3})
    asked = [{**ASKED, "interaction_id": f"i-{number}"} for number in range(4)]
    rejected = client.post("/v1/gate", json=asked)
    assert rejected.status_code == 429 and int(rejected.headers["retry-after"]) >= 1
    assert client.count_decisions() == {}
    assert client.post("/v1/gate", json=asked[:3]).status_code == 200


@pytest.mark.usefixtures("slow_model")
def test_gate_concurrent_lists_find_room(client: GateClient) -> None:
    with ThreadPoolExecutor(3) as pool:
        replies = list(pool.map(lambda _: client.post("/v1/gate", json=[ASKED] * MAX_ANSWERS), range(3)))
    assert {reply.status_code for reply in replies} == {200}


def test_gate_unexpected_error_is_a_problem_without_text(service: GateService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gate, "score_with_model", Mock(side_effect=RuntimeError("secret")))
    with GateClient(service, raise_server_exceptions=False) as client:
        response = client.post("/v1/gate", json=ASKED)
        assert 'abstain_problems_total{status="500"} 1.0' in client.read_metrics()
    assert response.status_code == 500 and response.headers["content-type"] == "application/problem+json"
    assert "secret" not in response.text


def test_contexts_limit_counts_characters(client: GateClient) -> None:
    texts = {"question": "\u8d39" * 40_000, "contexts": ["\u7528" * 40_000]}
    assert client.post("/v1/contexts", json={"call_id": "c-1", **texts}).status_code == 204
    assert client.post("/v1/contexts", json={"call_id": "c-1", **texts, "contexts": ["x" * 70_000]}).status_code == 413


def parse_events(text: str) -> list[tuple[str, dict[str, Any]]]:
    pairs = [block.removeprefix("event: ").split("\ndata: ") for block in text.split("\n\n") if block]
    return [(name, json.loads(data)) for name, data in pairs]


@pytest.mark.parametrize("threshold", ["0.0", "1.1"], ids=["shown", "withheld"])
def test_answer_needs_a_role_where_it_is_withheld(connect: Connect, threshold: str) -> None:
    keys, headers = make_keys(asker=["ask"], reader=["ask", "read_withheld"])
    client, is_shown = connect(keys, {"threshold": threshold}), threshold == "0.0"

    def stream(name: str, how: str) -> tuple[list[str], dict[str, Any]]:
        sent = client.post("/v1/answer", json={**QUESTION, "stream": how}, headers=headers[name])
        assert sent.headers["content-type"].startswith("text/event-stream")
        events = parse_events(sent.text)
        return [event for event, _ in events], dict(events)["decision"]

    asker, reader = (client.post("/v1/answer", json=QUESTION, headers=sent).json() for sent in headers.values())
    assert reader["answer"] and asker["show"] is is_shown
    assert asker["answer"] == (reader["answer"] if is_shown else None)
    for name, answer in (("asker", asker["answer"]), ("reader", reader["answer"])):
        names, decision = stream(name, "buffered")
        assert names == (["text", "decision"] if is_shown else ["decision"])
        assert (decision["show"], decision["answer"]) == (is_shown, answer)
    rejected = client.post("/v1/answer", json={**QUESTION, "stream": "optimistic"}, headers=headers["asker"])
    assert rejected.status_code == 403 and "event: " not in rejected.text
    names, decision = stream("reader", "optimistic")
    assert names.count("text") > 1 and names[-1] == ("decision" if is_shown else "retract")
    assert names.count("decision") == 1 and (decision["show"], decision["answer"]) == (is_shown, reader["answer"])
    assert sum(client.count_decisions().values()) == 5


def test_answer_stream_is_retracted_where_the_log_fails(client: GateClient, monkeypatch: pytest.MonkeyPatch) -> None:
    away = Mock(side_effect=AbstainError(Code.NO_SERVICE, "the log is away"))
    monkeypatch.setattr(client.service.log, "record_decision", away)
    sent = client.post("/v1/answer", json={**QUESTION, "stream": "optimistic"})
    names = [name for name, _ in parse_events(sent.text)]
    assert names[0] == "text" and names[-2:] == ["retract", "problem"] and "decision" not in names


def test_answer_without_text_can_be_asked_for_again(client: GateClient, spoil: Callable[..., None]) -> None:
    spoil(lambda answer: {"text": ""})
    bodies = [{**QUESTION, "interaction_id": "i"}] * 2 + [{**QUESTION, "interaction_id": "i", "question": "Is it 5?"}]
    sent = [client.post("/v1/answer", json=body) for body in bodies]
    assert [response.status_code for response in sent] == [200, 200, 409]
    assert sent[0].json()["reason"] == sent[1].json()["reason"] and client.count_decisions() == {"abstain": 1}


def test_answer_without_room_is_not_written(client: GateClient) -> None:
    rejected = client.post("/v1/answer", json={**QUESTION, "max_new_tokens": 1000})
    assert rejected.status_code == 422 and rejected.json()["code"] == "A203"
