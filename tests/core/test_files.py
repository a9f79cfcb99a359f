import os
import stat
from pathlib import Path

import pytest

from abstain.core.files import create_home, write_atomically


def test_write_atomically_syncs_before_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def record_sync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        done.append("folder" if stat.S_ISDIR(status.st_mode) else f"{status.st_size} bytes")
        fsync(descriptor)

    def record_rename(self: Path, target: Path) -> Path:
        done.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "replace", record_rename)
    for content in (b"old\n", b"newer\n"):
        write_atomically(tmp_path / "rows.jsonl", content)
        assert (tmp_path / "rows.jsonl").read_bytes() == content
    assert done == ["4 bytes", "rename", "folder", "6 bytes", "rename", "folder"]
    write_atomically(tmp_path / "rows.jsonl", b"newer\n")
    assert len(done) == 6, "what is there already is not written"


def test_write_atomically_keeps_mode_or_uses_umask(tmp_path: Path) -> None:
    private, new = tmp_path / "reviews.csv", tmp_path / "new.csv"
    private.write_text("old")
    private.chmod(0o600)
    before = os.umask(0o027)
    try:
        for file in (private, new):
            write_atomically(file, b"verdict\n")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(file.stat().st_mode) for file in (private, new)] == [0o600, 0o640]


def test_create_home_new_folder_is_private(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o775)
    before = stat.S_IMODE(shared.stat().st_mode)
    for home in (tmp_path / "home", shared):
        create_home(home)
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700
    assert stat.S_IMODE(shared.stat().st_mode) == before
