"""The manifest of a backup: each file's SHA-256 and mode, and the folders, so that empty ones come back.

It is written last, and the backup gets its name by a rename after that: a folder with a manifest is whole.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_json

FORMAT = 1
NAME = "manifest.json"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class StoredCopy:
    """One file of a backup: SHA-256 (hex) of its bytes, and its permissions."""

    sha256: str
    mode: int


class Manifest(BaseModel):
    """Paths are relative to the home, with `/`. `elsewhere`: what is not in the backup, and who has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    made_at: str
    files: dict[str, StoredCopy]
    folders: tuple[str, ...]
    elsewhere: tuple[str, ...]

    def write(self, folder: Path) -> None:
        copies = {name: asdict(one) for name, one in self.files.items()}
        write_json(folder / NAME, {**self.model_dump(mode="json"), "files": copies})


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the backup in `folder`. Raises `AbstainError` where there is none, or one of another release."""
    file = folder / NAME
    if not file.is_file():
        raise AbstainError(
            Code.NOT_READABLE,
            f"{folder} has no {NAME}, so it is no whole backup: name a folder that `abstain backup` has completed",
        )
    try:
        manifest = Manifest.model_validate_json(file.read_bytes())
    except ValidationError:
        raise AbstainError(Code.WRONG_FORMAT, f"{file} is damaged: name another backup") from None
    if manifest.format != FORMAT:
        raise AbstainError(
            Code.OTHER_VERSION,
            f"{folder} is a backup of format {manifest.format}, this release knows {FORMAT}: use the release that "
            "made it",
        )
    return manifest


def copy_hashed(source: Path, target: Path, mode: int | None = None) -> StoredCopy:
    """Copy a file with its permissions, or with `mode`; what was written. Raises `OSError`."""
    digest = hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as read, target.open("xb") as written:
        kept = stat.S_IMODE(os.fstat(read.fileno()).st_mode) if mode is None else mode
        os.fchmod(written.fileno(), kept)
        while block := read.read(_BLOCK):
            digest.update(block)
            written.write(block)
    return StoredCopy(digest.hexdigest(), kept)
