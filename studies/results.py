"""Finished parts of studies, each a JSON file named by a digest of its inputs: a repeated run computes nothing.

An unreadable file counts as missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically


def digest_files(data: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the sha256 (hex) of the files `names` of a study's data, by name.

    Raises:
        AbstainError: the folder or one of the files is missing.
    """
    remedy = f"say with --data where {' and '.join(names)} are"
    if not data.is_dir():
        raise AbstainError(Code.NOT_READABLE, f"{data} is no folder: {remedy}")
    digests = {}
    for name in names:
        try:
            with (data / name).open("rb") as stream:
                digests[name] = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError:
            raise AbstainError(Code.NOT_READABLE, f"{data} has no file {name}: {remedy}") from None
    return digests


@dataclass(frozen=True)
class ResultStore:
    """The folder of finished parts, each stored with its inputs, so that people can read them."""

    folder: Path

    def read(self, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the result for `inputs`; None if there is none."""
        try:
            result: dict[str, Any] = json.loads(self.get_path(inputs).read_bytes())["result"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return result

    def write(self, inputs: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Store `result`; nan and infinity become null."""
        content = {"decided_by": inputs, "result": result}
        write_atomically(self.get_path(inputs), to_json(content, indent=1, inf_nan_mode="null"))

    def get_path(self, inputs: Mapping[str, Any]) -> Path:
        """Return the file of the result for `inputs`."""
        digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{digest[:32]}.json"
