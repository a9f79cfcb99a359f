"""The files of a source, local or behind an fsspec URL: list them, read their bytes.

A file's version is taken from the listing, before the file is read: one that grows while it is read looks changed the
next time, and is read again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.filesystem import BUCKET_PROTOCOLS, connect, expand_variables, redact_url, translate_errors
from abstain.ingest.sources.converter import Conversion, convert_file
from abstain.knowledge.documents.reader import SUFFIXES as DOCUMENT_SUFFIXES

_CHUNK_BYTES = 1 << 20
_TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "created")  # of fsspec's backends


@dataclass(frozen=True)
class SourceFile:
    """One file.

    Attributes:
        name: Path relative to the listed folder; if a file was listed, its own name.
        path: Path by which the backend opens the file.
        display_name: Name in messages.
        version: Changes with the file's content; None if the backend has no versions.
        updated_at: The time of its last change; None if the backend knows none.
    """

    name: str
    path: str
    display_name: str
    version: str | None
    updated_at: datetime | None = None


@dataclass(frozen=True)
class Listing:
    """The files at a path, without hidden ones.

    Attributes:
        files: The files, sorted by name.
        is_folder: Whether the path is a folder.
    """

    files: tuple[SourceFile, ...]
    is_folder: bool

    def split(self, suffixes: tuple[str, ...]) -> tuple[list[SourceFile], tuple[str, ...]]:
        """Return the files with one of `suffixes`, and the names of the others."""
        files = [file for file in self.files if file.name.lower().endswith(suffixes)]
        return files, tuple(file.name for file in self.files if file not in files)


class Storage:
    """A local path or an fsspec URL.

    Args:
        url: The path or URL, with `${VARIABLE}` from the environment.

    Attributes:
        url: The URL without its secrets.
    """

    def __init__(self, url: str) -> None:
        url = expand_variables(url, redact_url(url))
        self.url = redact_url(url)
        self._fs, self._root = connect(url)

    @property
    def is_local(self) -> bool:
        """Whether the files are on this machine."""
        return "file" in self._protocols

    def list(self) -> Listing:
        """List all files, in folders recursively.

        Returns:
            The files, sorted by name.

        Raises:
            AbstainError: There is nothing at the path, or it cannot be listed.
        """
        with _translate_errors(self.url):
            if not self.is_local:
                self._fs.invalidate_cache()
            try:
                root_info = self._fs.info(self._root)
            except FileNotFoundError as error:
                raise AbstainError(Code.NOT_READABLE, f"{self.url}: {self._describe_missing(error)}") from None
            if root_info["type"] != "directory":
                name = self.url.rstrip("/").rpartition("/")[2]
                return Listing((_make_file(name, self._root, self.url, root_info),), is_folder=False)
            files = []
            for path, info in sorted(self._iter_files()):
                name = path[len(self._root) :].lstrip("/")
                if any(part.startswith(".") for part in name.split("/")):
                    continue
                if info.get("islink"):  # the listing describes the link
                    try:
                        info = self._fs.info(path)
                    except FileNotFoundError:
                        continue
                if info["type"] == "file":
                    files.append(_make_file(name, path, f"{self.url.rstrip('/')}/{name}", info))
        return Listing(tuple(files), is_folder=True)

    def _iter_files(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield every file with its path; a bucket has no folders. A folder that may not be listed is an error."""
        if set(BUCKET_PROTOCOLS) & set(self._protocols):
            yield from self._fs.find(self._root, detail=True).items()
            return
        folders = [self._root]
        while folders:
            folder = folders.pop()
            with _translate_errors(self.url.rstrip("/") + folder[len(self._root) :]):
                entries = self._fs.ls(folder, detail=True)
            for info in entries:
                path = info["name"].rstrip("/")
                if info["type"] != "directory":
                    yield path, info
                elif path != folder and not path.rpartition("/")[2].startswith("."):  # some list themselves
                    folders.append(path)

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[IO[bytes]]:
        """Open `file` for reading from any position.

        Args:
            file: A file of `list`.

        Yields:
            The open file.

        Raises:
            AbstainError: The file cannot be read, or is a link out of the folder: a person who may write into the
                folder need not be allowed to read there.
        """
        if self.is_local and file.path != self._root and not _is_inside(file.path, self._root):
            raise AbstainError(
                Code.NOT_READABLE,
                f"{file.display_name}: is a link out of {self.url}: put the file itself into the folder",
            )
        with _translate_errors(file.display_name):
            stream = self._fs.open(file.path, "rb")
        try:
            yield stream
        finally:
            stream.close()

    def iter_chunks(self, file: SourceFile) -> Iterator[bytes]:
        """Read `file` from the first to the last byte, converted if it is packed, Parquet or a document.

        Args:
            file: A file of `list`.

        Yields:
            Chunks of bytes.

        Raises:
            AbstainError: The file cannot be read, or takes more than the limits of a conversion.
        """
        conversion = _get_conversion(file.name)
        with self.open(file) as stream:
            if conversion is None:
                yield from _read_chunks(stream, file.display_name)
                return
            with convert_file(conversion, stream, file.name, file.display_name) as output:
                yield from _read_chunks(output, file.display_name)

    def _describe_missing(self, error: FileNotFoundError) -> str:
        """Describe why a file is missing. Over HTTP every failure is a missing file; its cause has the details."""
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
        os_error = getattr(cause, "os_error", cause)  # the system's own message: others repeat the whole URL
        number = getattr(os_error, "errno", None) or 0
        message = os.strerror(number) if number > 0 else getattr(os_error, "strerror", None)
        message = getattr(os_error, "reason", None) or message or type(os_error).__name__  # of TLS it is the reason
        return f"the host could not be reached: {message}: check address and network"

    @property
    def _protocols(self) -> tuple[str, ...]:
        protocol = self._fs.protocol
        return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _get_conversion(name: str) -> Conversion | None:
    """Return how a file has to be converted before it can be read, by its name; None if it can be read as it is."""
    name = name.lower()
    if name.endswith(DOCUMENT_SUFFIXES):
        return "document"
    return "gzip" if name.endswith(".gz") else "parquet" if name.endswith(".parquet") else None


