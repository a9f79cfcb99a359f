"""The format of a release bundle, and the one converter of bundles in former formats.

Format 1 has no number; its ONNX metadata hold `promise`, with the keys `promised` and `says`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

BUNDLE_FORMAT = 2
FORMAT_KEY = "format"
_FORMER_KEYS = {"promised": "guaranteed", "says": "message"}


def current_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata of a bundle's ONNX file, in the keys of `BUNDLE_FORMAT`.

    Raises:
        AbstainError: a later version of this project wrote them.
        TypeError, ValueError: they are damaged.
    """
    written = metadata.get(FORMAT_KEY, "1")
    if not written.isdecimal() or int(written) > BUNDLE_FORMAT:
        raise AbstainError(
            Code.OTHER_VERSION, f"the bundle has format {written}, later than {BUNDLE_FORMAT}: update this project"
        )
    found = dict(metadata)
    if (former := found.pop("promise", None)) is not None:
        found["guarantee"] = json.dumps(
            {_FORMER_KEYS.get(key, key): of for key, of in dict(json.loads(former)).items()}
        )
    return found
