"""From the bytes of a file to typed rows, or to the reasons why not.

Two decisions:

* Types are checked strictly: `"complete": "yes"` is refused, not read as true. A guess about a verdict
  would be a wrong label.
* A line that cannot be read is a row like any other, with reasons instead of contents, so that nothing
  after this module has to know how rows can be broken, and every line is counted.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from abstain.contracts import (
    Chunk,
    Context,
    Document,
    Feedback,
    ImportedFeedback,
    ImportedInteraction,
    ImportedReview,
    Interaction,
    Review,
    Row,
)
from abstain.errors import AbstainError
from abstain.feedback.store import file_name_problem
from abstain.knowledge.markdown import chunk_document, parse_document

SUFFIXES = (".jsonl", ".md")

_BOM = b"\xef\xbb\xbf"
_PARTS: dict[str, type[BaseModel]] = {"thumb": ImportedFeedback, "review": ImportedReview, "contexts": Context}


@dataclass(frozen=True)
class InputRow:
    """One line of a JSON Lines file, or one document: either its typed contents or the reasons why not."""

    source: str
    line: int
    raw: bytes
    reasons: tuple[str, ...] = ()
    interaction: Interaction | None = None
    feedback: Feedback | None = None
    review: Review | None = None
    document: Document | None = None
    chunks: tuple[Chunk, ...] = ()

    def contents(self) -> Iterator[Row]:
        """The contract rows that this row brings, chunks left out."""
        for row in (self.document, self.interaction, self.feedback, self.review):
            if row is not None:
                yield row


@dataclass(frozen=True)
class Input:
    """A batch: its rows in order, and the files in its folders that ingest does not take."""

    rows: tuple[InputRow, ...]
    ignored: tuple[str, ...] = ()


def read_files(paths: Sequence[Path]) -> Input:
    """Read `.jsonl` and `.md` files, and folders of them recursively.

    Raises `AbstainError` for a path that is missing, empty, unreadable or of another kind. Files of another
    kind inside a folder are named in `ignored`; hidden ones are passed over.
    """
    if not paths:
        raise AbstainError("nothing to ingest: name .jsonl or .md files, or folders of them")
    rows: list[InputRow] = []
    ignored: list[str] = []
    for path in paths:
        if path.is_dir():
            found = [(file, file.relative_to(path)) for file in sorted(path.rglob("*")) if file.is_file()]
            found = [(file, name) for file, name in found if not any(part.startswith(".") for part in name.parts)]
            taken = [(file, name.as_posix()) for file, name in found if file.suffix.lower() in SUFFIXES]
            ignored += [name.as_posix() for file, name in found if file.suffix.lower() not in SUFFIXES]
            if not taken:
                raise AbstainError(f"{path}: this folder holds no .jsonl and no .md file")
        elif not path.exists():
            raise AbstainError(f"{path}: no such file or folder")
        elif path.suffix.lower() not in SUFFIXES:
            raise AbstainError(f"{path}: ingest takes .jsonl (interactions) and .md (documents), not '{path.suffix}'")
        else:
            taken = [(path, path.name)]
        for file, name in taken:
            rows += _read_file(file, name)
    return Input(tuple(rows), tuple(ignored))


def parse_line(line: bytes) -> ImportedInteraction | tuple[str, ...]:
    """One line of the import format, or every reason why it is none."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return (f"line: not valid UTF-8 (byte {error.start + 1} is 0x{line[error.start]:02x})",)
    try:
        return ImportedInteraction.model_validate_json(text, strict=True)
    except ValidationError as error:
        return tuple(_reason(problem) for problem in error.errors())
    except OverflowError:  # 0001-01-01T00:00:00+14:00 lies before the first UTC timestamp
        return ("line: a timestamp lies outside the years 1 to 9999",)


def _read_file(path: Path, source: str) -> list[InputRow]:
    try:
        content = path.read_bytes().removeprefix(_BOM)
    except OSError as error:
        raise AbstainError(f"{path}: cannot be read: {error.strerror}") from None
    if not content.strip():
        raise AbstainError(f"{path}: the file is empty")
    if path.suffix.lower() == ".md":
        return [_read_document(content, source)]
    lines = (line.removesuffix(b"\r") for line in content.split(b"\n"))
    return [_read_line(line, source, number) for number, line in enumerate(lines, start=1) if line.strip()]


def _read_line(line: bytes, source: str, number: int) -> InputRow:
    parsed = parse_line(line)
    if isinstance(parsed, tuple):
        return InputRow(source, number, line, reasons=parsed)
    interaction, feedback, review = parsed.split()
    return InputRow(source, number, line, interaction=interaction, feedback=feedback, review=review)


def _read_document(content: bytes, source: str) -> InputRow:
    try:
        document = parse_document(content.decode("utf-8"), source)
        chunks = tuple(chunk_document(document))
    except UnicodeDecodeError as error:
        reason = f"document: not valid UTF-8 (byte {error.start + 1} is 0x{content[error.start]:02x})"
    except AbstainError as error:
        reason = str(error).removeprefix(f"{source}: ")
    except (ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        # What PyYAML's constructors raise on odd scalars: 2026-13-45, `!!bool x`, a thousand brackets.
        reason = f"front matter: cannot be read ({type(error).__name__}: {' '.join(str(error).split())})"
    else:
        problem = file_name_problem(document.doc_id)
        if problem is None:
            return InputRow(source, 1, content, document=document, chunks=chunks)
        reason = problem
    return InputRow(source, 1, content, reasons=(reason,))


def _reason(problem: Any) -> str:
    """A pydantic problem as one line that opens with the field."""
    where = ".".join(str(part) for part in problem["loc"]) or "row"
    message = " ".join(str(problem["msg"]).split())
    if problem["type"] == "json_invalid":
        detail = str(problem["ctx"]["error"])
        return f"line: {'truncated' if detail.startswith('EOF') else 'invalid'} JSON: {detail}"
    if problem["type"] == "missing":
        return f"{where}: this field is missing"
    if problem["type"] == "extra_forbidden":
        *parents, name = problem["loc"]
        model = _PARTS.get(str(parents[0]), ImportedInteraction) if parents else ImportedInteraction
        nearest = difflib.get_close_matches(str(name), model.model_fields, n=1)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"known fields: {', '.join(model.model_fields)}"
        return f"{' '.join(where.split())}: unknown field, {hint}"
    return f"{where}: {message[0].lower()}{message[1:]}"
