"""Storage of the feature cache: a local folder, an object store, or another host: any place that fsspec supports.

Notes:

* A file is seen whole or not at all. An object store's own PUT is atomic (a multipart upload, too, shows nothing before
  it is completed). Elsewhere (a folder, sftp, smb, hdfs) a temporary file is written and renamed.
* No listing is cached, because other hosts write at the same time; the connection belongs to one process, because a
  forked one must not use its parent's.
* I/O failures are raised as `AbstainError`, naming folder or URL and the remedy. Only FileNotFoundError passes: another
  process moved or pruned the file, which is no fault.
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
    get_modified_time,
    get_protocol,
    local_path,
    redacted_url,
    translate_errors,
)

FIRST_BYTES = 16 * 1024  # holds the header of a shard of 64 rows twice over
AT_ONCE = 512  # headers requested at once: bounds memory, not concurrency
ATOMIC = (*BUCKET_PROTOCOLS, "memory")
"""Protocols with an atomic PUT."""


@dataclass(frozen=True)
class StoredFile:
    """One file: `name` relative to the root, its size in bytes, when it was last written (UTC)."""

    name: str
    size: int
    written: datetime


def header_end(head: bytes) -> int:
    """Return the end of the header of a safetensors file that begins with `head`: 8 bytes hold its length."""
    return 8 + int.from_bytes(head[:8], "little")


class FileStore:
    """Files under one root, by names relative to it with `/` between their parts. Opening it makes no folder.

    Args:
        root: a local path or fsspec URL.

    Attributes:
        url: the root as it may be shown, without a password.

    Raises:
        AbstainError: the URL is not supported; and from every method, the root cannot be read or written.
    """

    def __init__(self, root: str | Path) -> None:
        self._folder = local_path(str(root))
        self._address = str(self._folder or root).rstrip("/")
        self.url = redacted_url(self._address)
        self._protocol = get_protocol(self._address)
        self._process = 0
        self._connect()

    def list(self, folder: str = "") -> list[StoredFile]:
        """Return all files below `folder`, by name; none where it does not exist."""
        fs, base = self._connect()
        place, entries = f"{base}/{folder}".rstrip("/"), []
        with self._translate_errors("read"):
            fs.invalidate_cache()
            for info in _bucket_files(fs, place) if self._protocol in BUCKET_PROTOCOLS else _folder_files(fs, place):
                with suppress(FileNotFoundError):  # a link to nothing
                    if info.get("islink"):  # the listing describes the link
                        info = fs.info(info["name"])
                    if info["type"] == "file":
                        # One without a time is new: too young to be pruned.
                        written = get_modified_time(info) or datetime.now(UTC)
                        entries.append(StoredFile(info["name"][len(base) :].lstrip("/"), info["size"], written))
        return sorted(entries, key=lambda entry: entry.name)

    def heads(self, entries: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, bytes | None]]:
        """Yield the first bytes of each safetensors file, at least to the header's end; None where it is gone."""
        for at in range(0, len(entries), AT_ONCE):
            some = entries[at : at + AT_ONCE]
            heads = self._ranges([(entry, 0, FIRST_BYTES) for entry in some])
            longer = [
                (entry, FIRST_BYTES, header_end(head))
                for entry, head in heads.items()
                if head is not None and len(head) == FIRST_BYTES < header_end(head) <= entry.size
            ]
            for entry, rest in self._ranges(longer).items():
                heads[entry] = (heads[entry] or b"") + rest if rest is not None else None
            yield from heads.items()

    def read(self, name: str) -> bytes:
        """Return the whole file. FileNotFoundError where it is gone."""
        fs, base = self._connect()
        with self._translate_errors("read"):
            return bytes(fs.cat_file(f"{base}/{name}"))

    def write(self, name: str, content: bytes) -> None:
        """Write the file, whole or not at all, in place of one that has the name."""
        fs, base = self._connect()
        target = f"{base}/{name}"
        with self._translate_errors("write"):
            try:
                if self._folder:
                    write_atomically(self._folder / name, content)
                elif self._protocol in ATOMIC:
                    fs.pipe_file(target, content)
                else:
                    self._write_and_rename(fs, target, content)
            except FileNotFoundError as error:
                raise PermissionError("no such bucket or folder") from error

    def move(self, name: str, to: str) -> None:
        """Rename, replacing. FileNotFoundError where it is gone."""
        fs, base = self._connect()
        with self._translate_errors("write"):
            if self._protocol not in ATOMIC:  # there are no folders in a bucket, and s3fs would make the bucket
                fs.makedirs(f"{base}/{to}".rpartition("/")[0], exist_ok=True)
            fs.mv(f"{base}/{name}", f"{base}/{to}")

    def delete(self, name: str) -> None:
        """Remove the file if it is still there."""
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

    def _ranges(self, wanted: Sequence[tuple[StoredFile, int, int]]) -> dict[StoredFile, bytes | None]:
        """Bytes first..last of each entry, all requested at the same time; None where it is gone."""
        fs, base = self._connect()
        result: dict[StoredFile, bytes | None] = {entry: b"" for entry, _, _ in wanted}
        asked = [(entry, first, min(last, entry.size)) for entry, first, last in wanted if entry.size > first]
        if not asked:  # an empty object has no range to request
            return result
        names, firsts, lasts = zip(
            *((f"{base}/{entry.name}", first, last) for entry, first, last in asked), strict=True
        )
        with self._translate_errors("read"):
            answers = fs.cat_ranges(list(names), list(firsts), list(lasts), on_error="return")
            for (entry, _, _), got in zip(asked, answers, strict=True):
                if isinstance(got, BaseException) and not isinstance(got, FileNotFoundError):
                    raise got
                result[entry] = None if isinstance(got, BaseException) else bytes(got)
        return result

    def _connect(self) -> tuple[Any, str]:
        """This process's own connection, and the root's path in it."""
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


def _bucket_files(fs: Any, prefix: str) -> Iterable[dict[str, Any]]:
    try:
        return list(fs.find(prefix, detail=True).values())
    except (FileNotFoundError, NotADirectoryError) as error:  # a prefix without objects is none: it is the bucket
        raise PermissionError("no such bucket") from error


def _folder_files(fs: Any, folder: str) -> Iterator[dict[str, Any]]:
    """Yield what is below `folder` and no folder. fsspec's `find` takes a subfolder that may not be read for empty."""
    try:
        listing = fs.ls(folder, detail=True)
    except (FileNotFoundError, NotADirectoryError):  # another process removed it
        return
    for info in listing:
        if info["type"] == "directory":
            yield from _folder_files(fs, info["name"])
        else:
            yield info
