"""The format of a release bundle, and the one converter of bundles in former formats.

Format 1 has no number; its ONNX metadata hold `promise`, with the keys `promised` and `says`. Up to format 2 the probe
is what is served, so there is no `scorer`; up to format 3 it reads the state of EOS, so nothing says that it does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.scorer_names import PROBE

BUNDLE_FORMAT = WITH_EOS = 4
WITH_SCORER = 3
FORMAT_KEY = "format"
_SERVED_PROBE: Mapping[str, Any] = {"name": PROBE, "kinds": {PROBE: "probe"}, "sha256": {}, "forward_tokens": None}
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
    if int(written) < WITH_SCORER:
        found.setdefault("scorer", json.dumps(_SERVED_PROBE))
    if int(written) < WITH_EOS:
        found.setdefault("includes_eos", "true")
    return found


def current_smoke_test(content: Any) -> dict[str, list[float]]:
    """The expected confidences of a bundle's smoke test, by what gives them: up to format 2 the probe alone does."""
    return dict(content) if isinstance(content, dict) else {PROBE: list(content)}
