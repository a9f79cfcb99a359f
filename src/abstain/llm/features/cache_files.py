"""Storage of the feature cache: a local folder, or a URL through `remote.py`.

Notes:

* A file is seen whole or not at all: here it is written under a temporary name and renamed.
* I/O failures are raised as `AbstainError`, naming folder or URL and the remedy. Only FileNotFoundError passes: another
  process moved or pruned the file, which is no fault.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.core.filesystem import local_path


@dataclass(frozen=True)
class StoredFile:
    """One file: `name` relative to the root, its size in bytes, when it was last written (UTC)."""

    name: str
    size: int
    written: datetime


class FileStore(Protocol):
    """Files under one root, by names relative to it with `/` between their parts."""

    url: str  # as it may be shown: no password in it

    def list(self, folder: str = "") -> list[StoredFile]:
        """All files below `folder`, by name; none where it does not exist."""

    def heads(self, entries: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, bytes | None]]:
        """The first bytes of each safetensors file, at least to the header's end; None where it is gone."""

    def read(self, name: str) -> bytes:
        """The whole file. FileNotFoundError where it is gone."""

    def write(self, name: str, content: bytes) -> None:
        """The file, whole or not at all, in place of one that has the name."""

    def move(self, name: str, to: str) -> None:
        """Rename, replacing. FileNotFoundError where it is gone."""

    def delete(self, name: str) -> None:
        """Remove the file if it is still there."""


def open_store(root: str | Path) -> FileStore:
    """The store at a local path or fsspec URL; makes no folder. Raises `AbstainError` for an unsupported URL."""
    if path := local_path(str(root)):
        return LocalStore(path)
    from abstain.llm.features.remote_cache_files import RemoteStore  # only here, so that a folder needs no fsspec

    return RemoteStore(str(root))


def header_end(head: bytes) -> int:
    """The end of the header of a safetensors file that begins with `head`: 8 bytes hold its length."""
    return 8 + int.from_bytes(head[:8], "little")


class LocalStore:
    """A folder of this host, or of a file server that it has mounted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.url = str(self.folder)

    def list(self, folder: str = "") -> list[StoredFile]:
        entries = []
        with self._translate_errors("read"):
            for path in _files(self.folder / folder):
                with suppress(FileNotFoundError):  # moved since
                    status = path.stat()
                    written = datetime.fromtimestamp(status.st_mtime, UTC)
                    entries.append(StoredFile(path.relative_to(self.folder).as_posix(), status.st_size, written))
        return sorted(entries, key=lambda entry: entry.name)

    def heads(self, entries: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, bytes | None]]:
        for entry in entries:
            head = None
            with (
                self._translate_errors("read"),
                suppress(FileNotFoundError),
                (self.folder / entry.name).open("rb") as file,
            ):
                head = file.read(8)
                head += file.read(min(header_end(head), entry.size) - len(head)) if len(head) == 8 else b""
            yield entry, head

    def read(self, name: str) -> bytes:
        with self._translate_errors("read"):
            return (self.folder / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        with self._translate_errors("write"):
            try:
                write_atomically(self.folder / name, content)
            except FileNotFoundError as error:
                raise OSError(errno.EIO, "the folder was removed meanwhile") from error

    def move(self, name: str, to: str) -> None:
        with self._translate_errors("write"):
            (self.folder / to).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).replace(self.folder / to)

    def delete(self, name: str) -> None:
        with self._translate_errors("delete"):
            (self.folder / name).unlink(missing_ok=True)

    @contextmanager
    def _translate_errors(self, verb: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise AbstainError(
                    Code.NOT_WRITABLE,
                    f"no space is left for the feature cache in {self.folder}: free some there, or remove what is old "
                    "with `abstain cache prune`",
                ) from error
            raise AbstainError(
                Code.NOT_READABLE if verb == "read" else Code.NOT_WRITABLE,
                f"cannot {verb} the feature cache in {self.folder} ({error.strerror or error}): check who owns that "
                "folder, or set ABSTAIN_FEATURES to another",
            ) from error


def _files(folder: Path) -> Iterator[Path]:
    """All files below `folder`; a folder that may not be read is an error, and not empty."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    for parent, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(parent, name) for name in names)
