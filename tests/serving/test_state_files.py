"""Files in the folder of states: read once, only there, only when whole, and deleted."""

import fcntl
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving import state_files
from abstain.serving.state_files import read_and_delete

LIMIT = 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "states").mkdir()
    return tmp_path / "states"


def write(file: Path, content: bytes = b"content", lock: bool = True) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    if lock:
        file.with_name(f"{file.name}.lock").touch()
    return file


def reject(path: str | Path, folder: Path | None, code: Code = Code.NOT_READABLE, **more: float) -> str:
    with pytest.raises(AbstainError) as error:
        read_and_delete(str(path), folder, LIMIT, **more)
    assert error.value.code == code and "\n" not in error.value.message
    return error.value.message


@pytest.mark.parametrize("lock", [True, False])
def test_read_and_delete_deletes_file_and_lock(folder: Path, lock: bool) -> None:
    for name in ("a.safetensors", "inner/a.safetensors"):
        for path in (name, folder / name):
            file = write(folder / name, lock=lock)
            assert read_and_delete(str(path), folder, LIMIT) == b"content"
            assert not list(file.parent.glob("*a.safetensors*"))
            assert "deleted when it was read" in reject(path, folder)


def test_read_and_delete_reads_files_of_states_only(folder: Path) -> None:
    write(folder / "notes.txt")
    (folder / "folder.safetensors").mkdir()
    assert "no .safetensors file" in reject("notes.txt", folder)
    assert "no .safetensors file" in reject("a.safetensors.lock", folder)
    assert "no regular file" in reject("folder.safetensors", folder)
    assert "set ABSTAIN_SERVE_STATES_FOLDER" in reject(folder / "a.safetensors", None, Code.NO_ACCESS)
    assert len(list(folder.iterdir())) == 3


def test_read_and_delete_follows_no_link_put_in_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the path and its opening."""
    outside = write(folder.parent / "secret.safetensors")
    for name in ("a.safetensors", "inner/a.safetensors"):
        file, resolve = write(folder / name, lock=False), Path.resolve

        def exchange(self: Path, file: Path = file, resolve: object = resolve) -> Path:
            real = resolve(self)  # type: ignore[operator]
            if self.name == file.name and file.parent.is_dir() and not file.is_symlink():
                file.unlink()
                if file.parent == folder:
                    file.symlink_to(outside)
                else:
                    file.parent.rmdir()
                    file.parent.symlink_to(outside.parent)
            return Path(real)

        monkeypatch.setattr(Path, "resolve", exchange)
        reject(name, folder)
        monkeypatch.undo()
    assert outside.exists()


def test_read_and_delete_waits_for_a_file_being_written(folder: Path) -> None:
    file = write(folder / "a.safetensors", b"half")
    with file.with_name("a.safetensors.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "still being written after 0.02 s" in reject(file, folder, wait_s=0.02)
        assert file.exists() and Path(lock.name).exists()

        def finish() -> None:
            file.write_bytes(b"whole")
            fcntl.flock(lock, fcntl.LOCK_UN)

        timer = threading.Timer(0.1, finish)
        timer.start()
        assert read_and_delete(str(file), folder, LIMIT, wait_s=60) == b"whole"
        timer.join()


def test_read_and_delete_limits_the_size(folder: Path) -> None:
    write(folder / "a.safetensors", bytes(LIMIT))
    assert len(read_and_delete("a.safetensors", folder, LIMIT)) == LIMIT
    write(folder / "a.safetensors", bytes(LIMIT + 1))
    assert f"more than {LIMIT} bytes" in reject("a.safetensors", folder, Code.TOO_LARGE)
    assert not list(folder.iterdir())


def test_read_and_delete_needs_to_delete(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "a.safetensors", lock=False)
    monkeypatch.setattr(state_files.os, "unlink", Mock(side_effect=PermissionError(1, "Operation not permitted")))
    assert "cannot be deleted after use" in reject("a.safetensors", folder, Code.NOT_WRITABLE)
