"""This checkout's files, and copies of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def tracked_files() -> list[str]:
    """The files that are in git, or will be with the next `git add --all`, relative to `ROOT`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [name for name in filter(None, listed.split("\0")) if (ROOT / name).is_file()]


def copy_checkout(folder: Path) -> None:
    """Copy `tracked_files`, as they are now, to `folder`."""
    for name in tracked_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
