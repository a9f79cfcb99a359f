"""Files of this host, or of whatever fsspec speaks: what is there, and their bytes.

Two decisions:

* A file's version is taken from the listing, before it is read: one that grows while it is read looks changed the
  next time, and is read again.
* Every backend raises errors of its own, with no common base: all become one `AbstainError` that names the file, and
  only where bytes are read, so that no mistake in here is taken for a bad disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from abstain.core.errors import AbstainError

_CHUNK = 1 << 20
_S3: dict[str, Any] = {
    "use_listings_cache": False,
    # An address where nobody answers is given up after seconds: people wait for the message.
    "config_kwargs": {"connect_timeout": 4, "retries": {"total_max_attempts": 2}},
}


def shown(url: str) -> str:
    """A local path or URL without what nobody should read: a password, and what follows a question mark."""
    return re.sub(r"//[^/]*@", "//", url).partition("?")[0] if "://" in url else url


@dataclass(frozen=True)
class Stored:
    """One file: `name` relative to the folder that was listed (its own name, where that is a file), where the backend
    has it, what it is called in messages, and what changes when its content does (None where the backend is silent)."""

    name: str
    path: str
    shown: str
    version: str | None


@dataclass(frozen=True)
class Listing:
    """The files at a place, by name, hidden ones left out; `is_folder` says what the place is."""

    files: tuple[Stored, ...]
    is_folder: bool


class Storage:
    """A local path or an fsspec URL. `url` is as it may be shown: without password and signature."""

    def __init__(self, url: str) -> None:
        import fsspec
        from fsspec.implementations.local import LocalFileSystem

        self.url = shown(url)
        self._fs: Any
        if "://" not in url:
            self._fs, self._root = LocalFileSystem(), str(Path(url).expanduser().absolute())
            return
        protocol = url.split("://")[0]
        try:
            self._fs, root = fsspec.url_to_fs(url, **(_S3 if protocol in ("s3", "s3a") else {}))
        except ImportError as error:
            remedy = "`pip install s3fs`" if protocol in ("s3", "s3a") else f"{error}"
            raise AbstainError(f"{self.url}: to read from there another package is needed: {remedy}") from error
        except ValueError as error:
            raise AbstainError(
                f"{self.url}: {error}: name a folder, a file, or a URL such as s3://bucket/prefix"
            ) from error
        self._root = root.rstrip("/")

    @property
    def is_local(self) -> bool:
        return "file" in self._protocols

    def list(self) -> Listing:
        """Everything at the place, folders recursively. Raises `AbstainError` where nothing is there."""
        with self._speaking(self.url):
            if not self.is_local:
                self._fs.invalidate_cache()
            try:
                here = self._fs.info(self._root)
            except FileNotFoundError as error:
                raise AbstainError(f"{self.url}: {self._why_not_found(error)}") from None
            if here["type"] != "directory":
                only = Stored(self.url.rstrip("/").rpartition("/")[2], self._root, self.url, _version(here))
                return Listing((only,), is_folder=False)
            # What may not be listed is an error, and not empty.
            found = self._fs.find(self._root, detail=True, **({"on_error": "raise"} if self.is_local else {}))
            files = []
            for path, info in sorted(found.items()):
                name = path[len(self._root) :].lstrip("/")
                if any(part.startswith(".") for part in name.split("/")):
                    continue
                if info.get("islink"):  # the listing tells of the link
                    try:
                        info = self._fs.info(path)
                    except FileNotFoundError:
                        continue
                if info["type"] == "file":
                    files.append(Stored(name, path, f"{self.url.rstrip('/')}/{name}", _version(info)))
        return Listing(tuple(files), is_folder=True)

    @contextmanager
    def open(self, file: Stored) -> Iterator[IO[bytes]]:
        """The bytes of `file`, which can be read from any place in it."""
        with self._speaking(file.shown):
            opened = self._fs.open(file.path, "rb")
        try:
            yield opened
        finally:
            opened.close()

    def chunks(self, file: Stored) -> Iterator[bytes]:
        """The bytes of `file` from the first to the last, unpacked where its name ends in .gz."""
        import gzip

        with self.open(file) as opened:
            unpacked = gzip.GzipFile(fileobj=opened) if file.name.lower().endswith(".gz") else opened
            while True:
                with self._speaking(file.shown):
                    chunk = unpacked.read(_CHUNK)
                if not chunk:
                    return
                yield chunk

    def _why_not_found(self, error: FileNotFoundError) -> str:
        """Over HTTP whatever went wrong comes as a file that was not found; its cause tells what it was."""
        cause = error.__cause__
        if "http" not in self._protocols or cause is None:
            return "no such file or folder"
        status = getattr(cause, "status", None)
        if isinstance(status, int) and status:
            return "no such file or folder" if status in (404, 410) else f"the server answers with HTTP status {status}"
        if isinstance(cause, ValueError):
            return "is no URL that a host can be asked for: check its spelling"
        failed = getattr(cause, "os_error", cause)  # the system's own words: others tell the whole URL again
        number = getattr(failed, "errno", None) or 0
        said = os.strerror(number) if number > 0 else getattr(failed, "strerror", None)
        said = getattr(failed, "reason", None) or said or type(failed).__name__  # of TLS it is the reason
        return f"the host could not be reached: {said}: check address and network"

    @property
    def _protocols(self) -> tuple[str, ...]:
        protocol = self._fs.protocol
        return (protocol,) if isinstance(protocol, str) else tuple(protocol)

    @contextmanager
    def _speaking(self, name: str) -> Iterator[None]:
        try:
            yield
        except AbstainError:
            raise
        except OSError as error:
            said = error.strerror or " ".join(str(error).split())[:200] or type(error).__name__
            raise AbstainError(f"{name}: cannot be read: {said}") from error
        except Exception as error:
            said = " ".join(str(error).split())[:200] or type(error).__name__
            raise AbstainError(f"{name}: cannot be read: {said}") from error


def _version(info: Mapping[str, Any]) -> str | None:
    """From an object store its checksum, else size and time; the inode tells a file from another in its place."""
    for key in ("ETag", "etag", "md5Hash", "md5"):
        if info.get(key):
            return str(info[key])
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        if info.get(key):
            return " ".join(str(part) for part in (info.get("size"), info[key], info.get("ino")) if part is not None)
    return None
