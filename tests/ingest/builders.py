"""Ingests of files, with validators that refuse some of their rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from abstain.core.codes import Code
from abstain.core.reasons import Reason
from abstain.data.validation.checks import ValidatedRows
from abstain.data.validation.runner import ValidationResult
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.report import IngestReport
from abstain.ingest.sources.files import make_explicit_sources
from tests.factories import NOW, PARAMS, accept_all, bytes_of

LENIENT = PARAMS.model_copy(update={"max_failed_fraction": 1.0})
NOT_LIKED = Reason(Code.FAILED_CHECK, "field", "not liked")


def take(
    data: Path, *files: Path | str, params: Any = LENIENT, validate: Any = accept_all, **options: Any
) -> IngestReport:
    sources = make_explicit_sources([str(file) for file in files])
    return ingest(sources, data, params, NOW, validate=validate, **options)


def refuse(is_bad: Callable[[Any], bool]) -> Any:
    """A validator that fails some rows."""

    def validate(rows: ValidatedRows, *_: Any) -> ValidationResult:
        lines = (*rows.interactions, *rows.feedback, *rows.reviews)
        return ValidationResult(rows={}, reasons={line.key: (NOT_LIKED,) for line in lines if is_bad(line)})

    return validate


def refuse_keys(*prefixes: str) -> Any:
    return refuse(lambda line: line.key.startswith(prefixes))


def read_all(data: Path) -> str:
    return "".join(content.decode() for content in bytes_of(data).values())
