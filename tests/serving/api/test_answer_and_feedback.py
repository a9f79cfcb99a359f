from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from abstain.core.codes import Code
from abstain.core.contracts import Review, Thumb
from abstain.core.errors import AbstainError
from abstain.data.decision_log import queries
from abstain.serving.api.app import make_app
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys, create_key
from tests.serving.api.conftest import BASE, MadeUpReleases

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

QUESTION = {"question": "What is the fee?", "contexts": ["The fee is 5."], "max_new_tokens": 6}


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for block in filter(None, text.split("\n\n")):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@pytest.fixture(params=["0.0", "1.1"], ids=["shown", "withheld"])
def threshold(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def answering(
    make_service: Callable[..., GateService],
    releases: MadeUpReleases,
    make_release: Callable[..., Path],
    threshold: str,
) -> GateService:
    releases.promote("v1.0.0", make_release(threshold=threshold))
    return make_service()


def test_an_answer_is_told_where_it_is_shown_or_the_key_may_see_withheld_ones(
    answering: GateService, threshold: str
) -> None:
    made = {roles: create_key("x", roles) for roles in (("ask",), ("ask", "read_withheld"))}
    keys = ApiKeys("\n".join(line for _, line in made.values()))
    with TestClient(make_app(answering, keys), BASE) as client:
        seen = {}
        for roles, (key, _) in made.items():
            response = client.post("/v1/answer", json=QUESTION, headers={"Authorization": f"Bearer {key}"})
            assert response.status_code == 200
            seen[roles] = response.json()
    assert seen["ask", "read_withheld"]["answer"]
    is_shown = threshold == "0.0"
    assert seen["ask",]["show"] is is_shown
    assert seen["ask",]["answer"] == (seen["ask", "read_withheld"]["answer"] if is_shown else None)
    assert sum(queries.count_decisions(answering.log.database).values()) == 2


@pytest.mark.parametrize("stream", ["buffered", "optimistic"])
def test_a_streamed_answer_is_held_or_retracted(answering: GateService, threshold: str, stream: str) -> None:
    key, line = create_key("x", ["ask"] if stream == "buffered" else ["ask", "read_withheld"])
    is_shown = threshold == "0.0"
    with TestClient(make_app(answering, ApiKeys(line)), BASE) as client:
        sent = client.post(
            "/v1/answer", json={**QUESTION, "stream": stream}, headers={"Authorization": f"Bearer {key}"}
        )
    assert sent.headers["content-type"].startswith("text/event-stream")
    found = events(sent.text)
    names = [name for name, _ in found]
    assert names.count("decision") == 1
    if stream == "buffered":
        assert names == (["text", "decision"] if is_shown else ["decision"])
    else:
        assert names.count("text") > 1 and names[-1] == ("decision" if is_shown else "retract")
    decision = dict(found)["decision"]
    assert decision["show"] is is_shown
    assert (decision["answer"] is not None) is (is_shown or stream == "optimistic")


def test_a_question_that_leaves_no_room_or_has_no_context(client: TestClient) -> None:
    refused = client.post("/v1/answer", json={**QUESTION, "max_new_tokens": 1000})
    assert refused.status_code == 422 and refused.json()["code"] == "A203"
    found = client.post("/v1/answer", json={**QUESTION, "contexts": []}).json()
    assert (found["decision"], found["show"], found["answer"]) == ("unavailable", False, None)


def test_feedback_is_recorded_once_by_its_id(client: TestClient, service: GateService) -> None:
    thumb = {"feedback_id": "f-1", "interaction_id": "i-1", "thumb": "down", "user": "ann", "comment": "no"}
    assert client.post("/v1/feedback", json=thumb).json() == {"feedback_id": "f-1", "outcome": "recorded"}
    assert client.post("/v1/feedback", json=thumb).json()["outcome"] == "duplicate"
    assert client.post("/v1/feedback", json={**thumb, "thumb": "up"}).status_code == 409
    review = {"feedback_id": "f-2", "interaction_id": "i-1", "reviewer": "bob"}
    review |= {"complete": True, "correct": False, "truthful": True}
    assert client.post("/v1/feedback", json=review).json()["outcome"] == "recorded"
    client.post("/v1/gate", json={"interaction_id": "i-1", "question": "?", "contexts": ["c"], "answer": "5"})
    found = queries.get_decision(service.log.database, "i-1")
    assert found is not None
    kinds = [type(row) for row in found.feedback]
    assert sorted(kinds, key=str) == sorted([Thumb, Review], key=str)


@pytest.mark.parametrize(
    "changes",
    [
        {"thumb": None},
        {"thumb": "sideways"},
        {"thumb": "up", "correct": True},
        {"thumb": None, "reviewer": "bob", "correct": True},
        {"thumb": None, "reviewer": "bob", "correct": True, "complete": True, "truthful": True, "user": "ann"},
        {"correct": "yes", "complete": True, "truthful": 1},
    ],
)
def test_feedback_that_is_neither_a_thumb_nor_a_review_is_refused(client: TestClient, changes: dict[str, Any]) -> None:
    response = client.post("/v1/feedback", json={"feedback_id": "f", "interaction_id": "i", **changes})
    assert response.status_code == 422 and response.json()["code"] == "A103"


def test_text_that_was_sent_is_retracted_where_the_decision_cannot_be_logged(
    client: TestClient, service: GateService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> Any:
        raise AbstainError(Code.NO_SERVICE, "the log is away")

    monkeypatch.setattr(service.log, "record_decision", away)
    found = events(client.post("/v1/answer", json={**QUESTION, "stream": "optimistic"}).text)
    names = [name for name, _ in found]
    assert names[0] == "text" and names[-2:] == ["retract", "problem"] and "decision" not in names


def test_a_buffered_stream_sends_no_withheld_text_even_to_who_may_see_it(
    answering: GateService, threshold: str
) -> None:
    with TestClient(make_app(answering, ApiKeys()), BASE) as client:
        found = events(client.post("/v1/answer", json={**QUESTION, "stream": "buffered"}).text)
    assert [name for name, _ in found] == (["text", "decision"] if threshold == "0.0" else ["decision"])
    assert dict(found)["decision"]["answer"], "which who may see it reads here"
