"""File systems that fsspec supports (a bucket, a web server, another host): connect, redact URLs, translate errors.

Every backend raises its own errors (botocore, aiohttp, paramiko), which have no common base: `translate_errors` turns
all of them into one `AbstainError`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

S3 = ("s3", "s3a")
BUCKET_PROTOCOLS = (*S3, "gs", "gcs", "abfs", "abfss", "az", "oss")
"""Protocols of object stores: their PUT is atomic, and they have no folders."""
_PASSWORD = re.compile(r":(?!\d*$)[^\]]*$")
"""A colon before the first `/` or `@` that is not followed by a port: a password begins there."""
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"`<>()]+", re.IGNORECASE)
_WEB = re.compile(r"(?:^|::)(https?)://")
"""The URL of a web server, possibly behind other protocols."""
_VARIABLE = re.compile(r"\$\{(\w+)\}")
URL_REMEDY = "name a folder, a file, or a URL such as s3://bucket/prefix"

_S3_OPTIONS: dict[str, Any] = {
    "use_listings_cache": False,
    # Twice by botocore, times _S3_RETRIES of s3fs: a server that does not answer is given up after some 18 s.
    "config_kwargs": {"connect_timeout": 4, "retries": {"total_max_attempts": 2}},
}
_S3_RETRIES = 2


def get_protocol(url: str) -> str:
    """Return the scheme before `://`, or `file` for a path."""
    protocol, separator, _ = url.partition("://")
    return protocol if separator else "file"


def redact_url(url: str) -> str:
    """Return `url` without user, password, query and fragment, which may hold a signature; a local path is unchanged.

    A password that should have been quoted may contain `@`, `/`, `?` and `#`. Therefore everything before the last `@`
    counts as the password, although a path may contain one. The names of a bucket's objects may contain `#`.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    location = _without_query(scheme, rest)
    if _PASSWORD.search(re.split("[/@]", location, maxsplit=1)[0]):
        location = _without_query(scheme, (location if "@" in location else rest).rpartition("@")[2])
    host, slash, path = location.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _without_query(scheme: str, rest: str) -> str:
    """Return the part of a URL between `scheme://` and its query or fragment."""
    location = rest.partition("?")[0]
    return location if scheme in BUCKET_PROTOCOLS else location.partition("#")[0]


def redact_urls(text: str) -> str:
    """Return `text` with every URL in it redacted; used for messages of other programs and packages."""
    return _URL.sub(lambda match: redact_url(match[0]), text)


def is_url(text: str) -> bool:
    """Return whether `text` is a URL, or a `${VARIABLE}` that holds one, rather than a path."""
    return "://" in text or _VARIABLE.fullmatch(text) is not None


