"""A release bundle: the format in the metadata of its probe's ONNX file, and the digest of its files.

Nothing is converted: a version can be made again from its tag.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

BUNDLE_FORMAT = "1"
FORMAT_KEY = "format"
DIGEST_FILE = "bundle.sha256"
"""The digest that a bundle carries. It tells damage and an exchange of some files; who writes all can write this one,
too: only the digest in the registry's event tells that."""


def require_format(metadata: Mapping[str, str]) -> None:
    """Raise `AbstainError` where the metadata of a bundle's ONNX file are not of `BUNDLE_FORMAT`."""
    found = metadata.get(FORMAT_KEY, "none")
    if found != BUNDLE_FORMAT:
        raise AbstainError(
            Code.VERSION_MISMATCH,
            f"the bundle has format {found}, and this release reads {BUNDLE_FORMAT}: use the release that wrote it, or "
            "run `abstain retrain`",
        )


def write_digest(bundle: Path) -> str:
    """Write `DIGEST_FILE` of a finished `bundle`, and return the digest."""
    digest = _digest_of(bundle)
    (bundle / DIGEST_FILE).write_text(f"{digest}\n")
    return digest


def is_whole(bundle: Path, digest: str | None = None) -> bool:
    """Whether the files of `bundle` have the digest that it carries, which is `digest` where that is given."""
    file, found = bundle / DIGEST_FILE, _digest_of(bundle)
    return file.is_file() and file.read_bytes() == f"{found}\n".encode() and digest in (None, found)


def sha256(file: Path) -> str:
    """The SHA-256 of a file's bytes, hex."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _digest_of(bundle: Path) -> str:
    """The SHA-256 (hex) over names and contents of all other files: one more, one less or another changes it."""
    files = {file.relative_to(bundle).as_posix(): file for file in bundle.rglob("*") if file.is_file()}
    listed = [[name, sha256(files[name])] for name in sorted(files.keys() - {DIGEST_FILE})]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()
