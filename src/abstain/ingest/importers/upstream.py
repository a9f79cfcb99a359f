"""Reading the files that others publish: packed or not, each record held against a model of what is needed of it.

An unknown field there is none of our business, a missing or odd one stops the import: half a set is no set.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from abstain.core.errors import AbstainError

M = TypeVar("M", bound=BaseModel)


class Record(BaseModel):
    """Base of the models of published records."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def read_bytes(file: Path) -> bytes:
    """The whole file, unpacked where its name ends in .gz. Raises `AbstainError` where it cannot be read."""
    try:
        content = file.read_bytes()
        return gzip.decompress(content) if file.suffix.lower() == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        said = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise AbstainError(f"{file}: cannot be read: {said}") from None


def parse(content: bytes, model: type[M], where: str) -> M:
    """`content` as a `model`. Raises `AbstainError` that names the field."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"])
        raise AbstainError(
            f"{where}: {field + ': ' if field else ''}{problem['msg']}: is this the right FORMAT?"
        ) from None


def records(file: Path, model: type[M]) -> Iterator[M]:
    """The records of a JSON Lines file. Raises `AbstainError` that names line and field."""
    for number, line in enumerate(read_bytes(file).split(b"\n"), start=1):
        if line.strip():
            yield parse(line, model, f"{file} line {number}")