def _read_chunks(stream: IO[bytes], display_name: str) -> Iterator[bytes]:
    while True:
        with _translate_errors(display_name):
            chunk = stream.read(_CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


def _make_file(name: str, path: str, display_name: str, info: Mapping[str, Any]) -> SourceFile:
    return SourceFile(name, path, display_name, _get_version(info), _get_time(info))


def _translate_errors(name: str, *untranslated: type[Exception]) -> AbstractContextManager[None]:
    """Translate errors of reading `name`. Use it only around reads, so that a bug in this module stays visible."""
    remedy = "check its place and permissions, or write it again"
    return translate_errors(Code.NOT_READABLE, f"{name}: cannot be read", remedy, *untranslated)


def _is_inside(path: str, root: str) -> bool:
    return Path(path).resolve().is_relative_to(Path(root).resolve())


def _get_version(info: Mapping[str, Any]) -> str | None:
    """Return the checksum from an object store, else size and time, with the inode, which detects a replaced file."""
    for key in ("ETag", "etag", "md5Hash", "md5"):
        if info.get(key):
            return str(info[key])
    for key in _TIME_KEYS:
        if info.get(key):
            return " ".join(str(part) for part in (info.get("size"), info[key], info.get("ino")) if part is not None)
    return None


def _get_time(info: Mapping[str, Any]) -> datetime | None:
    """Return the time of a file's last change, which backends give as seconds, as ISO 8601, or as it is."""
    value = next((info[key] for key in _TIME_KEYS if info.get(key)), None)
    try:
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except (ValueError, OverflowError):
        return None
    if not isinstance(moment, datetime):
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
