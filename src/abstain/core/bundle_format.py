"""The format of a release bundle, in the metadata of its probe's ONNX file. Nothing is converted: a version can be
made again from its tag."""

from __future__ import annotations

from collections.abc import Mapping

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

BUNDLE_FORMAT = "1"
FORMAT_KEY = "format"


def require_format(metadata: Mapping[str, str]) -> None:
    """Raise `AbstainError` where the metadata of a bundle's ONNX file are not of `BUNDLE_FORMAT`."""
    found = metadata.get(FORMAT_KEY, "none")
    if found != BUNDLE_FORMAT:
        raise AbstainError(
            Code.OTHER_VERSION,
            f"the bundle has format {found}, and this release reads {BUNDLE_FORMAT}: use the release that wrote it, or "
            "run `abstain retrain`",
        )
