"""What guards the Prefect servers that are started here: a key, and no other origin."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tasks.server.addresses import guard, server_key

OWN = "http://127.0.0.1:4200"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """Of Prefect's own API, with the settings that its servers get; its database is not needed for what is asked."""
    import prefect.settings
    from prefect.server.api.server import create_app

    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))
    settings = {getattr(prefect.settings, name): value for name, value in guard(OWN, "http://localhost:4200").items()}
    with prefect.settings.temporary_settings(settings):
        yield TestClient(create_app(ephemeral=True, ignore_cache=True), base_url=OWN)


@pytest.mark.slow
def test_only_holders_of_the_key_are_answered(client: TestClient) -> None:
    def status(key: str | None, **headers: str) -> int:
        if key is not None:
            headers["Authorization"] = f"Basic {b64encode(key.encode()).decode()}"
        return client.get("/api/admin/version", headers=headers).status_code

    assert status(server_key()) == 200
    for key in (None, "", "5e" * 32, server_key()[:-1]):
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


def test_the_key_is_the_owners_alone_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))
    key = server_key()
    assert len(key) == 64 and (tmp_path / "server.key").stat().st_mode & 0o777 == 0o600
    assert server_key() == key
