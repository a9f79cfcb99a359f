"""Rows that pass for others, fill the log or belong to another key; and a log that cannot be used."""

from pathlib import Path
from typing import Any

import pytest

from abstain.data.decision_log import log as module
from tests.attacks.conftest import Count
from tests.data.decision_log.test_log import wait_until
from tests.serving.clients import GateClient, make_keys
from tests.serving.gateways.conftest import CONTEXTS, QUESTION, Answers, Connect, make_registration

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

VERDICTS = ("complete", "correct", "truthful")
MAX_CHARACTERS = 100_000
"""Of the texts of a request."""


@pytest.fixture
def log_options() -> dict[str, Any]:
    """Three calls of each key are remembered."""
    return {"calls_each": 3}


def make_gate_body(answer: str, **more: Any) -> dict[str, Any]:
    return {"question": QUESTION, "contexts": CONTEXTS, "answer": answer, **more}


def thumb(key: str, **more: Any) -> dict[str, Any]:
    return {"feedback_id": key, "interaction_id": "i", "thumb": "up", **more}


def review(key: str, **more: Any) -> dict[str, Any]:
    return {"feedback_id": key, "interaction_id": "i", **dict.fromkeys(VERDICTS, True), **more}


def status(client: GateClient, path: str, body: Any, headers: dict[str, str] | None = None) -> int:
    return client.post(path, json=body, headers=headers).status_code


def test_long_names_and_texts_are_rejected(connect: Connect, assert_repelled: Count) -> None:
    client, name, text = connect(), "n" * 201, "t" * (MAX_CHARACTERS + 1)
    fields: dict[str, Any] = dict.fromkeys(("product", "line_of_business", "group", "user", "model"), name)
    fields |= {"interaction_id": "i" * 1001, "entitlements": [name], "answer": text}
    tried = [
        *(("/v1/gate", make_gate_body(**{"answer": "a", field: value})) for field, value in fields.items()),
        ("/v1/gate", make_gate_body("a", writer_scores={name: 1.0})),
        ("/v1/gate", make_gate_body("a", writer_scores={str(number): 1.0 for number in range(101)})),
        ("/v1/feedback", thumb("f", comment=text)),
        ("/v1/feedback", thumb("f", user=name)),
        ("/v1/feedback", review("f", reviewer=name)),
        ("/v1/feedback", review("f", reviewer="ann", ideal_answer=text)),
        *(("/v1/contexts", make_registration("c", **{field: name})) for field in ("user", "product")),
        ("/v1/contexts", make_registration("c", contexts=[text])),
    ]
    rejected = [status(client, path, body) in (413, 422) for path, body in tried]
    assert_repelled("long names and texts", len(tried), sum(rejected))
    assert client.count_decisions() == {}


def test_registered_call_belongs_to_its_key(connect: Connect, answers: Answers, assert_repelled: Count) -> None:
    """Eve registers the withheld answer as its own context, floods the log with calls, and asks by the id alone."""
    keys, headers = make_keys(ann=["ask"], eve=["ask"])
    client = connect(keys)
    assert status(client, "/v1/contexts", make_registration("call", question=QUESTION), headers["ann"]) == 204

    def decide(name: str, **more: str) -> dict[str, Any]:
        body = {"call_id": "call", "answer": answers[0], **more}
        return client.post("/v1/gate", json=body, headers=headers[name]).json()

    before = decide("ann")
    assert before["show"] is True
    repelled = 0
    for body in (
        make_registration("call", contexts=[answers[1]]),
        *(make_registration(f"flood-{number}") for number in range(10)),
    ):
        assert status(client, "/v1/contexts", body, headers["eve"]) == 204
        repelled += decide("ann")["confidence"] == before["confidence"]
    flooded = decide("eve", question=QUESTION, call_id="flood-0")
    assert flooded["decision"] == "unavailable", "of the ten calls of one key three are kept"
    repelled += decide("eve", question=QUESTION)["confidence"] != before["confidence"]
    assert_repelled("registered calls of another key", 12, repelled)


