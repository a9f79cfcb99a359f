"""Reading published files, plain or packed (.gz): each record is validated against a model of the needed fields.

Unknown fields are ignored; a missing or invalid one stops the import, because half a set would be misleading.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

M = TypeVar("M", bound=BaseModel)


class UpstreamRecord(BaseModel):
    """Base class of the models of published records."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def read_document(file: Path, model: type[M]) -> M:
    """Read a JSON file as one record.

    Raises:
        AbstainError: the file is invalid; the message names the field.
    """
    return _parse(_read_bytes(file), model, str(file))


def read_records(file: Path, model: type[M]) -> Iterator[M]:
    """Yield the records of a JSON Lines file.

    Raises:
        AbstainError: a line is invalid; the message names line and field.
    """
    for number, line in enumerate(_read_bytes(file).split(b"\n"), start=1):
        if line.strip():
            yield _parse(line, model, f"{file} line {number}")


def _read_bytes(file: Path) -> bytes:
    try:
        content = file.read_bytes()
        return gzip.decompress(content) if file.suffix.lower() == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        message = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise AbstainError(Code.NOT_READABLE, f"{file}: cannot be read: {message}") from None


def _parse(content: bytes, model: type[M], where: str) -> M:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"])
        place = f"{where}: {field}" if field else where
        raise AbstainError(Code.WRONG_FORMAT, f"{place}: {problem['msg']}: is this the correct FORMAT?") from None
