"""File systems that fsspec supports (a bucket, a web server, another host): connect, redact URLs, translate errors.

Every backend raises errors of its own (botocore's, aiohttp's, paramiko's), with no common base: `translate_errors`
turns all of them into one `AbstainError`.
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
"""A colon before the first `/` or `@` that no port follows: there a password begins."""
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"`<>()]+", re.IGNORECASE)
_WEB = re.compile(r"(?:^|::)(https?)://")
"""A web server, behind other protocols or not."""
_VARIABLE = re.compile(r"\$\{(\w+)\}")
URL_REMEDY = "name a folder, a file, or a URL such as s3://bucket/prefix"

_S3_OPTIONS: dict[str, Any] = {
    "use_listings_cache": False,
    # Twice by botocore, times _S3_RETRIES of s3fs: a server that does not answer is given up after some 18 s.
    "config_kwargs": {"connect_timeout": 4, "retries": {"total_max_attempts": 2}},
}
_S3_RETRIES = 2


def get_protocol(url: str) -> str:
    """`file` for a path, else the scheme before `://`."""
    protocol, separator, _ = url.partition("://")
    return protocol if separator else "file"


def redacted_url(url: str) -> str:
    """`url` without user, password, query and fragment, which may hold a signature; a local path is unchanged.

    A password that should have been quoted may contain `@`, `/`, `?` and `#`: everything before the last `@` is taken
    for it, though a path may have one. The names of a bucket's objects may contain `#`.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    place = _without_query(scheme, rest)
    if _PASSWORD.search(re.split("[/@]", place, maxsplit=1)[0]):
        place = _without_query(scheme, (place if "@" in place else rest).rpartition("@")[2])
    host, slash, path = place.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _without_query(scheme: str, rest: str) -> str:
    """What follows `scheme://` in a URL, up to its query or fragment."""
    place = rest.partition("?")[0]
    return place if scheme in BUCKET_PROTOCOLS else place.partition("#")[0]


def redact_urls(text: str) -> str:
    """`text` with every URL in it redacted; for what other programs and packages say."""
    return _URL.sub(lambda found: redacted_url(found[0]), text)


def is_url(text: str) -> bool:
    """Whether `text` is a URL, or a `${VARIABLE}` that holds one, rather than a path."""
    return "://" in text or _VARIABLE.fullmatch(text) is not None


def expand_variables(url: str, where: str) -> str:
    """`url` with each `${VARIABLE}` replaced by the environment's, quoted unless it is the whole; a path is unchanged.

    So a secret is in no file, no process list and no flow's parameters. Raises `AbstainError`, which begins with
    `where`, for a variable that is not set.
    """
    if not is_url(url):
        return url
    is_whole = _VARIABLE.fullmatch(url)

    def value_of(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise AbstainError(Code.BAD_SETTING, f"{where}: the environment variable {match[1]} in its url is not set")
        value = os.environ[match[1]]
        return value if is_whole else quote(value, safe="")  # a part of a URL, such as a password, may be any text

    return _VARIABLE.sub(value_of, url)


def get_display_name(url: str) -> str:
    """The last part of what `url`, with its variables, names: without secrets, for reports and commits."""
    shown = redacted_url(expand_variables(url, redacted_url(url)))
    return shown.rstrip("/").rpartition("/")[2] or shown


def local_path(url: str) -> Path | None:
    """The absolute path that `url` (a path, `file://` or `local://`) names on this host, else None."""
    if "://" not in url:
        return Path(url).expanduser().absolute()
    if get_protocol(url) not in ("file", "local"):
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
    is_s3, web = get_protocol(url) in S3, _WEB.search(url)
    try:
        options = {web[1]: _http_options()} if web else _S3_OPTIONS if is_s3 else {}
        fs, root = fsspec.url_to_fs(url, **options)
    except ImportError as error:
        package = '`pip install "abstain[s3]"`' if is_s3 else f"{error}"
        raise AbstainError(Code.NO_PACKAGE, f"{redacted_url(url)}: another package is needed: {package}") from error
    except ValueError as error:
        raise AbstainError(Code.NOT_READABLE, f"{redacted_url(url)}: {redact_urls(str(error))}: {remedy}") from None
    if is_s3:
        fs.retries = _S3_RETRIES
    return fs, root.rstrip("/")


@cache
def _http_options() -> dict[str, Any]:
    """Options of fsspec's file system for web servers."""
    import aiohttp

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_require_same_host)
    return {"client_kwargs": {"trace_configs": [trace]}}


async def _require_same_host(_session: Any, _context: Any, redirect: Any) -> None:
    """Raise `AbstainError` at a redirect to another host or port, unless it is to https: it may be an internal one."""
    asked, headers = redirect.url, redirect.response.headers
    to = asked.join(type(asked)(headers.get("Location") or headers.get("URI", "")))
    if (to.scheme, to.host, to.port) not in ((asked.scheme, asked.host, asked.port), ("https", asked.host, 443)):
        raise AbstainError(
            Code.NOT_READABLE, f"the server redirects to another host, {to.host}: name the file as it is there"
        )


@contextmanager
def translate_errors(code: Code, problem: str, remedy: str, *passed: type[Exception]) -> Iterator[None]:
    """Raise a backend's errors as an `AbstainError`: `problem`, the cause, `remedy`; `passed` are left as they are."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (AbstainError, *passed)):
            raise
        cause = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
        # Not `from error`: a traceback would show its URL, signature included, in the run's log.
        cause = redact_urls(cause)[:200] or type(error).__name__
        raise AbstainError(code, f"{problem}: {cause}: {remedy}") from None


def get_modified_time(info: Mapping[str, Any]) -> datetime | None:
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
