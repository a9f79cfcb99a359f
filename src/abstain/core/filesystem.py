"""File systems that fsspec supports (a bucket, a web server, another host): connect, redact URLs, translate errors.

Every backend raises errors of its own (botocore's, aiohttp's, paramiko's), with no common base: `translate_errors`
turns all of them into one `AbstainError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

S3 = ("s3", "s3a")
BUCKETS = (*S3, "gs", "gcs", "abfs", "abfss", "az", "oss")
"""Protocols of object stores: their PUT is atomic, and they have no folders."""
URL_REMEDY = "name a folder, a file, or a URL such as s3://bucket/prefix"

_S3_OPTIONS: dict[str, Any] = {
    "use_listings_cache": False,
    # Twice by botocore, times _S3_RETRIES of s3fs: a server that does not answer is given up after some 18 s.
    "config_kwargs": {"connect_timeout": 4, "retries": {"total_max_attempts": 2}},
}
_S3_RETRIES = 2


def protocol_of(url: str) -> str:
    """`file` for a path, else the scheme before `://`."""
    protocol, separator, _ = url.partition("://")
    return protocol if separator else "file"


def redacted_url(url: str) -> str:
    """`url` without a password and without a query, which may hold a signature; a local path is unchanged."""
    return re.sub(r"//[^/]*@", "//", url).partition("?")[0] if "://" in url else url


def local_path(url: str) -> Path | None:
    """The absolute path that `url` (a path, `file://` or `local://`) names on this host, else None."""
    if "://" not in url:
        return Path(url).expanduser().absolute()
    if protocol_of(url) not in ("file", "local"):
        return None
    from fsspec.implementations.local import LocalFileSystem

    return Path(LocalFileSystem._strip_protocol(url))


def connect(url: str, remedy: str = URL_REMEDY) -> tuple[Any, str]:
    """fsspec's file system for `url`, and the path of the root in it. A connection belongs to one process.

    Raises `AbstainError` where a package is missing, and with `remedy` where `url` is not valid.
    """
    import fsspec

    if path := local_path(url):
        from fsspec.implementations.local import LocalFileSystem

        return LocalFileSystem(), str(path)
    is_s3 = protocol_of(url) in S3
    try:
        fs, root = fsspec.url_to_fs(url, **(_S3_OPTIONS if is_s3 else {}))
    except ImportError as error:
        package = "`pip install s3fs`" if is_s3 else f"{error}"
        raise AbstainError(Code.NO_PACKAGE, f"{redacted_url(url)}: another package is needed: {package}") from error
    except ValueError as error:
        raise AbstainError(Code.NOT_READABLE, f"{redacted_url(url)}: {error}: {remedy}") from error
    if is_s3:
        fs.retries = _S3_RETRIES
    return fs, root.rstrip("/")


@contextmanager
def translate_errors(code: Code, message: Callable[[str], str], *passed: type[Exception]) -> Iterator[None]:
    """Raise a backend's errors as an `AbstainError` of `code` with `message` of the cause; `passed` are unchanged."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (AbstainError, *passed)):
            raise
        cause = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())[:200]
        raise AbstainError(code, message(cause or type(error).__name__)) from error


def modified_at(info: Mapping[str, Any]) -> datetime | None:
    """When a file was last written (UTC), under the key that its backend uses for it; None where it has none."""
    for key in ("LastModified", "mtime", "last_modified", "updated", "created"):
        at = info.get(key)
        if isinstance(at, int | float):
            return datetime.fromtimestamp(at, UTC)
        if isinstance(at, str):
            at = datetime.fromisoformat(at)
        if isinstance(at, datetime):
            return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    return None
