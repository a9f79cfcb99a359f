import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.api import app
from abstain.serving.service import version_follower
from abstain.serving.service.gate_service import GateService
from tests.data.decision_log.test_log import wait_until
from tests.serving.clients import GateClient
from tests.serving.conftest import MadeUpReleases, MakeRelease

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions


def test_refresh_takes_over_and_fails_no_request(
    client: GateClient, releases: MadeUpReleases, make_release: MakeRelease
) -> None:
    stop = threading.Event()

    def keep_asking() -> set[str]:
        versions = set()
        while not stop.is_set():
            versions.add(client.decide()["version"])
        return versions

    with ThreadPoolExecutor(3) as pool:
        askers = [pool.submit(keep_asking) for _ in range(3)]
        for minor in (1, 2, 3):
            releases.promote(f"v1.{minor}.0", make_release(f"v1.{minor}.0"))
            client.service.follower.refresh()
        stop.set()
    assert set().union(*(asker.result() for asker in askers)) <= {f"v1.{minor}.0" for minor in range(4)}
    assert client.decide()["version"] == "v1.3.0" and client.read_version()["error"] is None
    assert "abstain_version_swaps 3.0" in client.read_metrics()


def test_garbage_collection_spares_a_loaded_version(
    service: GateService, releases: MadeUpReleases, make_release: MakeRelease, monkeypatch: pytest.MonkeyPatch
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
        releases.promote("v1.1.0", make_release("v1.1.0"))
        wait_until(lambda: of_first() is None and gc.get_freeze_count() > objects / 2)


def test_refresh_rejects_a_version_that_does_not_load(
    client: GateClient, releases: MadeUpReleases, make_release: MakeRelease
) -> None:
    bad = make_release("v1.1.0", layout_digest="another")
    releases.promote("v1.1.0", bad)
    for _ in range(2):
        client.service.follower.refresh()
    version = client.read_version()
    assert version["version"] == "v1.0.0" and version["error"]["code"] == "A205"
    assert "v1.1.0 fails to load" in version["error"]["message"]
    assert client.get("/readyz").status_code == 200 and client.decide()["version"] == "v1.0.0"
    assert "abstain_version_load_failures 1.0" in client.read_metrics()
    releases.promote("v1.3.0", make_release("v1.3.0"))
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
