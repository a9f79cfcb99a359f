import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from abstain.core.errors import AbstainError
from abstain.core.files import write_json
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


def test_shut_down_after_killed_supervisor_ends_programs(
    home: Path, programs: dict[str, subprocess.Popen[bytes]]
) -> None:
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
