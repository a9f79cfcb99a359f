"""The format of a bundle, in the metadata of its probe's ONNX file, and the digest of its files.

A bundle of another format is not converted: a version can be rebuilt from its tag.
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
"""The file with the digest that a bundle carries.

It reveals damage and exchanged files. Whoever writes all files can also write this one; only the digest in the
registry's event reveals that.
"""


def require_format(metadata: Mapping[str, str]) -> None:
    """Check that a bundle's ONNX file has the format that this release reads.

    Args:
        metadata: Metadata of the ONNX file.

    Raises:
        AbstainError: The format is not `BUNDLE_FORMAT`.
    """
    bundle_format = metadata.get(FORMAT_KEY, "none")
    if bundle_format != BUNDLE_FORMAT:
        raise AbstainError(
            Code.VERSION_MISMATCH,
            f"the bundle has format {bundle_format}, and this release reads {BUNDLE_FORMAT}: use the release that "
            "wrote it, or run `abstain retrain`",
        )


def write_digest(bundle: Path) -> str:
    """Write `DIGEST_FILE` into a finished bundle.

    Args:
        bundle: Folder of the bundle; all its other files are complete.

    Returns:
        The digest, hex.
    """
    digest = _compute_digest(bundle)
    (bundle / DIGEST_FILE).write_text(f"{digest}\n")
    return digest


def is_intact(bundle: Path, digest: str | None = None) -> bool:
    """Return whether the files of a bundle have the digest that the bundle carries.

    Args:
        bundle: Folder of the bundle.
        digest: The digest recorded elsewhere, which the bundle's digest must then equal as well; None skips this check.
    """
    file, actual_digest = bundle / DIGEST_FILE, _compute_digest(bundle)
    return file.is_file() and file.read_bytes() == f"{actual_digest}\n".encode() and digest in (None, actual_digest)


def compute_sha256(file: Path) -> str:
    """Return the SHA-256 of a file's bytes, hex."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _compute_digest(bundle: Path) -> str:
    """Return the SHA-256 (hex) over names and contents of all other files.

    A file that is added, removed or changed changes it.
    """
    files = {file.relative_to(bundle).as_posix(): file for file in bundle.rglob("*") if file.is_file()}
    digests = [[name, compute_sha256(files[name])] for name in sorted(files.keys() - {DIGEST_FILE})]
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()
