"""Storage of the feature cache in any place that fsspec supports: a local folder, an object store, or another host.

Notes:

* A file is visible as a whole or not at all. The PUT of an object store is atomic (a multipart upload, too, shows
  nothing before it is completed). Elsewhere (a folder, sftp, smb, hdfs) a temporary file is written and renamed.
* No listing is cached, because other hosts write at the same time. The connection belongs to one process, because a
  forked process must not use the connection of its parent.
* I/O failures are raised as `AbstainError`, which names the folder or URL and the remedy. Only FileNotFoundError
  passes: another process moved or pruned the file, which is no error.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from abstain.core.codes import Code
from abstain.core.files import write_atomically
from abstain.core.filesystem import (
    BUCKET_PROTOCOLS,
    S3,
    connect,
    get_local_path,
    get_modified_time,
    get_protocol,
    redact_url,
    translate_errors,
)

FIRST_BYTES = 16 * 1024  # twice the header of a shard of 64 rows
HEADER_BATCH = 512  # headers requested at once: bounds memory, not concurrency
ATOMIC_PROTOCOLS = (*BUCKET_PROTOCOLS, "memory")
"""Protocols with an atomic PUT."""


@dataclass(frozen=True)
class StoredFile:
    """A file in the store.

    Attributes:
        name: Path relative to the root.
        size: Size in bytes.
        written_at: Time of the last write (UTC).
    """

    name: str
    size: int
    written_at: datetime


def get_header_end(head: bytes) -> int:
    """Return the end of the header of a safetensors file that begins with `head`: its first 8 bytes hold the length."""
    return 8 + int.from_bytes(head[:8], "little")


class FileStore:
    """Files below one root, named relative to it with `/` between the parts. Opening it creates no folder.

    Args:
        root: A local path or an fsspec URL.

    Attributes:
        url: The root without a password, for messages.

    Raises:
        AbstainError: The URL is not supported; from every method, the root cannot be read or written.
    """

    def __init__(self, root: str | Path) -> None:
        self._folder = get_local_path(str(root))
        self._address = str(self._folder or root).rstrip("/")
        self.url = redact_url(self._address)
        self._protocol = get_protocol(self._address)
        self._process = 0
        self._connect()

    def list(self, folder: str = "") -> list[StoredFile]:
        """Return all files below `folder`, by name; an empty list if it does not exist."""
        fs, base = self._connect()
        path, entries = f"{base}/{folder}".rstrip("/"), []
        with self._translate_errors("read"):
            fs.invalidate_cache()
            for info in (
                _list_bucket_files(fs, path) if self._protocol in BUCKET_PROTOCOLS else _iter_folder_files(fs, path)
            ):
                with suppress(FileNotFoundError):  # a link to nothing
                    if info.get("islink"):  # the listing describes the link
                        info = fs.info(info["name"])
                    if info["type"] == "file":
                        # A file without a time is new: too young to be pruned.
                        written_at = get_modified_time(info) or datetime.now(UTC)
                        entries.append(StoredFile(info["name"][len(base) :].lstrip("/"), info["size"], written_at))
        return sorted(entries, key=lambda entry: entry.name)

    def read_heads(self, entries: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, bytes | None]]:
        """Yield the first bytes of safetensors files, at least up to the end of the header.

        Args:
            entries: The files.

        Yields:
            File and first bytes; None if the file no longer exists.
        """
        for start in range(0, len(entries), HEADER_BATCH):
            batch = entries[start : start + HEADER_BATCH]
            heads = self._read_ranges([(entry, 0, FIRST_BYTES) for entry in batch])
            incomplete = [
                (entry, FIRST_BYTES, get_header_end(head))
                for entry, head in heads.items()
                if head is not None and len(head) == FIRST_BYTES < get_header_end(head) <= entry.size
            ]
            for entry, rest in self._read_ranges(incomplete).items():
                heads[entry] = (heads[entry] or b"") + rest if rest is not None else None
            yield from heads.items()

    def read(self, name: str) -> bytes:
        """Return the whole content of a file.

        Args:
            name: Path relative to the root.

        Returns:
            The content.

        Raises:
            FileNotFoundError: The file no longer exists.
        """
        fs, base = self._connect()
        with self._translate_errors("read"):
            return bytes(fs.cat_file(f"{base}/{name}"))

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically; it replaces a file of the same name.

        Args:
            name: Path relative to the root.
            content: The content.
        """
        fs, base = self._connect()
        target = f"{base}/{name}"
        with self._translate_errors("write"):
            try:
                if self._folder:
                    write_atomically(self._folder / name, content)
                elif self._protocol in ATOMIC_PROTOCOLS:
                    fs.pipe_file(target, content)
                else:
                    self._write_and_rename(fs, target, content)
            except FileNotFoundError as error:
                raise PermissionError("no such bucket or folder") from error

    def move(self, name: str, new_name: str) -> None:
        """Rename a file; it replaces a file of the new name.

        Args:
            name: Path relative to the root.
            new_name: New path relative to the root.

        Raises:
            FileNotFoundError: The file no longer exists.
        """
        fs, base = self._connect()
        with self._translate_errors("write"):
            if (
                self._protocol not in ATOMIC_PROTOCOLS
            ):  # there are no folders in a bucket, and s3fs would make the bucket
                fs.makedirs(f"{base}/{new_name}".rpartition("/")[0], exist_ok=True)
            fs.mv(f"{base}/{name}", f"{base}/{new_name}")

    def delete(self, name: str) -> None:
        """Remove the file `name` if it still exists."""
        fs, base = self._connect()
        with self._translate_errors("delete"), suppress(FileNotFoundError):
            fs.rm_file(f"{base}/{name}")

    def _write_and_rename(self, fs: Any, target: str, content: bytes) -> None:
        folder, _, name = target.rpartition("/")
        temporary = f"{folder}/.{name}.{uuid.uuid4().hex[:8]}"
        fs.makedirs(folder, exist_ok=True)
        try:
            fs.pipe_file(temporary, content)
            fs.mv(temporary, target)
        except BaseException:
            with suppress(Exception):
                fs.rm_file(temporary)
            raise

    def _read_ranges(self, ranges: Sequence[tuple[StoredFile, int, int]]) -> dict[StoredFile, bytes | None]:
        """Read the bytes first..last of each entry, all requested at once; None if the file no longer exists."""
        fs, base = self._connect()
        result: dict[StoredFile, bytes | None] = {entry: b"" for entry, _, _ in ranges}
        nonempty = [(entry, first, min(last, entry.size)) for entry, first, last in ranges if entry.size > first]
        if not nonempty:  # an empty object has no range to request
            return result
        names, firsts, lasts = zip(
            *((f"{base}/{entry.name}", first, last) for entry, first, last in nonempty), strict=True
        )
        with self._translate_errors("read"):
            contents = fs.cat_ranges(list(names), list(firsts), list(lasts), on_error="return")
            for (entry, _, _), content in zip(nonempty, contents, strict=True):
                if isinstance(content, BaseException) and not isinstance(content, FileNotFoundError):
                    raise content
                result[entry] = None if isinstance(content, BaseException) else bytes(content)
        return result

    def _connect(self) -> tuple[Any, str]:
        """Return the connection of this process, and the path of the root in it."""
        if self._process != os.getpid():
            remedy = "set ABSTAIN_FEATURES to a folder, or to a URL such as s3://bucket/prefix"
            self._fs, self._base = connect(self._address, remedy)
            self._process = os.getpid()
        return self._fs, self._base

    def _translate_errors(self, verb: str) -> AbstractContextManager[None]:
        check = "ABSTAIN_FEATURES, the credentials"
        if self._folder:
            check = "who owns that folder and what room it has (`abstain cache prune` makes some), or set "
            check += "ABSTAIN_FEATURES to another"
        elif self._protocol in S3:
            check += " and AWS_ENDPOINT_URL (the AWS_* variables)"

        code = Code.NOT_READABLE if verb == "read" else Code.NOT_WRITABLE
        return translate_errors(
            code, f"cannot {verb} the feature cache in {self.url}", f"check {check}", FileNotFoundError
        )


def _list_bucket_files(fs: Any, prefix: str) -> Iterable[dict[str, Any]]:
    try:
        return list(fs.find(prefix, detail=True).values())
    except (FileNotFoundError, NotADirectoryError) as error:  # a prefix without objects is none: it is the bucket
        raise PermissionError("no such bucket") from error


def _iter_folder_files(fs: Any, folder: str) -> Iterator[dict[str, Any]]:
    """Yield the files below `folder`. The `find` of fsspec takes an unreadable subfolder for an empty one."""
    try:
        listing = fs.ls(folder, detail=True)
    except (FileNotFoundError, NotADirectoryError):  # another process removed it
        return
    for info in listing:
        if info["type"] == "directory":
            yield from _iter_folder_files(fs, info["name"])
        else:
            yield info
