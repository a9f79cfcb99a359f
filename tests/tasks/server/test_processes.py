import os
import socket
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from abstain.core.errors import AbstainError
from abstain.core.files import write_json
from abstain_tasks.server import addresses
from abstain_tasks.server.addresses import HEARTBEAT, find_own_server, heartbeat, make_server_environment
from abstain_tasks.server.processes import MAX_SOCKET, end_remaining, is_up, shut_down, start, wait_for
from tests.ports import free_port


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """What a killed supervisor leaves of a server and a worker, and a program of another home."""
    homes = {"server": tmp_path, "worker": tmp_path, "alerts": tmp_path / "other"}
    started = {}
    for name, home in homes.items():
        own = {"SUPERVISOR_SERVER_URL": f"unix://{home}/up.sock", "SUPERVISOR_PROCESS_NAME": name}
        started[name] = subprocess.Popen(["sleep", "600"], env=os.environ | own, start_new_session=True)
    yield started
    for process in started.values():
        process.kill()
        process.wait()


def test_shut_down_ends_programs_of_killed_supervisor(home: Path, programs: dict[str, subprocess.Popen]) -> None:
    for name in ("up.sock", "up.pid"):
        (home / name).touch()
    write_json(home / "up.json", {})
    assert not is_up()
    end_remaining("server")
    assert [name for name, process in programs.items() if process.poll() is None] == ["server", "alerts"]
    assert shut_down() and not shut_down()
    assert [name for name, process in programs.items() if process.poll() is None] == ["alerts"]
    assert list(home.glob("up.*")) == []


@pytest.mark.parametrize(
    ("place", "error"),
    [("/" + "ü" * ((MAX_SOCKET - len("/up.sock")) // 2 + 1), "too long"), ("/100%", "/100% ")],
    ids=["bytes", "percent"],
)
def test_start_home_supervisor_cannot_use_raises(place: str, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_HOME", place)
    with pytest.raises(AbstainError, match=f"ABSTAIN_HOME: .*{error}"):
        start(Path("/"), {})


def test_wait_for_stopped_program_raises() -> None:
    with pytest.raises(AbstainError, match="the gate has been stopped"):
        wait_for("work:gate", f"http://127.0.0.1:{free_port()}")


OWN = "http://127.0.0.1:4200"


@pytest.mark.slow
def test_server_environment_deletes_old_runs() -> None:
    import prefect.settings

    settings = {getattr(prefect.settings, name): value for name, value in make_server_environment(OWN).items()}
    with prefect.settings.temporary_settings(settings):
        vacuum = prefect.settings.get_current_settings().server.services.db_vacuum
    assert vacuum.enabled_vacuum_types == {"events", "flow_runs", "orphans"}
    assert vacuum.retention_period == timedelta(days=90)


def test_read_server_key_is_private_and_in_environment(home: Path) -> None:
    key = addresses.read_server_key()
    assert len(key) == 64 and (home / "server.key").stat().st_mode & 0o777 == 0o600
    environment = make_server_environment(OWN, "http://localhost:4200")
    assert environment["PREFECT_SERVER_API_AUTH_STRING"] == key == addresses.read_server_key()
    assert environment["PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS"] == f"{OWN},http://localhost:4200"


@pytest.mark.parametrize("own", ["", "600"])
def test_report_to_sets_heartbeat_of_server(own: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", addresses.KEY):
        monkeypatch.setenv(name, "")  # restored at the end
    with socket.socket(socket.AF_UNIX) as supervisor:
        supervisor.bind(str(home / "up.sock"))
        supervisor.listen()
        for expected in ("60", ""):
            write_json(home / "up.json", {"server": OWN, "heartbeat": expected})
            monkeypatch.setenv(HEARTBEAT, own)
            addresses.report_to(OWN)
            assert os.environ.get(HEARTBEAT, "") == expected


def test_heartbeat_invalid_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("29", "often"):
        monkeypatch.setenv(HEARTBEAT, bad)
        with pytest.raises(AbstainError, match=f"{HEARTBEAT}: '{bad}'"):
            heartbeat()
    monkeypatch.setenv(HEARTBEAT, " 30 ")
    assert heartbeat() == "30"
    monkeypatch.delenv(HEARTBEAT)
    assert heartbeat() == ""


def test_find_own_server_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
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
