"""Backup and restore of a home: whole or not at all, while servers write."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from abstain.core.errors import AbstainError
from abstain.data.decision_log.changes import end_of
from abstain.data.decision_log.database import LogDatabase
from tasks.backup.backup import back_up
from tasks.backup.restore import restore
from tasks.shell import git
from tests.data.decision_log.builders import decision, open_log, url_of

SECRET = "5e" * 32


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A key, a release, an origin, a DVC remote, caches, and what processes leave."""
    folder = tmp_path / "home"
    monkeypatch.setenv("ABSTAIN_HOME", str(folder))
    for name in ("releases/v1.0.0/probe.onnx", "dvc-remote/files/md5/aa/bb", "features/x/y", "models/m", "server.log"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "user.key").write_text(SECRET)
    (folder / "user.key").chmod(0o600)
    (folder / "inbox").mkdir()
    git(tmp_path, "init", "-q", "--bare", str(folder / "origin.git"))
    return folder


def move_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ABSTAIN_HOME", str(folder))
    return folder


def left_over(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir() if "partial" in one.name]


def test_a_log_that_is_written_to_comes_back_with_all_that_was_acknowledged(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, stop, written = open_log(url_of(home)), threading.Event(), []

    def write() -> None:
        while not stop.is_set():
            key = f"i-{len(written)}"
            log.record(decision(key)).result(30)
            written.append(key)

    writer = threading.Thread(target=write)
    writer.start()
    while len(written) < 20:
        pass
    before = list(written)
    try:
        manifest = back_up(tmp_path / "backup")
    finally:
        stop.set()
        writer.join()
    log.close()
    assert not any(name.startswith(("features", "models", "server.log")) for name in manifest.files)
    assert not any(name.endswith(("-wal", "-shm")) for name in manifest.files)
    new = move_to(tmp_path / "new", monkeypatch)
    restore(tmp_path / "backup")
    again = open_log(url_of(new))
    assert all(again.find(key) is not None for key in before)
    again.record(decision("after")).result(10)
    again.close()
    assert (new / "user.key").read_text() == SECRET and (new / "user.key").stat().st_mode & 0o777 == 0o600
    assert (new / "inbox").is_dir() and new.stat().st_mode & 0o777 == 0o700
    assert git(new / "origin.git", "rev-parse", "--is-bare-repository").strip() == "true"
    assert (new / "releases" / "v1.0.0" / "probe.onnx").read_text() == "releases/v1.0.0/probe.onnx"
    ids = {end_of(LogDatabase.open(url_of(one))).log for one in (home, new)}
    assert len(ids) == 2, "ingest would take up where it was in the log that went on"


def test_a_backup_that_is_not_whole_is_none(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    back_up(tmp_path / "backup")
    new = move_to(tmp_path / "new", monkeypatch)
    stored = tmp_path / "backup" / "home" / "user.key"
    stored.chmod(0o600)
    for change in (lambda: stored.write_text(SECRET[:-1] + "f"), stored.unlink):
        change()
        with pytest.raises(AbstainError, match=r"user\.key is not what the backup's manifest says"):
            restore(tmp_path / "backup")
        assert not new.exists() and left_over(tmp_path) == []
    (tmp_path / "backup" / "manifest.json").unlink()  # as one that was killed before its end
    with pytest.raises(AbstainError, match="is no whole backup"):
        restore(tmp_path / "backup")


def test_a_backup_that_fails_leaves_nothing(home: Path, tmp_path: Path) -> None:
    with sqlite3.connect(home / "decisions.sqlite") as database:
        database.execute("CREATE TABLE t AS SELECT randomblob(100000) AS x")
    content = bytearray((home / "decisions.sqlite").read_bytes())
    content[40:4096] = b"\xff" * (4096 - 40)
    (home / "decisions.sqlite").write_bytes(content)
    with pytest.raises(AbstainError, match="cannot be read"):
        back_up(tmp_path / "backup")
    assert not (tmp_path / "backup").exists() and left_over(tmp_path) == []


def test_nothing_that_is_there_is_overwritten(home: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(AbstainError, match="there exists"):
        back_up(tmp_path / "there")
    with pytest.raises(AbstainError, match="is in the home"):
        back_up(home / "backup")
    back_up(tmp_path / "backup")
    with pytest.raises(AbstainError, match="is not empty"):
        restore(tmp_path / "backup")


def test_what_is_in_postgres_is_named_with_its_command_and_without_its_password(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABSTAIN_DECISIONS", "postgresql://gate:hunter2@db.example.org/decisions")
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", "postgresql+asyncpg://p:hunter2@db/prefect")
    lines = back_up(tmp_path / "backup").elsewhere
    assert sum("pg_dump" in line for line in lines) == 2 and not any("hunter2" in line for line in lines)
