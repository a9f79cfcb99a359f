"""Versions change while requests run; a bad one never takes over."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from abstain.serving.api import app
from abstain.serving.api.app import make_app
from abstain.serving.service import version_follower
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys
from abstain.serving.service.version_follower import VersionInfo
from tests.serving.api.conftest import BASE, MadeUpReleases
from tests.serving.api.test_gate_route import ASKED, ask

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions


def test_a_new_version_takes_over_and_no_request_fails(
    client: TestClient, service: GateService, releases: MadeUpReleases, make_release: Callable[..., Path]
) -> None:
    versions, stop = [], threading.Event()

    def keep_asking() -> None:
        while not stop.is_set():
            versions.append(ask(client)["version"])

    threads = [threading.Thread(target=keep_asking) for _ in range(3)]
    for thread in threads:
        thread.start()
    for minor in (1, 2, 3):
        releases.promote(f"v1.{minor}.0", make_release(f"v1.{minor}.0"))
        service.follower.refresh()
    stop.set()
    for thread in threads:
        thread.join()
    assert ask(client)["version"] == "v1.3.0" and set(versions) <= {f"v1.{minor}.0" for minor in range(4)}
    assert "abstain_version_swaps 3.0" in client.get("/metrics").text
    assert client.get("/v1/version").json()["error"] is None


def test_collections_spare_what_lives_with_a_version(
    service: GateService, releases: MadeUpReleases, make_release: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "REFRESH_INTERVAL_S", 0.05)
    cycle = type("Cycle", (), {})()
    cycle.itself, of_first = cycle, weakref.ref(cycle)
    gc.unfreeze()
    objects = len(gc.get_objects())

    def wait_for(is_there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_there():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    with TestClient(make_app(service, ApiKeys()), BASE):
        wait_for(lambda: gc.get_freeze_count() > objects / 2)
        assert len(gc.get_objects()) < objects / 4
        del cycle
        gc.collect()
        assert of_first() is not None
        releases.promote("v1.1.0", make_release("v1.1.0"))
        wait_for(lambda: of_first() is None)
        wait_for(lambda: gc.get_freeze_count() > objects / 2)


def test_a_bad_version_is_refused_once_and_said_and_the_old_one_goes_on(
    client: TestClient, service: GateService, releases: MadeUpReleases, make_release: Callable[..., Path]
) -> None:
    bad = make_release("v1.1.0", layout_digest="another")
    releases.promote("v1.1.0", bad)
    for _ in range(2):
        service.follower.refresh()
    said = client.get("/v1/version").json()
    assert said["version"] == "v1.0.0" and said["error"]["code"] == "A205"
    assert "v1.1.0 fails to load" in said["error"]["message"]
    assert client.get("/readyz").status_code == 200 and ask(client)["version"] == "v1.0.0"
    assert "abstain_version_load_failures 1.0" in client.get("/metrics").text
    releases.promote("v1.2.0", make_release("v1.2.0"))
    service.follower.refresh()
    assert ask(client)["version"] == "v1.2.0" and client.get("/v1/version").json()["error"] is None


def test_a_damaged_file_is_refused_like_any_bad_version(
    client: TestClient, service: GateService, releases: MadeUpReleases, make_release: Callable[..., Path]
) -> None:
    broken = make_release("v1.1.0")
    broken.write_bytes(broken.read_bytes()[:-100])
    releases.promote("v1.1.0", broken)
    service.follower.refresh()
    assert ask(client)["version"] == "v1.0.0"


def test_while_the_registry_is_away_the_live_version_decides(
    client: TestClient, service: GateService, releases: MadeUpReleases
) -> None:
    releases.away = True
    service.follower.refresh()
    assert ask(client)["decision"] in ("show", "abstain")
    assert "cannot be reached" in client.get("/v1/version").json()["error"]["message"]
    releases.away = False
    service.follower.refresh()
    assert client.get("/v1/version").json()["error"] is None


def test_when_nothing_is_in_production_any_more_nothing_is_decided(
    client: TestClient, service: GateService, releases: MadeUpReleases
) -> None:
    releases.now = None
    service.follower.refresh()
    assert client.post("/v1/gate", json=ASKED).json()["decision"] == "unavailable"
    assert client.get("/readyz").status_code == 503


def test_what_fails_for_a_while_is_tried_again_and_what_is_bad_is_not(
    client: TestClient,
    service: GateService,
    releases: MadeUpReleases,
    make_release: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []
    fetch = releases.fetch_bundle

    def fails_once(release: VersionInfo) -> Path:
        tried.append(release.version)
        if len(tried) == 1:
            raise OSError(28, "No space left on device")
        return fetch(release)

    monkeypatch.setattr(releases, "fetch_bundle", fails_once)
    now = [0.0]
    monkeypatch.setattr(version_follower, "time", SimpleNamespace(monotonic=lambda: now[0]))
    releases.promote("v1.1.0", make_release("v1.1.0"))
    service.follower.refresh()
    assert "v1.1.0 fails to load: OSError" in client.get("/v1/version").json()["error"]["message"]
    service.follower.refresh()
    assert tried == ["v1.1.0"], "not at once"
    now[0] += version_follower.FIRST_PAUSE_S
    service.follower.refresh()
    assert ask(client)["version"] == "v1.1.0" and client.get("/v1/version").json()["error"] is None
    tried.append("past")
    releases.promote("v1.2.0", make_release("v1.2.0", layout_digest="another"))
    for _ in range(3):
        service.follower.refresh()
        now[0] += version_follower.FIRST_PAUSE_S
    assert tried.count("v1.2.0") == 1


def test_a_registry_that_fails_in_any_way_ends_nothing(
    client: TestClient, service: GateService, releases: MadeUpReleases, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> VersionInfo:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(releases, "get_production", fails)
        service.follower.refresh()
        error = client.get("/v1/version").json()["error"]
        assert "Too many open files" in error["message"] and ask(client)["version"] == "v1.0.0"
    service.follower.refresh()
    assert client.get("/v1/version").json()["error"] is None