def expand_variables(url: str, where: str) -> str:
    """Replace each `${VARIABLE}` in a URL by the environment's value.

    So a secret is in no file, no process list and no flow's parameters. Values are quoted, unless one variable is the
    whole URL. A path is unchanged.

    Args:
        url: A URL with variables, or a path.
        where: Beginning of the error message, such as the name of the source.

    Returns:
        The URL with all values.

    Raises:
        AbstainError: A variable is not set.
    """
    if not is_url(url):
        return url
    is_whole = _VARIABLE.fullmatch(url)

    def get_variable(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise AbstainError(Code.BAD_SETTING, f"{where}: the environment variable {match[1]} in its url is not set")
        value = os.environ[match[1]]
        return value if is_whole else quote(value, safe="")  # a part of a URL, such as a password, may be any text

    return _VARIABLE.sub(get_variable, url)


def get_display_name(url: str) -> str:
    """Return the last part of a URL with its variables: a name without secrets, for reports and commits."""
    redacted = redact_url(expand_variables(url, redact_url(url)))
    return redacted.rstrip("/").rpartition("/")[2] or redacted


def get_local_path(url: str) -> Path | None:
    """Return the absolute path on this host that `url` (a path, `file://` or `local://`) names, else None."""
    if "://" not in url:
        return Path(url).expanduser().absolute()
    if get_protocol(url) not in ("file", "local"):
        return None
    from fsspec.implementations.local import LocalFileSystem

    return Path(LocalFileSystem._strip_protocol(url))


def connect(url: str, remedy: str = URL_REMEDY) -> tuple[Any, str]:
    """Open fsspec's file system for a URL. A connection belongs to one process.

    Args:
        url: A path or a URL, with its variables expanded.
        remedy: End of the error message for an invalid URL.

    Returns:
        The file system, and the path of the root in it.

    Raises:
        AbstainError: A package is missing, or `url` is not valid.
    """
    import fsspec

    if path := get_local_path(url):
        from fsspec.implementations.local import LocalFileSystem

        return LocalFileSystem(), str(path)
    is_s3, web = get_protocol(url) in S3, _WEB.search(url)
    try:
        options = {web[1]: _http_options()} if web else _S3_OPTIONS if is_s3 else {}
        fs, root = fsspec.url_to_fs(url, **options)
    except ImportError as error:
        package = '`pip install "abstain[s3]"`' if is_s3 else f"{error}"
        raise AbstainError(Code.NO_PACKAGE, f"{redact_url(url)}: another package is needed: {package}") from error
    except ValueError as error:
        raise AbstainError(Code.NOT_READABLE, f"{redact_url(url)}: {redact_urls(str(error))}: {remedy}") from None
    if is_s3:
        fs.retries = _S3_RETRIES
    return fs, root.rstrip("/")


@cache
def _http_options() -> dict[str, Any]:
    """Return the options of fsspec's file system for web servers."""
    import aiohttp

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_require_same_host)
    return {"client_kwargs": {"trace_configs": [trace]}}


async def _require_same_host(_session: Any, _context: Any, redirect: Any) -> None:
    """Raise `AbstainError` at a redirect to another host or port, unless it is to https: it may be an internal host."""
    origin, headers = redirect.url, redirect.response.headers
    target = origin.join(type(origin)(headers.get("Location") or headers.get("URI", "")))
    if (target.scheme, target.host, target.port) not in (
        (origin.scheme, origin.host, origin.port),
        ("https", origin.host, 443),
    ):
        raise AbstainError(
            Code.NOT_READABLE, f"the server redirects to another host, {target.host}: name the file as it is there"
        )


@contextmanager
def translate_errors(code: Code, problem: str, remedy: str, *passthrough: type[Exception]) -> Iterator[None]:
    """Raise any error of a backend as an `AbstainError` with the message "`problem`: cause: `remedy`".

    Args:
        code: Code of the error.
        problem: Beginning of the message: the operation that failed.
        remedy: End of the message.
        *passthrough: Classes of errors that are raised unchanged.

    Yields:
        Nothing.

    Raises:
        AbstainError: The block raised an error that is not in `passthrough`; URLs in the cause are redacted.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (AbstainError, *passthrough)):
            raise
        cause = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
        # Not `from error`: a traceback would show its URL, signature included, in the run's log.
        cause = redact_urls(cause)[:200] or type(error).__name__
        raise AbstainError(code, f"{problem}: {cause}: {remedy}") from None


def get_modified_time(info: Mapping[str, Any]) -> datetime | None:
    """Return the time at which a file was last written.

    Args:
        info: fsspec's information on the file. Each backend has its own key for the time.

    Returns:
        The time in UTC, or None if the backend gives none.
    """
    for key in ("LastModified", "mtime", "last_modified", "updated", "created"):
        modified_at = info.get(key)
        if isinstance(modified_at, int | float):
            return datetime.fromtimestamp(modified_at, UTC)
        if isinstance(modified_at, str):
            modified_at = datetime.fromisoformat(modified_at)
        if isinstance(modified_at, datetime):
            return modified_at.astimezone(UTC) if modified_at.tzinfo else modified_at.replace(tzinfo=UTC)
    return None