def test_feedback_cannot_be_forged(connect: Connect, assert_repelled: Count) -> None:
    """Nor are words taken for yes and no, or a time or a weight from a caller."""
    keys, headers = make_keys(thumbs=["feedback"], ann=["review"])
    client, thumbs, ann = connect(keys), headers["thumbs"], headers["ann"]
    tried: list[tuple[dict[str, Any], dict[str, str], int]] = [
        *((review(f"sme-{number}", reviewer=f"sme-{number}"), thumbs, 403) for number in range(5)),
        (review("own"), thumbs, 403),
        *((review(f"as-{name}", reviewer=name), ann, 403) for name in ("thumbs", "Ann", "sme-0")),
        *((review("words", **{name: word}), ann, 422) for name in VERDICTS for word in ("yes", 1)),
        (review("late", reviewed_at="1999-01-01T00:00:00Z"), ann, 422),
        (review("heavy", inclusion_probability=1e-6), ann, 422),
        (thumb("both", correct=True), thumbs, 422),
        (thumb("none", thumb=None), thumbs, 422),
        (thumb("sideways", thumb="sideways"), thumbs, 422),
        (review("part", truthful=None), ann, 422),
        (review("user", user="ann"), ann, 422),
        (thumb("late", given_at="1999-01-01T00:00:00Z"), thumbs, 422),
        (thumb("queue", feedback_id="page/sampled/x"), thumbs, 409),
    ]
    repelled = sum(status(client, "/v1/feedback", body, headers) == code for body, headers, code in tried)
    assert "feedback" not in client.count_decisions()
    assert status(client, "/v1/feedback", thumb("f"), thumbs) == status(client, "/v1/feedback", review("r"), ann) == 200
    named = client.post("/v1/feedback", json=review("r", reviewer="ann"), headers=ann).json()
    assert named["outcome"] == "duplicate", "it was under the name of the key"
    again = [thumb("f", thumb="down"), thumb("f", interaction_id="j"), thumb("f", comment="no"), thumb("r")]
    repelled += sum(status(client, "/v1/feedback", body, thumbs) == 409 for body in again)
    assert_repelled("forged feedback", len(tried) + len(again), repelled)


def test_rows_per_minute_of_a_caller_are_limited(connect: Connect, answers: Answers, assert_repelled: Count) -> None:
    keys, headers = make_keys(ann=["ask", "feedback"], eve=["ask", "feedback"])
    client = connect(keys, caller={"rows_per_minute": 5}, on_unavailable="show")
    assert status(client, "/v1/gate", [make_gate_body(answers[0])] * 5, headers["eve"]) == 200
    tried = [
        ("/v1/gate", make_gate_body(answers[0])),
        ("/v1/gate", [make_gate_body(answers[0])] * 64),
        ("/v1/answer", {"question": QUESTION, "contexts": CONTEXTS}),
        ("/v1/feedback", thumb("f")),
        ("/v1/contexts", make_registration("c")),
    ]
    replies = [client.post(path, json=body, headers=headers["eve"]) for path, body in tried]
    repelled = sum(reply.status_code == 429 and int(reply.headers["retry-after"]) >= 1 for reply in replies)
    litellm = {"input_type": "response", "litellm_call_id": "c", "texts": [answers[1]]}
    outcome = client.post("/beta/litellm_basic_guardrail_api", json=litellm, headers=headers["eve"]).json()
    repelled += outcome["action"] == "BLOCKED"
    assert status(client, "/v1/gate", make_gate_body(answers[0]), headers["ann"]) == 200
    assert client.count_decisions() == {"show": 6}, "what is not decided on is not logged"
    assert_repelled("rows beyond the limit", len(tried) + 1, repelled)


def test_log_that_takes_no_rows_shows_nothing(
    tmp_path: Path, connect: Connect, answers: Answers, monkeypatch: pytest.MonkeyPatch, assert_repelled: Count
) -> None:
    monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.02)
    client, log_file = connect(on_unavailable="show"), tmp_path / "log.sqlite"
    assert client.get("/readyz").status_code == 200
    litellm = {"input_type": "response", "litellm_call_id": "c", "texts": [answers[0]]}
    for part in tmp_path.glob("log.sqlite*"):
        part.unlink()
    log_file.write_bytes(b"junk" * 5000)
    wait_until(lambda: client.get("/readyz").status_code == 503)
    replies = [
        client.post("/v1/gate", json=make_gate_body(answers[0])),
        client.post("/v1/gate", json={"call_id": "c", "answer": answers[0]}),
        client.post("/v1/feedback", json=thumb("f", comment="no")),
        client.post("/v1/contexts", json=make_registration("c")),
        client.get("/readyz"),
        client.post("/beta/litellm_basic_guardrail_api", json=litellm),
    ]
    assert "abstain_log_writable 0.0" in client.read_metrics()
    assert replies[0].status_code == replies[2].status_code == replies[3].status_code == 503
    assert replies[-1].json()["action"] == "BLOCKED"
    repelled = sum(str(tmp_path) not in reply.text and '"show":true' not in reply.text for reply in replies)
    log_file.unlink()
    wait_until(lambda: client.get("/readyz").status_code == 200)
    assert client.decide(**make_gate_body(answers[0]))["show"] is True
    assert_repelled("log of junk", len(replies), repelled)
