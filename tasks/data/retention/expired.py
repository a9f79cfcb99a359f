"""What one part of the policy lets go, and the deletion of files and folders."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ExpiredItems:
    """What of one `kind` the policy lets go. `bytes`: None where they are not known; `kept`: what is left alone, and
    why; empty where there is nothing to say."""

    kind: str
    count: int
    bytes: int | None
    kept: str = ""


def remove_all(paths: Iterable[Path]) -> None:
    """Delete files and whole folders; what is gone already is no error."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def bytes_of(paths: Iterable[Path]) -> int:
    """The bytes of files, and of all files in folders, that are still there."""
    total = 0
    for path in paths:
        for file in (path, *path.rglob("*")) if path.is_dir() else (path,):
            if file.is_file():
                total += file.stat().st_size
    return total
