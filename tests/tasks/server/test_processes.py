"""What ends with `make down` even where supervisor was killed, and what is none of its business."""

from __future__ import annotations

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
    """What a killed supervisor leaves of a server, a worker and its run; and one of another home."""
    homes = {"server": tmp_path, "worker": tmp_path, "alerts": tmp_path / "other"}
    started = {}
    for name, home in homes.items():
        own = {"SUPERVISOR_SERVER_URL": f"unix://{home}/up.sock", "SUPERVISOR_PROCESS_NAME": name}
        started[name] = subprocess.Popen(["sleep", "600"], env=os.environ | own, start_new_session=True)
    yield started
    for process in started.values():
        process.kill()
        process.wait()


def test_programs_of_a_killed_supervisor_end(home: Path, programs: dict[str, subprocess.Popen[bytes]]) -> None:
    for name in ("up.sock", "up.pid"):
        (home / name).touch()
    write_json(home / "up.json", {})
    assert not is_up()
    end_remaining("server")
    assert [name for name, process in programs.items() if process.poll() is None] == ["server", "alerts"]
    assert shut_down() and not shut_down()
    assert [name for name, process in programs.items() if process.poll() is None] == ["alerts"]
    assert list(home.glob("up.*")) == []


@pytest.mark.parametrize("letter", ["a", "ü"])
def test_home_whose_path_is_too_long_is_one_line(letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = MAX_SOCKET - len("/up.sock")
    monkeypatch.setenv("ABSTAIN_HOME", "/" + letter * (longest // len(letter.encode()) + 1))
    with pytest.raises(
        AbstainError, match="^ABSTAIN_HOME: .* is too long a path for a socket in it: choose one of at "
    ):
        start(Path("/"), {})


def test_home_that_supervisor_would_expand_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_HOME", str(home / "100%"))
    with pytest.raises(AbstainError, match="^ABSTAIN_HOME: .*/100% has a % in its path: choose one without$"):
        start(home, {})


def test_wait_for_what_another_process_stops_is_one_line() -> None:
    with pytest.raises(AbstainError, match="^the gate has been stopped meanwhile, as `make down` does: run `make up`$"):
        wait_for("work:gate", f"http://127.0.0.1:{free_port()}")
