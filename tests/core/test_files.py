"""A file is whole or not there, after a power cut, too. (`test_store` and `test_cache` have the errors of a disk.)"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from abstain.core.files import write_atomically


def test_bytes_are_on_disk_before_the_rename_and_then_the_rename_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        found = os.fstat(descriptor)
        done.append("folder" if stat.S_ISDIR(found.st_mode) else f"{found.st_size} bytes")
        fsync(descriptor)

    def replaced(self: Path, target: Path) -> Path:
        done.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    for content in (b"old\n", b"newer\n"):
        write_atomically(tmp_path / "rows.jsonl", content)
        assert (tmp_path / "rows.jsonl").read_bytes() == content
    assert done == ["4 bytes", "rename", "folder", "6 bytes", "rename", "folder"]
    write_atomically(tmp_path / "rows.jsonl", b"newer\n")
    assert len(done) == 6, "what is there already is not written"
