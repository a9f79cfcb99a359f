"""Atomic writes: a reader sees the old file or the new one, whole."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` in one step; readers see the old bytes or the new ones, never a part."""
    with suppress(FileNotFoundError):  # there is none, or none any more
        if path.read_bytes() == content:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp's 0600 would lock out other users of a shared workspace
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive a power cut, too
    finally:
        os.close(folder)


def to_json(value: Any) -> bytes:
    """`value` as indented JSON with sorted keys, so that equal values are equal bytes."""
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """`write_atomically` of `to_json`."""
    write_atomically(path, to_json(value))
