import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import select

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.decision_log.schema import SHADOWS
from abstain.serving.api import app
from abstain.serving.predictor import Predictor
from abstain.serving.service import shadow as shadow_module
from abstain.serving.service import version_follower
from abstain.serving.service.gate_service import GateService
from tests.data.decision_log.test_log import wait_until
from tests.serving.clients import ASKED, QUESTION, GateClient
from tests.serving.conftest import Connect, MadeUpReleases, MakeRelease, Promote

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

SHADOW = "shadow-0123456789ab"


def test_refresh_takes_over_and_fails_no_request(client: GateClient, promote: Promote) -> None:
    stop = threading.Event()

    def keep_asking() -> set[str]:
        versions = set()
        while not stop.is_set():
            versions.add(client.decide()["version"])
        return versions

    with ThreadPoolExecutor(3) as pool:
        askers = [pool.submit(keep_asking) for _ in range(3)]
        for minor in (1, 2, 3):
            promote(f"v1.{minor}.0")
            client.service.follower.refresh()
        stop.set()
    assert set().union(*(asker.result() for asker in askers)) <= {f"v1.{minor}.0" for minor in range(4)}
    assert client.decide()["version"] == "v1.3.0" and client.read_version()["error"] is None
    assert "abstain_version_swaps 3.0" in client.read_metrics()


def test_garbage_collection_spares_a_loaded_version(
    service: GateService, promote: Promote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "REFRESH_INTERVAL_S", 0.05)
    cycle = type("Cycle", (), {})()
    cycle.itself, of_first = cycle, weakref.ref(cycle)
    gc.unfreeze()
    objects = len(gc.get_objects())
    with GateClient(service):
        wait_until(lambda: gc.get_freeze_count() > objects / 2)
        assert len(gc.get_objects()) < objects / 4
        del cycle
        gc.collect()
        assert of_first() is not None
        promote("v1.1.0")
        wait_until(lambda: of_first() is None and gc.get_freeze_count() > objects / 2)


def test_refresh_rejects_a_version_that_does_not_load(client: GateClient, promote: Promote) -> None:
    promote("v1.1.0", layout_digest="another")
    for _ in range(2):
        client.service.follower.refresh()
    version = client.read_version()
    assert version["version"] == "v1.0.0" and version["error"]["code"] == "A205"
    assert "v1.1.0 fails to load" in version["error"]["message"]
    assert client.get("/readyz").status_code == 200 and client.decide()["version"] == "v1.0.0"
    assert "abstain_version_load_failures 1.0" in client.read_metrics()
    promote("v1.3.0")
    client.service.follower.refresh()
    assert client.decide()["version"] == "v1.3.0" and client.read_version()["error"] is None


