"""A shadow decides about what production has decided about, is logged, and changes no answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, select

from abstain.config.serve_settings import ServeSettings
from abstain.config.settings import Settings
from abstain.data.decision_log.log import DecisionLog
from abstain.data.decision_log.schema import SHADOWS
from abstain.serving.api.app import make_app
from abstain.serving.gate import Gate
from abstain.serving.predictor import Predictor
from abstain.serving.service import shadow as shadow_module
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys
from abstain.serving.service.version_follower import VersionFollower
from tests.serving.api.conftest import BASE, MadeUpReleases
from tests.serving.api.test_gate_route import ASKED, ask

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

SHADOW = "shadow-0123456789ab"


@pytest.fixture
def start(
    releases: MadeUpReleases,
    make_release: Callable[..., Path],
    settings: Settings,
    log: DecisionLog,
    tmp_path: Path,
) -> Callable[..., Any]:
    """A client of a server whose shadow has these changes of its metadata, and its service."""

    @contextmanager
    def opened(mode: str = "shared", **changes: str) -> Iterator[tuple[TestClient, GateService]]:
        releases.promote("v1.0.0", make_release())
        candidates = MadeUpReleases()
        candidates.promote(SHADOW, make_release(SHADOW, **{"threshold": "0.0", **changes}))
        serving = ServeSettings(shadow=mode)  # type: ignore[arg-type]
        follower, shadow = (
            VersionFollower(of, lambda bundle: Gate.open(bundle, settings)) for of in (releases, candidates)
        )
        service = GateService(follower, log, serving, shadow_follower=shadow)
        service.refresh()
        with TestClient(make_app(service, ApiKeys()), BASE) as client:
            yield client, service

    return opened


def rows(folder: Path) -> list[dict[str, Any]]:
    with create_engine(f"sqlite:///{folder / 'log.sqlite'}").connect() as connection:
        return [dict(row._mapping) for row in connection.execute(select(SHADOWS).order_by(SHADOWS.c.seq))]


def outcomes(client: TestClient, count: int) -> dict[str, int]:
    """What became of so many answers, once it is known."""
    for _ in range(500):
        lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith("abstain_shadow_total{")]
        found = {line.split('"')[1]: int(float(line.rsplit(" ")[-1])) for line in lines}
        if sum(found.values()) >= count:
            return found
        time.sleep(0.01)
    raise AssertionError(found)


def test_it_decides_by_what_production_read_and_its_decision_is_logged(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    with start(mode="shared") as (client, service):
        engine = service.follower.current.gate.predictor.source.load_engine()
        before = engine.stats.forward_tokens
        found = ask(client, interaction_id="i-1")
        alone = engine.stats.forward_tokens - before
        assert outcomes(client, 1) == {"decided": 1}
        assert engine.stats.forward_tokens - before == alone, "no second pass"
        assert (found["version"], found["threshold"]) == ("v1.0.0", 0.5)
        assert f'abstain_shadow_info{{candidate="{SHADOW}"}} 1.0' in client.get("/metrics").text
    (row,) = rows(tmp_path)
    assert (row["interaction_id"], row["candidate"], row["would_show"], row["threshold"]) == ("i-1", SHADOW, True, 0.0)
    assert row["confidence"] == pytest.approx(found["confidence"])


def test_a_repeated_request_and_one_without_a_decision_are_none_of_its_business(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    with start() as (client, _):
        for _ in range(2):
            ask(client, interaction_id="i-1")
        ask(client, contexts=[])
        ask(client, interaction_id="i-2")
        assert outcomes(client, 2) == {"decided": 2}
    assert [row["interaction_id"] for row in rows(tmp_path)] == ["i-1", "i-2"]


def test_an_answer_that_the_base_model_writes_here_is_decided_about_too(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    with start() as (client, _):
        asked = {name: ASKED[name] for name in ("question", "contexts")}
        found = client.post("/v1/answer", json={**asked, "max_new_tokens": 5}).json()
        assert outcomes(client, 1) == {"decided": 1}
    assert rows(tmp_path)[0]["confidence"] == pytest.approx(found["confidence"], abs=1e-6)


@pytest.mark.parametrize(("mode", "outcome"), [("shared", "skipped"), ("full", "decided")])
def test_a_scorer_that_reads_other_states_needs_a_pass_of_its_own(
    start: Callable[..., Any], tmp_path: Path, mode: str, outcome: str
) -> None:
    with start(mode=mode, layer="1") as (client, service):
        found = ask(client, interaction_id="i-1")
        assert outcomes(client, 1) == {outcome: 1}
        expected = service.shadow.follower.current.gate.decide(ASKED["question"], ASKED["contexts"], ASKED["answer"])
    if outcome == "skipped":
        assert rows(tmp_path) == []
    else:
        assert rows(tmp_path)[0]["confidence"] == pytest.approx(expected.confidence, abs=1e-5)
        assert expected.confidence != pytest.approx(found["confidence"], abs=1e-4)


def test_one_that_fails_hurts_no_answer(
    start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score_answers = Predictor.score_answers

    def fails(self: Predictor, *rest: Any) -> Any:
        if self.scorer.metadata["version"] == SHADOW:
            raise RuntimeError("broken")
        return score_answers(self, *rest)

    with start() as (client, _):
        expected = ask(client)
        assert outcomes(client, 1) == {"decided": 1}
        monkeypatch.setattr(Predictor, "score_answers", fails)
        found = ask(client)
        assert outcomes(client, 2) == {"decided": 1, "failed": 1}
        assert (found["decision"], found["confidence"]) == (expected["decision"], expected["confidence"])


def test_a_slow_one_delays_nothing_and_what_it_cannot_take_is_dropped_and_counted(
    start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    decide = shadow_module._decide

    def slow(*given: Any) -> Any:
        go_on.wait(30)
        return decide(*given)

    monkeypatch.setattr(shadow_module, "_decide", slow)
    monkeypatch.setattr(shadow_module, "MAX_QUEUED", 2)
    with start() as (client, _):
        for number in range(5):
            ask(client, interaction_id=f"i-{number}")  # all are answered while the shadow has decided nothing
        assert outcomes(client, 2) == {"dropped": 2}
        go_on.set()
        assert outcomes(client, 5) == {"dropped": 2, "decided": 3}
    assert [row["interaction_id"] for row in rows(tmp_path)] == ["i-0", "i-1", "i-2"]


def test_a_bad_one_is_refused_and_production_decides(start: Callable[..., Any]) -> None:
    with start(layout_digest="another") as (client, service):
        assert ask(client)["decision"] in ("show", "abstain")
        assert service.shadow.follower.current is None and SHADOW in service.shadow.follower.last_error.message
        assert client.get("/v1/version").json()["error"] is None
