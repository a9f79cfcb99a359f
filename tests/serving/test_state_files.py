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


def write(file: Path, content: bytes = b"content", lock: bool = True) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    if lock:
        file.with_name(f"{file.name}.lock").touch()
    return file


def reject(path: str | Path, states_folder: Path | None, code: Code = Code.NOT_READABLE, **more: float) -> str:
    with pytest.raises(AbstainError) as error:
        read_and_delete(str(path), states_folder, LIMIT, **more)
    assert error.value.code == code
    return error.value.message


@pytest.mark.parametrize("lock", [True, False])
def test_read_and_delete_deletes_file_and_lock(states_folder: Path, lock: bool) -> None:
    for name in ("a.safetensors", "inner/a.safetensors"):
        for path in (name, states_folder / name):
            file = write(states_folder / name, lock=lock)
            assert read_and_delete(str(path), states_folder, LIMIT) == b"content"
            assert not list(file.parent.glob("*a.safetensors*"))
            assert "deleted when it was read" in reject(path, states_folder)


def test_read_and_delete_reads_files_of_states_only(states_folder: Path) -> None:
    write(states_folder / "notes.txt")
    (states_folder / "folder.safetensors").mkdir()
    assert "no .safetensors file" in reject("notes.txt", states_folder)
    assert "no .safetensors file" in reject("a.safetensors.lock", states_folder)
    assert "no regular file" in reject("folder.safetensors", states_folder)
    assert "set ABSTAIN_SERVE_STATES_FOLDER" in reject(states_folder / "a.safetensors", None, Code.NO_ACCESS)
    assert len(list(states_folder.iterdir())) == 3


def test_read_and_delete_follows_no_link_put_in_place(states_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the path and its opening."""
    outside = write(states_folder.parent / "secret.safetensors")
    for name in ("a.safetensors", "inner/a.safetensors"):
        file, resolve = write(states_folder / name, lock=False), Path.resolve

        def exchange(self: Path, file: Path = file, resolve: object = resolve) -> Path:
            real = resolve(self)  # type: ignore[operator]
            if self.name == file.name and file.parent.is_dir() and not file.is_symlink():
                file.unlink()
                if file.parent == states_folder:
                    file.symlink_to(outside)
                else:
                    file.parent.rmdir()
                    file.parent.symlink_to(outside.parent)
            return Path(real)

        monkeypatch.setattr(Path, "resolve", exchange)
        reject(name, states_folder)
        monkeypatch.undo()
    assert outside.exists()


def test_read_and_delete_waits_for_a_file_being_written(states_folder: Path) -> None:
    file = write(states_folder / "a.safetensors", b"half")
    with file.with_name("a.safetensors.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "still being written after 0.02 s" in reject(file, states_folder, wait_s=0.02)
        assert file.exists() and Path(lock.name).exists()

        def finish() -> None:
            file.write_bytes(b"whole")
            fcntl.flock(lock, fcntl.LOCK_UN)

        timer = threading.Timer(0.1, finish)
        timer.start()
        assert read_and_delete(str(file), states_folder, LIMIT, wait_s=60) == b"whole"
        timer.join()


def test_read_and_delete_limits_the_size(states_folder: Path) -> None:
    write(states_folder / "a.safetensors", bytes(LIMIT))
    assert len(read_and_delete("a.safetensors", states_folder, LIMIT)) == LIMIT
    write(states_folder / "a.safetensors", bytes(LIMIT + 1))
    assert f"more than {LIMIT} bytes" in reject("a.safetensors", states_folder, Code.TOO_LARGE)
    assert not list(states_folder.iterdir())


def test_read_and_delete_needs_to_delete(states_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(states_folder / "a.safetensors", lock=False)
    monkeypatch.setattr(state_files.os, "unlink", Mock(side_effect=PermissionError(1, "Operation not permitted")))
    assert "cannot be deleted after use" in reject("a.safetensors", states_folder, Code.NOT_WRITABLE)
