"""Secrets that a home generates for itself: one file each, which only its owner can read."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from pathlib import Path

from abstain.core.files import create_home

_SECRET = re.compile(r"[0-9a-f]{64}")


def read_or_create_secret(file: Path) -> str | None:
    """Read a secret, or create it if the file does not exist.

    Args:
        file: The file of the secret.

    Returns:
        64 hexadecimal digits, or None if the file contains anything else.

    Raises:
        OSError: The file can be neither read nor created.
    """
    if not file.exists():
        _create_secret(file)
    secret = file.read_text(encoding="utf-8", errors="replace").strip()
    return secret if _SECRET.fullmatch(secret) else None


def _create_secret(file: Path) -> None:
    """Create a secret that only the owner can read.

    If several processes do so at once, one wins and all read its secret.
    """
    create_home(file.parent)
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)  # mode 0600
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w") as out:
            out.write(f"{secrets.token_hex(32)}\n")
            out.flush()
            os.fsync(out.fileno())
        try:
            os.link(temporary, file)  # unlike a rename, it replaces nothing
        except FileExistsError:
            return
    finally:
        temporary.unlink()
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
