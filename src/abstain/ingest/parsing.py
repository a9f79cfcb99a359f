"""Parse the bytes of a line or a document into typed rows, or into the reasons why they are invalid.

Notes:

* Types are checked strictly: `"complete": "yes"` is rejected, not read as true. A guess about a criterion would be a
  wrong label.
* An unreadable line is a row like any other, with reasons instead of contents, so that later modules need no special
  cases for broken rows, and every line is counted.
* `raw` is the text from which a row can be parsed again (`reparse`), for every kind of source: a row that is rejected
  today may be accepted once the rules or the rest of the data allow it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from abstain.core.codes import Code
from abstain.core.contracts import (
    CRITERIA,
    Context,
    Document,
    ImportedInteraction,
    ImportedReview,
    ImportedThumb,
    Interaction,
    Review,
    Row,
    Thumb,
)
from abstain.core.json_lines import find_duplicate_keys, format_key
from abstain.core.reasons import Reason, ReasonKind, Reasons
from abstain.core.text import suggest_name
from abstain.data.store.dataset import explain_invalid_file_name
from abstain.knowledge.documents.reader import SUFFIXES as DOCUMENT_SUFFIXES
from abstain.knowledge.documents.reader import parse_stored_document, serialize_document

JsonObject = dict[str, Any]
"""An object of foreign JSON, from a line, a cell or another tool; only a contract says what is in it."""

_PARTS: dict[str, type[BaseModel]] = {"thumb": ImportedThumb, "review": ImportedReview, "contexts": Context}
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_INTERACTION_FIELDS = frozenset({"question", "answer", "asked_at", "contexts", "model"})
_REVIEW_FIELDS = frozenset({"reviewed_at", "reviewer", *CRITERIA})

MAX_ROW_BYTES = 4 * 1024 * 1024
"""The longest row, in bytes: 60 contexts of 20,000 Chinese characters each."""

MAX_ROW_VALUES = 5_000
"""The maximum number of fields of a row, including those of its contexts and all other list items: 1,600 contexts."""

MAX_ROW_TOKENS = 100_000
"""The maximum number of values in `token_log_probs`."""

_OPTIONAL_TEXT_FIELDS = frozenset({"comment", "ideal_answer"})

MAX_REASONS = 20
"""The maximum number of reasons that are stored for one row."""


@dataclass(frozen=True, slots=True)
class ParsedRow:
    """One record of a source, or one document: either its typed contents or the reasons why it is invalid.

    Attributes:
        source: File, or table of a database.
        line: Number of the line, from 1, or key in the table.
        raw: The text from which the row can be parsed again.
        reasons: Why the row is invalid; empty if it is valid.
        interaction: The interaction in the row.
        thumb: The thumb in the row.
        review: The review in the row.
        document: The document that the row is.
        digest: The sha256 of the original text if `raw` is not that text, because personal data was redacted (the row
            comes from the quarantine) or because the text was too long to be stored.
        size: Length of the original text in bytes, in the same cases.
        is_sampled: Whether this project itself sampled the row for review, with the review's inclusion probability.
        dropped: Optional numbers that are none, by their fields; the row was taken without them.
        has_own_time: Whether the document's file tells its time; if not, it is the time at which the file changed.
    """

    source: str
    line: int
    raw: bytes
    reasons: Reasons = ()
    interaction: Interaction | None = None
    thumb: Thumb | None = None
    review: Review | None = None
    document: Document | None = None
    digest: str | None = None
    size: int | None = None
    is_sampled: bool = False
    dropped: tuple[str, ...] = ()
    has_own_time: bool = True

    @property
    def is_document(self) -> bool:
        """Whether this is a document, including a rejected one."""
        return is_document(self.source)

    def iter_contents(self) -> Iterator[Document | Interaction | Thumb | Review]:
        """Yield the contract rows in this row."""
        for row in (self.document, self.interaction, self.thumb, self.review):
            if row is not None:
                yield row


def is_document(source: str) -> bool:
    """Whether `source` is the name of a document."""
    return source.lower().endswith(DOCUMENT_SUFFIXES)


def reparse(raw: bytes, source: str, number: int) -> ParsedRow:
    """Parse the `raw` of a `ParsedRow` again, however long redaction has made it.

    Args:
        raw: The stored text.
        source: Source of the original row.
        number: Its line.

    Returns:
        The parsed row.
    """
    if is_document(source):
        return make_document_row(parse_stored_document(raw), source)
    return parse_line(raw, source, number, is_limited=False)


def serialize_row(row: ParsedRow) -> str | None:
    """Serialize a row as a text from which it can be parsed again as it is now.

    Args:
        row: The row.

    Returns:
        The text. None if the row has no contents.
    """
    if row.document is not None:
        return row.raw.decode()
    if row.interaction is None:
        part = row.thumb or row.review
        return part.to_json_line() if part else None
    fields = row.interaction.model_dump(mode="json", exclude_none=True)
    for name, part in (("thumb", row.thumb), ("review", row.review)):
        if part is not None:
            fields[name] = part.model_dump(mode="json", exclude={"interaction_id"}, exclude_none=True)
    return json.dumps(fields, ensure_ascii=False)


def parse_line(line: bytes, source: str, number: int, *, is_limited: bool = True) -> ParsedRow:
    """Parse one JSON object: a row of the import format, a `Thumb` or a `Review`, distinguished by its fields.

    Args:
        line: The bytes of the line.
        source: File or table of the line.
        number: Number of the line.
        is_limited: Reject a row beyond `MAX_ROW_BYTES`, `MAX_ROW_VALUES` or `MAX_ROW_TOKENS`.

    Returns:
        The row, with the reasons if it is invalid.
    """
    if is_limited and len(line) > MAX_ROW_BYTES:
        return make_oversized_row(line, source, number, f"{len(line):,} bytes, {MAX_ROW_BYTES:,} allowed")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1} is 0x{line[error.start]:02x}"
        problem = f"not valid UTF-8 ({where}), perhaps Windows-1252: save the file as UTF-8"
        return ParsedRow(source, number, line, (make_reason("line", problem),))
    fields = _parse_json(text)
    if is_limited and (exceeded := _find_exceeded_limit(text, fields)):
        return make_oversized_row(line, source, number, exceeded)
    contract, reasons = _detect_contract(fields), _find_duplicate_keys(text)
    dropped: tuple[str, ...] = ()
    try:
        try:
            row = contract.model_validate_json(text, strict=True)
        except ValidationError:
            usable_fields, dropped = _drop_unusable_numbers(fields)
            if usable_fields == fields:
                raise
            row = contract.model_validate_json(json.dumps(usable_fields), strict=True)
    except ValidationError as error:
        reasons += tuple(_to_reason(problem, contract) for problem in islice(error.errors(), MAX_REASONS + 1))
    except OverflowError:  # 0001-01-01T00:00:00+14:00 lies before the first UTC timestamp
        reasons += (make_reason("line", "a timestamp lies outside the years 1 to 9999"),)
    if len(reasons) > MAX_REASONS:
        reasons = (*reasons[:MAX_REASONS], make_reason("row", f"it has more problems than these {MAX_REASONS}"))
    if reasons:
        return ParsedRow(source, number, line, reasons)
    if isinstance(row, Thumb):
        return ParsedRow(source, number, line, thumb=row)
    if isinstance(row, Review):
        return ParsedRow(source, number, line, review=row)
    assert isinstance(row, ImportedInteraction)
    interaction, thumb, review = row.to_rows()
    return ParsedRow(source, number, line, interaction=interaction, thumb=thumb, review=review, dropped=dropped)


def parse_object(fields: JsonObject, source: str, number: int) -> ParsedRow:
    """Parse an object of JSON values like a line; surrogates in its texts stand for undecodable bytes (PEP 383).

    Args:
        fields: Field name -> value.
        source: File or table of the object.
        number: Number of its line, or its key.

    Returns:
        The row, with the reasons if it is invalid.
    """
    text = json.dumps(fields, ensure_ascii=False)
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # surrogates that stand for no byte: as bytes they are no UTF-8 either, and rejected
        raw = text.encode("utf-8", "surrogatepass")
    return parse_line(raw, source, number)


def make_document_row(document: Document, source: str, *, has_own_time: bool = True) -> ParsedRow:
    """Make the row of a document.

    Args:
        document: The document.
        source: Name of its file.
        has_own_time: Whether the file itself tells its time.

    Returns:
        The row, with the reasons if the document is invalid.
    """
    raw = serialize_document(document)
    if problems := _check_document(document):
        return ParsedRow(source, 1, raw, problems)
    return ParsedRow(source, 1, raw, document=document, has_own_time=has_own_time)


def _check_document(document: Document) -> Reasons:
    """Find an id that names no file, and control characters in fields other than the body.

    A database rejects some control characters, and a terminal obeys others.
    """
    if problem := explain_invalid_file_name(document.doc_id):
        return (make_reason("doc_id", problem),)
    fields = {name: getattr(document, name) or "" for name in ("title", "product")}
    for name, value in {**fields, "entitlements": "".join(document.entitlements)}.items():
        if match := _CONTROL.search(value):
            return (make_reason(name, f"holds the control character U+{ord(match[0]):04X}: write it without"),)
    return ()


def make_reason(field: str, message: str, kind: ReasonKind = ReasonKind.OTHER) -> Reason:
    """Make a reason for a row that breaks its contract or format.

    Args:
        field: Name of the field.
        message: The problem.
        kind: Kind of the problem.

    Returns:
        The reason.
    """
    return Reason(Code.INVALID_ROW, field, message, kind)


def make_oversized_row(line: bytes, source: str, number: int, problem: str) -> ParsedRow:
    """Make the rejected row for a line of which only digest and size are stored.

    Args:
        line: The bytes of the line.
        source: File or table of the line.
        number: Number of the line.
        problem: The limit that it exceeds.

    Returns:
        The row, without text.
    """
    digest = hashlib.sha256(line).hexdigest()
    reason = make_too_large_reason("row", f"{problem}: divide it, or leave out what is not needed")
    return ParsedRow(source, number, b"", (reason,), digest=digest, size=len(line))


def make_too_large_reason(field: str, message: str) -> Reason:
    """Make the reason for a row beyond a limit on size.

    Args:
        field: Name of the field.
        message: The problem.

    Returns:
        The reason.
    """
    return Reason(Code.TOO_LARGE, field, message, ReasonKind.TOO_LARGE)


def _parse_json(text: str) -> Any:
    """Return the JSON value of `text`; None if it is not JSON."""
    try:
        return from_json(text)
    except ValueError:
        return None


def _drop_unusable_numbers(fields: Any) -> tuple[Any, tuple[str, ...]]:
    """Return `fields` with NaN as null and without scores of the writer that are no number, and names of the latter."""
    if not isinstance(fields, dict):
        return fields, ()
    usable_fields, dropped = _replace_nan(fields), []
    log_probs, scores = usable_fields.get("token_log_probs"), usable_fields.get("writer_scores")
    if isinstance(log_probs, list) and any(map(_is_no_number, log_probs)):
        del usable_fields["token_log_probs"]
        dropped.append("token_log_probs")
    if isinstance(scores, dict):
        unusable = {name: score for name, score in scores.items() if _is_no_number(score)}
        usable_fields["writer_scores"] = {name: score for name, score in scores.items() if name not in unusable}
        dropped += [f"writer_scores.{format_key(name)}" for name in unusable]
    return usable_fields, tuple(dropped)


def _replace_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _is_no_number(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def _find_exceeded_limit(text: str, fields: Any) -> str | None:
    """Return a message on the limit that the number of values in `fields`, parsed from `text`, exceeds."""
    # In front of each value but the first stands a comma, a colon or a bracket; few rows have to be counted.
    if not isinstance(fields, dict) or sum(map(text.count, ",:[")) < MAX_ROW_VALUES:
        return None
    scores = fields.get("token_log_probs")
    if isinstance(scores, list) and all(isinstance(score, int | float) for score in scores):
        if len(scores) > MAX_ROW_TOKENS:
            return f"{len(scores):,} values of token_log_probs, {MAX_ROW_TOKENS:,} allowed"
        fields = {**fields, "token_log_probs": None}
    n_values, stack = 0, [fields]
    while stack:
        value = stack.pop()
        inner = value.values() if isinstance(value, dict) else value
        n_values += len(inner)
        if n_values > MAX_ROW_VALUES:
            return f"more fields, contexts and items of lists than the {MAX_ROW_VALUES:,} allowed"
        stack += [item for item in inner if isinstance(item, dict | list)]
    return None


def _detect_contract(fields: Any) -> type[Row]:
    """Return the contract that `fields` are meant for; the import format if none is recognized."""
    if not isinstance(fields, dict) or fields.keys() & _INTERACTION_FIELDS:
        return ImportedInteraction
    if fields.keys() & _REVIEW_FIELDS:
        return Review
    is_thumb = "given_at" in fields or isinstance(fields.get("thumb"), str)
    return Thumb if is_thumb else ImportedInteraction


def _find_duplicate_keys(text: str) -> Reasons:
    """Return a reason for each key that is twice in one object of `text`: which of its values is meant is unknown."""
    return tuple(
        make_reason(format_key(key), "this key comes twice in one object") for key in find_duplicate_keys(text)
    )


def _to_reason(problem: Any, contract: type[BaseModel]) -> Reason:
    """Convert a pydantic error to a reason."""
    position = ".".join(format_key(str(part)) for part in problem["loc"]) or "row"
    message = " ".join(str(problem["msg"]).split())
    if isinstance(problem["input"], str) and (duplicates := _find_duplicate_keys(problem["input"])):
        return make_reason(position, str(duplicates[0]))  # JSON in a cell of a table, which was left as it is
    if problem["type"] == "json_invalid":
        kind = ReasonKind.HALF_CHARACTER if _has_half_character(problem["input"]) else ReasonKind.OTHER
        return make_reason("line", f"invalid JSON: {problem['ctx']['error']}", kind)
    if problem["type"] == "string_too_short" and (problem["input"] or problem["loc"][-1] in _OPTIONAL_TEXT_FIELDS):
        return make_reason(
            position, "only white space", ReasonKind.BLANK_TEXT
        )  # white space was typed, or an optional field is blank
    if problem["type"] == "missing":
        return make_reason(position, "this field is missing")
    if problem["type"] == "extra_forbidden":
        *parents, name = problem["loc"]
        model = _PARTS.get(str(parents[0]), contract) if parents else contract
        hint = suggest_name(str(name), model.model_fields, "known fields")
        return make_reason(position, f"unknown field, {hint}")
    return make_reason(position, f"{message[0].lower()}{message[1:]}")


def _has_half_character(text: str) -> bool:
    """Whether `text` is JSON except for half of a character, as from an emoji that was cut."""
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):
        return False
    return False
