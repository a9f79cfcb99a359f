"""What one part of the policy deletes, and the deletion of files and folders."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ExpiredItems:
    """Expired items of one kind.

    Attributes:
        kind: Kind of the items.
        count: Number of items.
        bytes: Their size; None if it is unknown.
        note: What is kept and why; "" if there is nothing to report.
    """

    kind: str
    count: int
    bytes: int | None
    note: str = ""


def remove_all(paths: Iterable[Path]) -> None:
    """Delete files and whole folders; missing ones are ignored.

    Args:
        paths: The files and folders.
    """
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def count_bytes(paths: Iterable[Path]) -> int:
    """Sum the sizes of files, and of all files in folders, that still exist.

    Args:
        paths: The files and folders.

    Returns:
        The number of bytes.
    """
    total = 0
    for path in paths:
        for file in (path, *path.rglob("*")) if path.is_dir() else (path,):
            if file.is_file():
                total += file.stat().st_size
    return total
