"""Paths of files of states that lead elsewhere: nothing outside the folder is read or deleted."""

import os
import time
from pathlib import Path

from abstain.core.errors import AbstainError
from abstain.serving.state_files import read_and_delete
from tests.attacks.conftest import Count

SECRET = "secret.safetensors"


def is_rejected(path: str, folder: Path) -> bool:
    began = time.monotonic()
    try:
        read_and_delete(path, folder, 1000, wait_s=0.1)
    except AbstainError:
        return time.monotonic() - began < 2
    return False


def test_read_and_delete_rejects_paths_out_of_the_folder(tmp_path: Path, assert_repelled: Count) -> None:
    folder, secret = tmp_path / "states", tmp_path / SECRET
    folder.mkdir()
    secret.write_bytes(b"secret")
    (tmp_path / f"{SECRET}.lock").touch()
    (folder / "link.safetensors").symlink_to(secret)
    (folder / "out").symlink_to(tmp_path)
    (folder / "loop.safetensors").symlink_to("loop.safetensors")
    (folder / "device.safetensors").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.safetensors")
    paths = [
        *(f"../{SECRET}", str(secret), f"{folder}/../{SECRET}", f"x/../../{SECRET}", f"out/{SECRET}", f"/{secret}"),
        *("link.safetensors", "loop.safetensors", "device.safetensors", "pipe.safetensors", "/etc/passwd", "/dev/zero"),
        *("..", ".", "", "/", "\0", "a\0.safetensors", f"file://{secret}", f"~/{SECRET}", f"%2e%2e/{SECRET}"),
        *(f"..\\{SECRET}", "x" * 5000 + ".safetensors", "\ud800.safetensors", f"{SECRET}\n", f"{SECRET}/"),
    ]
    repelled = sum(is_rejected(path, folder) for path in paths)
    assert secret.read_bytes() == b"secret" and (folder / "link.safetensors").is_symlink()
    assert (tmp_path / f"{SECRET}.lock").exists()
    assert_repelled("paths outside the folder", len(paths), repelled)
