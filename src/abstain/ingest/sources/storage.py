"""The files of a source, local or behind an fsspec URL: list them, read their bytes.

A file's version is taken from the listing, before it is read: one that grows while it is read looks changed the next
time, and is read again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.filesystem import BUCKET_PROTOCOLS, connect, expand_variables, redacted_url, translate_errors

_CHUNK = 1 << 20

MAX_UNPACKED_BYTES = 16 * 1024 * 1024
"""The most bytes that a packed file unpacks to, however small it is."""

MAX_COMPRESSION_RATIO = 100
"""The most bytes that a larger one unpacks to, for each of its own: texts and rows are packed some 5 to 30 times."""


@dataclass(frozen=True)
class SourceFile:
    """One file: `name` relative to the folder that was listed (its own name, where that is a file), where the backend
    has it, its name in messages, and a version that changes with its content (None where the backend gives none)."""

    name: str
    path: str
    display_name: str
    version: str | None


@dataclass(frozen=True)
class Listing:
    """The files at a place, by name, hidden ones left out; `is_folder`: whether the place is a folder."""

    files: tuple[SourceFile, ...]
    is_folder: bool


class Storage:
    """A local path or an fsspec URL, with `${VARIABLE}` from the environment; `url` is the redacted one."""

    def __init__(self, url: str) -> None:
        url = expand_variables(url, redacted_url(url))
        self.url = redacted_url(url)
        self._fs, self._root = connect(url)

    @property
    def is_local(self) -> bool:
        return "file" in self._protocols

    def list(self) -> Listing:
        """Everything at the place, folders recursively. Raises `AbstainError` where nothing is there."""
        with _translate_errors(self.url):
            if not self.is_local:
                self._fs.invalidate_cache()
            try:
                here = self._fs.info(self._root)
            except FileNotFoundError as error:
                raise AbstainError(Code.NOT_READABLE, f"{self.url}: {self._why_not_found(error)}") from None
            if here["type"] != "directory":
                only = SourceFile(self.url.rstrip("/").rpartition("/")[2], self._root, self.url, _version(here))
                return Listing((only,), is_folder=False)
            files = []
            for path, info in sorted(self._find()):
                name = path[len(self._root) :].lstrip("/")
                if any(part.startswith(".") for part in name.split("/")):
                    continue
                if info.get("islink"):  # the listing describes the link
                    try:
                        info = self._fs.info(path)
                    except FileNotFoundError:
                        continue
                if info["type"] == "file":
                    files.append(SourceFile(name, path, f"{self.url.rstrip('/')}/{name}", _version(info)))
        return Listing(tuple(files), is_folder=True)

    def _find(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every file with its path; folders of a bucket are only names. One that may not be listed is an error."""
        if set(BUCKET_PROTOCOLS) & set(self._protocols):
            yield from self._fs.find(self._root, detail=True).items()
            return
        folders = [self._root]
        while folders:
            folder = folders.pop()
            with _translate_errors(self.url.rstrip("/") + folder[len(self._root) :]):
                listed = self._fs.ls(folder, detail=True)
            for info in listed:
                path = info["name"].rstrip("/")
                if info["type"] != "directory":
                    yield path, info
                elif path != folder and not path.rpartition("/")[2].startswith("."):  # some list themselves
                    folders.append(path)

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[IO[bytes]]:
        """The bytes of `file`, which can be read from any place in it.

        Raises `AbstainError` for a link that leaves the folder: who writes into it need not be allowed to read there.
        """
        if self.is_local and file.path != self._root and not _is_inside(file.path, self._root):
            raise AbstainError(
                Code.NOT_READABLE,
                f"{file.display_name}: is a link out of {self.url}: put the file itself into the folder",
            )
        with _translate_errors(file.display_name):
            opened = self._fs.open(file.path, "rb")
        try:
            yield opened
        finally:
            opened.close()

    def chunks(self, file: SourceFile) -> Iterator[bytes]:
        """The bytes of `file` from the first to the last, unpacked where its name ends in .gz.

        Raises `AbstainError` where it unpacks to more than `MAX_COMPRESSION_RATIO` times its size.
        """
        import gzip
        import zlib

        damaged = (EOFError, zlib.error, gzip.BadGzipFile)
        is_packed, read = file.name.lower().endswith(".gz"), 0
        with self.open(file) as opened:
            unpacked = gzip.GzipFile(fileobj=opened) if is_packed else opened
            while True:
                try:
                    with _translate_errors(file.display_name, *damaged):
                        chunk = unpacked.read(_CHUNK)
                except damaged as error:
                    raise AbstainError(
                        Code.WRONG_FORMAT, f"{file.display_name}: cannot be read: {error}: write it again"
                    ) from error
                read += len(chunk)
                if is_packed and read > max(MAX_UNPACKED_BYTES, MAX_COMPRESSION_RATIO * opened.tell()):
                    raise AbstainError(
                        Code.TOO_LARGE,
                        f"{file.display_name}: unpacks to more than {MAX_COMPRESSION_RATIO} times its size, the most allowed: unpack it",
                    )
                if not chunk:
                    return
                yield chunk

    def _why_not_found(self, error: FileNotFoundError) -> str:
        """Over HTTP every failure comes as a file that was not found; its cause has the details."""
        cause = error.__cause__
        if "http" not in self._protocols or cause is None:
            return "no such file or folder"
        if isinstance(cause, AbstainError):
            return cause.message
        status = getattr(cause, "status", None)
        if isinstance(status, int) and status:
            return "no such file or folder" if status in (404, 410) else f"the server answers with HTTP status {status}"
        if isinstance(cause, ValueError):
            return "is not a valid URL: check its spelling"
        failed = getattr(cause, "os_error", cause)  # the system's own message: others repeat the whole URL
        number = getattr(failed, "errno", None) or 0
        said = os.strerror(number) if number > 0 else getattr(failed, "strerror", None)
        said = getattr(failed, "reason", None) or said or type(failed).__name__  # of TLS it is the reason
        return f"the host could not be reached: {said}: check address and network"

    @property
    def _protocols(self) -> tuple[str, ...]:
        protocol = self._fs.protocol
        return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _translate_errors(name: str, *passed: type[Exception]) -> AbstractContextManager[None]:
    """Translate errors of reading `name`. Only around reads, so that a bug in this module stays visible."""
    remedy = "check its place and permissions, or write it again"
    return translate_errors(Code.NOT_READABLE, f"{name}: cannot be read", remedy, *passed)


def _is_inside(path: str, root: str) -> bool:
    return Path(path).resolve().is_relative_to(Path(root).resolve())


def _version(info: Mapping[str, Any]) -> str | None:
    """From an object store its checksum, else size and time; the inode detects a file that replaced another."""
    for key in ("ETag", "etag", "md5Hash", "md5"):
        if info.get(key):
            return str(info[key])
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        if info.get(key):
            return " ".join(str(part) for part in (info.get("size"), info[key], info.get("ino")) if part is not None)
    return None
