import json
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from tests.serving.clients import GateClient, make_keys
from tests.serving.conftest import Connect

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

QUESTION = {"question": "What is the fee?", "contexts": ["The fee is 5."], "max_new_tokens": 6}


def parse_events(text: str) -> list[tuple[str, dict[str, Any]]]:
    events = []
    for block in filter(None, text.split("\n\n")):
        name, data = block.split("\n")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


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
