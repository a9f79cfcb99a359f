"""What guards the Prefect servers that are started here, a key and no other origin; what is reported to them."""

from __future__ import annotations

import os
import socket
from base64 import b64encode
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from abstain.core.errors import AbstainError
from abstain.core.files import write_json
from abstain_tasks.server import addresses
from abstain_tasks.server.addresses import (
    HEARTBEAT,
    find_own_server,
    heartbeat,
    make_server_environment,
    read_server_key,
    report_to,
)

OWN = "http://127.0.0.1:4200"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """Of Prefect's own API, with the settings that its servers get; its database is not needed for what is asked."""
    import prefect.settings
    from prefect.server.api.server import create_app

    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))
    settings = {
        getattr(prefect.settings, name): value
        for name, value in make_server_environment(OWN, "http://localhost:4200").items()
    }
    with prefect.settings.temporary_settings(settings):
        yield TestClient(create_app(ephemeral=True, ignore_cache=True), base_url=OWN)


@pytest.mark.slow
def test_a_server_deletes_old_runs_by_itself(client: TestClient) -> None:
    from prefect.settings import get_current_settings

    vacuum = get_current_settings().server.services.db_vacuum
    assert vacuum.enabled_vacuum_types == {"events", "flow_runs", "orphans"}
    assert vacuum.retention_period == timedelta(days=90), "as docs/howto/retention.md says"


@pytest.mark.slow
def test_only_holders_of_the_key_are_answered(client: TestClient) -> None:
    def status(key: str | None, **headers: str) -> int:
        if key is not None:
            headers["Authorization"] = f"Basic {b64encode(key.encode()).decode()}"
        return client.get("/api/admin/version", headers=headers).status_code

    assert status(read_server_key()) == 200
    for key in (None, "", "5e" * 32, read_server_key()[:-1]):
        assert status(key) == status(key, Host="rebound.evil.example") == 401


@pytest.mark.slow
@pytest.mark.parametrize(
    ("origin", "allowed"),
    [(OWN, OWN), ("http://localhost:4200", "http://localhost:4200"), ("https://evil.example", None)],
)
def test_pages_of_other_origins_may_read_nothing(client: TestClient, origin: str, allowed: str | None) -> None:
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    assert client.options("/api/deployments/", headers=asked).headers.get("Access-Control-Allow-Origin") == allowed
    assert client.get("/api/health", headers={"Origin": origin}).headers.get("Access-Control-Allow-Origin") == allowed


def test_make_server_environment_has_key_and_origins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))
    environment = make_server_environment(OWN, "http://localhost:4200")
    assert environment["PREFECT_SERVER_API_AUTH_STRING"] == read_server_key()
    assert environment["PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS"] == f"{OWN},http://localhost:4200"


def test_the_key_is_the_owners_alone_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))
    key = read_server_key()
    assert len(key) == 64 and (tmp_path / "server.key").stat().st_mode & 0o777 == 0o600
    assert read_server_key() == key


@pytest.mark.parametrize("own", ["", "30", "600"])
def test_runs_send_heartbeats_as_often_as_the_server_expects(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))
    for name in ("PREFECT_API_URL", addresses.KEY):
        monkeypatch.setenv(name, "")  # restored at the end
    with socket.socket(socket.AF_UNIX) as supervisor:
        supervisor.bind(str(tmp_path / "up.sock"))
        supervisor.listen()
        for expected in ("60", ""):
            write_json(tmp_path / "up.json", {"server": OWN, "heartbeat": expected})
            monkeypatch.setenv(HEARTBEAT, own)
            report_to(OWN)
            assert os.environ.get(HEARTBEAT, "") == expected


def test_heartbeat_that_prefect_would_refuse_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("29", "-60", "45.5", "often"):
        monkeypatch.setenv(HEARTBEAT, bad)
        with pytest.raises(AbstainError, match=f"^environment variable {HEARTBEAT}: '{bad}' is no whole number"):
            heartbeat()
    monkeypatch.setenv(HEARTBEAT, " 30 ")
    assert heartbeat() == "30"
    monkeypatch.delenv(HEARTBEAT)
    assert heartbeat() == ""


def test_server_of_this_home_is_known_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "find_running_server", lambda: OWN)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert find_own_server() == OWN
    monkeypatch.setenv("PREFECT_API_URL", f"{OWN}/api")
    assert find_own_server() == OWN
    monkeypatch.setenv("PREFECT_API_URL", "https://prefect.example.org/api")
    assert find_own_server() is None
    monkeypatch.setattr(addresses, "find_running_server", lambda: None)
    monkeypatch.delenv("PREFECT_API_URL")
    assert find_own_server() is None
