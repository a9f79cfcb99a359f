"""Atomic writes: a reader sees either the old file or the new one, complete."""

from __future__ import annotations

import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step; readers see the old bytes or the new ones, never a part.

    Args:
        path: The file. An existing one keeps its mode; a new one gets the mode of the umask.
        content: The new bytes. The file is not touched if it already has them.
    """
    mode = None
    with suppress(FileNotFoundError):  # there is none, or none any more
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.read_bytes() == content:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = create_temporary_file(path.parent, f".{path.name}.", 0o666 if mode is None else mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)  # without the umask
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive a power cut, too
    finally:
        os.close(folder)


def create_temporary_file(folder: Path, prefix: str, mode: int = 0o666) -> tuple[int, Path]:
    """Create a file for reading and writing.

    `tempfile.mkstemp` would create a file for its owner only, which would lock other users out of a shared folder.

    Args:
        folder: Folder of the new file.
        prefix: Beginning of its name; the rest is random.
        mode: Its mode, from which the umask is subtracted.

    Returns:
        The open descriptor and the path.
    """
    path = folder / f"{prefix}{secrets.token_hex(8)}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), path


def create_home(home: Path) -> None:
    """Create the folder `home` for its owner only, because it holds personal data; an existing one stays as it is."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)


def to_json(value: Any) -> bytes:
    """Return `value` as indented JSON with sorted keys, so that equal values are equal bytes."""
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON (`to_json`) in one step.

    Args:
        path: The file, see `write_atomically`.
        value: Any value that JSON can represent.
    """
    write_atomically(path, to_json(value))
