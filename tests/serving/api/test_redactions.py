"""Rows whose redaction takes long: what is answered, what is logged, and who waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from abstain.data.decision_log import queries
from abstain.data.decision_log.log import DecisionLog
from abstain.serving.api import redactions
from abstain.serving.api.app import make_app
from abstain.serving.api.keys import Keys
from abstain.serving.api.service import GateService
from tests.serving.api.conftest import BASE, MadeUpReleases

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

SLOW = "a text that is slow to redact"


class Stuck:
    """A redaction that waits at a row with `SLOW` until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, row: Any) -> Any:
        if SLOW in row.canonical():
            self.go.wait(20)
        return row


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    made = Stuck()
    yield made
    made.go.set()


@pytest.fixture
def log(tmp_path: Path, stuck: Stuck) -> Iterator[DecisionLog]:
    opened = DecisionLog.open(f"sqlite:///{tmp_path / 'log.sqlite'}", redact=stuck, pseudonym=str, key=b"digests")
    yield opened
    opened.close()


@pytest.fixture
def client(
    make_service: Callable[..., GateService], releases: MadeUpReleases, make_release: Callable[..., Path]
) -> Iterator[TestClient]:
    releases.promote("v1.0.0", make_release(threshold="0.0"))
    service = make_service(timeout_s=0.5, on_unavailable="show")
    with TestClient(make_app(service, Keys()), BASE) as opened:
        yield opened


def asked(question: str, **more: Any) -> dict[str, Any]:
    return {"question": question, "contexts": ["The fee is 5."], "answer": "5", **more}


def test_what_is_not_redacted_in_time_is_withheld_or_refused(
    client: TestClient, log: DecisionLog, stuck: Stuck
) -> None:
    decided = client.post("/v1/gate", json=asked(SLOW, interaction_id="i")).json()
    assert (decided["decision"], decided["show"]) == ("unavailable", False), "whatever on_unavailable says"
    assert "not redacted within 0.5 s" in decided["reason"]
    thumb = {"feedback_id": "f", "interaction_id": "i", "thumb": "up", "comment": SLOW}
    for path, body in (("/v1/feedback", thumb), ("/v1/contexts", {"call_id": "c", "contexts": [SLOW]})):
        refused = client.post(path, json=body)
        assert refused.status_code == 503 and "not redacted within 0.5 s" in refused.json()["detail"]
    found = queries.find(log.database, "i")
    assert found and (found.texts, found.decision.shown, found.feedback) == ("none", False, ())
    stuck.go.set()
    again = client.post("/v1/gate", json=asked(SLOW, interaction_id="i")).json()
    assert again["show"] is True, "an answer of which nothing is known is decided on anew"
    assert client.post("/v1/feedback", json=thumb).json()["outcome"] == "recorded", "what was refused was not recorded"


def test_slow_rows_keep_the_threads_of_no_shorter_one(client: TestClient) -> None:
    """More long rows than there are threads wait, and a decision is as quick as ever."""
    thumbs = [
        {"feedback_id": f"f-{at}", "interaction_id": "i", "thumb": "up", "comment": SLOW + "." * 1000}
        for at in range(3 * redactions.THREADS)
    ]
    waiting = [threading.Thread(target=lambda body=body: client.post("/v1/feedback", json=body)) for body in thumbs]
    for one in waiting:
        one.start()
    decided = client.post("/v1/gate", json=asked("What is the fee?")).json()
    assert decided["decision"] == "show" and any(one.is_alive() for one in waiting)
    for one in waiting:
        one.join()


def test_a_row_that_was_just_redacted_in_time_is_answered(client: TestClient, stuck: Stuck) -> None:
    threading.Timer(0.2, stuck.go.set).start()
    began = time.monotonic()
    assert client.post("/v1/gate", json=asked(SLOW)).json()["show"] is True
    assert time.monotonic() - began >= 0.15