def test_refresh_keeps_the_version_while_the_registry_fails(
    client: GateClient, releases: MadeUpReleases, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (AbstainError(Code.NOT_READABLE, "the origin is away"), OSError(24, "Too many open files")):
        with monkeypatch.context() as patched:
            patched.setattr(releases, "get_production", Mock(side_effect=error))
            client.service.follower.refresh()
            assert str(error.args[-1]) in client.read_version()["error"]["message"]
            assert client.decide()["version"] == "v1.0.0"
        client.service.follower.refresh()
        assert client.read_version()["error"] is None


def test_refresh_retries_passing_failures_only(
    client: GateClient, releases: MadeUpReleases, make_release: MakeRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_release("v1.1.0")
    fetch = Mock(side_effect=[OSError(28, "No space left on device"), file.parent])
    monkeypatch.setattr(releases, "fetch_bundle", fetch)
    now = [0.0]
    monkeypatch.setattr(version_follower, "time", SimpleNamespace(monotonic=lambda: now[0]))
    releases.promote("v1.1.0", file)
    client.service.follower.refresh()
    assert "v1.1.0 fails to load: OSError" in client.read_version()["error"]["message"]
    client.service.follower.refresh()
    assert fetch.call_count == 1, "not at once"
    now[0] += version_follower.FIRST_PAUSE_S
    client.service.follower.refresh()
    assert client.decide()["version"] == "v1.1.0" and client.read_version()["error"] is None
    bad = make_release("v1.2.0", layout_digest="another")
    fetch.side_effect = [bad.parent]
    releases.promote("v1.2.0", bad)
    for _ in range(3):
        client.service.follower.refresh()
        now[0] += version_follower.FIRST_PAUSE_S
    assert fetch.call_count == 3


@pytest.fixture
def start(connect: Connect, make_release: MakeRelease) -> Connect:
    """Open a client of a server whose shadow has these changes of its metadata."""

    def open_client(mode: str = "shared", **changes: str) -> GateClient:
        candidates = MadeUpReleases()
        candidates.promote(SHADOW, make_release(SHADOW, **{"threshold": "0.0", **changes}))
        return connect(candidates=candidates, shadow=mode)

    return open_client


def read_rows(client: GateClient) -> list[dict[str, Any]]:
    with client.service.log.database.read_transaction() as connection:
        return [dict(row._mapping) for row in connection.execute(select(SHADOWS).order_by(SHADOWS.c.seq))]


def wait_for_outcomes(client: GateClient, count: int) -> dict[str, int]:
    """What became of so many answers, once it is known."""
    for _ in range(500):
        lines = [line for line in client.read_metrics().splitlines() if line.startswith("abstain_shadow_total{")]
        outcomes = {line.split('"')[1]: int(float(line.rsplit(" ")[-1])) for line in lines}
        if sum(outcomes.values()) >= count:
            return outcomes
        time.sleep(0.01)
    raise AssertionError(outcomes)


def test_shadow_decides_by_features_of_production(start: Connect) -> None:
    client = start()
    engine = client.service.follower.current.gate.predictor.source.load_engine()
    before = engine.stats.forward_tokens
    decision = client.decide(interaction_id="i-1")
    alone = engine.stats.forward_tokens - before
    assert wait_for_outcomes(client, 1) == {"decided": 1}
    assert engine.stats.forward_tokens - before == alone, "no second pass"
    assert (decision["version"], decision["threshold"]) == ("v1.0.0", 0.5)
    assert f'abstain_shadow_info{{candidate="{SHADOW}"}} 1.0' in client.read_metrics()
    (row,) = read_rows(client)
    assert (row["interaction_id"], row["candidate"], row["would_show"], row["threshold"]) == ("i-1", SHADOW, True, 0.0)
    assert row["confidence"] == pytest.approx(decision["confidence"])


def test_shadow_decides_each_decided_answer_once(start: Connect) -> None:
    client = start()
    for changes in ({"interaction_id": "i-1"}, {"interaction_id": "i-1"}, {"contexts": []}, {"interaction_id": "i-2"}):
        client.decide(**changes)
    written = client.post("/v1/answer", json=QUESTION).json()
    assert wait_for_outcomes(client, 3) == {"decided": 3}, "none of what is repeated or unavailable"
    rows = read_rows(client)
    assert [row["interaction_id"] for row in rows] == ["i-1", "i-2", written["interaction_id"]]
    assert rows[2]["confidence"] == pytest.approx(written["confidence"], abs=1e-6)


@pytest.mark.parametrize(("mode", "outcome"), [("shared", "skipped"), ("full", "decided")])
def test_shadow_of_another_layer_needs_a_pass_of_its_own(start: Connect, mode: str, outcome: str) -> None:
    client = start(mode, layer="1")
    decision = client.decide(interaction_id="i-1")
    assert wait_for_outcomes(client, 1) == {outcome: 1}
    expected = client.service.shadow.follower.current.gate.decide(*ASKED.values())
    if outcome == "skipped":
        assert read_rows(client) == []
    else:
        assert read_rows(client)[0]["confidence"] == pytest.approx(expected.confidence, abs=1e-5)
        assert expected.confidence != pytest.approx(decision["confidence"], abs=1e-4)


def test_shadow_that_fails_changes_no_answer(start: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    score_answers = Predictor.score_answers

    def fail_in_shadow(self: Predictor, *rest: Any) -> Any:
        if self.scorer.metadata["version"] == SHADOW:
            raise RuntimeError("broken")
        return score_answers(self, *rest)

    client = start()
    expected = client.decide()
    assert wait_for_outcomes(client, 1) == {"decided": 1}
    monkeypatch.setattr(Predictor, "score_answers", fail_in_shadow)
    decision = client.decide()
    assert wait_for_outcomes(client, 2) == {"decided": 1, "failed": 1}
    assert (decision["decision"], decision["confidence"]) == (expected["decision"], expected["confidence"])
    unloaded = start(layout_digest="another")
    assert unloaded.decide()["decision"] == expected["decision"] and unloaded.read_version()["error"] is None
    shadow = unloaded.service.shadow.follower
    assert shadow.current is None and SHADOW in shadow.last_error.message


def test_shadow_that_is_slow_drops_and_counts(start: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    decide = shadow_module._decide
    monkeypatch.setattr(shadow_module, "_decide", lambda *args: go_on.wait(30) and decide(*args))
    monkeypatch.setattr(shadow_module, "MAX_QUEUED", 2)
    client = start()
    for number in range(5):
        client.decide(interaction_id=f"i-{number}")  # all are answered while the shadow has decided nothing
    assert wait_for_outcomes(client, 2) == {"dropped": 2}
    go_on.set()
    assert wait_for_outcomes(client, 5) == {"dropped": 2, "decided": 3}
    assert [row["interaction_id"] for row in read_rows(client)] == ["i-0", "i-1", "i-2"]
