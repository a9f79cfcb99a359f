"""Parse the bytes of a line or a document into typed rows, or into the reasons why they are invalid.

Notes:

* Types are checked strictly: `"complete": "yes"` is refused, not read as true. A guess about a verdict
  would be a wrong label.
* An unreadable line is a row like any other, with reasons instead of contents, so that later modules need no special
  cases for broken rows, and every line is counted.
* `raw` is the text from which a row can be parsed again (`reparse`), for every kind of source: a row refused today may
  be released once the rules or the rest of the data allow it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
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
from abstain.core.errors import AbstainError
from abstain.core.json_lines import find_duplicate_keys, format_key
from abstain.core.reasons import Reason, ReasonKind, Reasons
from abstain.core.text import did_you_mean
from abstain.data.store.dataset import file_name_problem
from abstain.knowledge.documents.reader import KIND_BY_SUFFIX, parse_document

_PARTS: dict[str, type[BaseModel]] = {"thumb": ImportedThumb, "review": ImportedReview, "contexts": Context}
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_OF_INTERACTIONS = frozenset({"question", "answer", "asked_at", "contexts", "model"})
_OF_REVIEWS = frozenset({"reviewed_at", "reviewer", *CRITERIA})

ROW_BYTES = 4 * 1024 * 1024
"""The longest row, in bytes: 60 contexts of 20,000 Chinese characters each."""

ROW_VALUES = 5_000
"""The most fields of a row, with those of its contexts and all other items of lists: 1,600 contexts."""

ROW_TOKENS = 100_000
"""The most values of `token_log_probs`."""

_MAY_STAY_EMPTY = frozenset({"comment", "ideal_answer"})

MAX_REASONS = 20
"""The most reasons that are kept of one row."""


@dataclass(frozen=True, slots=True)
class ParsedRow:
    """One record of a source, or one document: either its typed contents or the reasons why not.

    `source` and `line` are its position: file and line (from 1), or table and key. `digest` is the sha256 of the
    original text and `size` its length in bytes, where `raw` is not that text: because personal data was redacted (the
    row comes from the quarantine), or because it was too long to be held. `is_sampled`: the probability of its
    review is the one with which it was drawn here.
    """

    source: str
    line: int
    raw: bytes
    reasons: Reasons = ()
    interaction: Interaction | None = None
    feedback: Thumb | None = None
    review: Review | None = None
    document: Document | None = None
    digest: str | None = None
    size: int | None = None
    is_sampled: bool = False

    @property
    def is_document(self) -> bool:
        """Whether this is a document, one that was refused included."""
        return is_document(self.source)

    def contents(self) -> Iterator[Document | Interaction | Thumb | Review]:
        """The contract rows that this row brings."""
        for row in (self.document, self.interaction, self.feedback, self.review):
            if row is not None:
                yield row


def is_document(source: str) -> bool:
    """Whether `source` holds a document, by its name."""
    return source.lower().endswith(tuple(KIND_BY_SUFFIX))


def reparse(raw: bytes, source: str, number: int) -> ParsedRow:
    """Parse a `ParsedRow`'s `raw` again, however long its redaction has made it."""
    return read_document(raw, source) if is_document(source) else parse_line(raw, source, number, is_limited=False)


def kept_text(row: ParsedRow) -> str | None:
    """The text of `row` from which it can be parsed again as it is now; None where it has no contents.

    A document has the text in which it came, if that is UTF-8.
    """
    if row.document is not None:
        try:
            return row.raw.decode("utf-8")
        except UnicodeDecodeError:  # a page of HTML declares its own encoding
            return None
    if row.interaction is None:
        part = row.feedback or row.review
        return part.to_json_line() if part else None
    fields = row.interaction.model_dump(mode="json", exclude_none=True)
    for name, part in (("thumb", row.feedback), ("review", row.review)):
        if part is not None:
            fields[name] = part.model_dump(mode="json", exclude={"interaction_id"}, exclude_none=True)
    return json.dumps(fields, ensure_ascii=False)


def parse_line(line: bytes, source: str, number: int, *, is_limited: bool = True) -> ParsedRow:
    """One JSON object: a row of the import format, a `Thumb` or a `Review`, distinguished by its fields.

    `is_limited`: one beyond `ROW_BYTES`, `ROW_VALUES` or `ROW_TOKENS` is refused.
    """
    if is_limited and len(line) > ROW_BYTES:
        return make_oversized_row(line, source, number, f"{len(line):,} bytes, {ROW_BYTES:,} allowed")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1} is 0x{line[error.start]:02x}"
        return ParsedRow(source, number, line, (invalid("line", f"not valid UTF-8 ({where})"),))
    fields = _fields_of(text)
    if is_limited and (too_many := _find_exceeded_limit(text, fields)):
        return make_oversized_row(line, source, number, too_many)
    contract, reasons = _contract_of(fields), _find_duplicate_keys(text)
    try:
        row = contract.model_validate_json(text, strict=True)
    except ValidationError as error:
        reasons += tuple(_reason(problem, contract) for problem in islice(error.errors(), MAX_REASONS + 1))
    except OverflowError:  # 0001-01-01T00:00:00+14:00 lies before the first UTC timestamp
        reasons += (invalid("line", "a timestamp lies outside the years 1 to 9999"),)
    if len(reasons) > MAX_REASONS:
        reasons = (*reasons[:MAX_REASONS], invalid("row", f"it has more problems than these {MAX_REASONS}"))
    if reasons:
        return ParsedRow(source, number, line, reasons)
    if isinstance(row, Thumb):
        return ParsedRow(source, number, line, feedback=row)
    if isinstance(row, Review):
        return ParsedRow(source, number, line, review=row)
    assert isinstance(row, ImportedInteraction)
    interaction, feedback, review = row.to_rows()
    return ParsedRow(source, number, line, interaction=interaction, feedback=feedback, review=review)


def parse_object(fields: Mapping[str, Any], source: str, number: int) -> ParsedRow:
    """The same for an object of JSON values; undecodable bytes in its texts are surrogates (PEP 383)."""
    text = json.dumps(fields, ensure_ascii=False)
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # surrogates that stand for no byte: as bytes they are no UTF-8 either, and refused
        raw = text.encode("utf-8", "surrogatepass")
    return parse_line(raw, source, number)


def read_document(content: bytes, source: str) -> ParsedRow:
    """A whole document, Markdown or HTML by the name of `source`."""
    try:
        document = parse_document(content, source)
    except AbstainError as error:
        problem = invalid("", str(error).removeprefix(f"{source}: "))
        return ParsedRow(source, 1, content, (problem,))
    if problems := _problems_of(document):
        return ParsedRow(source, 1, content, problems)
    return ParsedRow(source, 1, content, document=document)


def _problems_of(document: Document) -> Reasons:
    """An id that names no file, and control characters in fields besides the body: a database refuses the first of
    them, and a terminal obeys others."""
    if problem := file_name_problem(document.doc_id):
        return (invalid("doc_id", problem),)
    fields = {name: getattr(document, name) or "" for name in ("title", "product")}
    for name, value in {**fields, "entitlements": "".join(document.entitlements)}.items():
        if found := _CONTROL.search(value):
            return (invalid(name, f"holds the control character U+{ord(found[0]):04X}: write it without"),)
    return ()


def invalid(field: str, message: str, kind: ReasonKind = ReasonKind.OTHER) -> Reason:
    """A reason of the contract or of the format."""
    return Reason(Code.INVALID_ROW, field, message, kind)


def make_oversized_row(line: bytes, source: str, number: int, problem: str) -> ParsedRow:
    """The refused row for `line`, of which nothing but digest and size is kept."""
    digest = hashlib.sha256(line).hexdigest()
    reason = too_large_reason("row", f"{problem}: divide it, or leave out what is not needed")
    return ParsedRow(source, number, b"", (reason,), digest=digest, size=len(line))


def too_large_reason(field: str, message: str) -> Reason:
    """The reason of a row that is beyond a limit of what is read."""
    return Reason(Code.TOO_LARGE, field, message, ReasonKind.TOO_LARGE)


def _fields_of(text: str) -> Any:
    """The JSON value of `text`; None where it is none."""
    try:
        return from_json(text)
    except ValueError:
        return None


def _find_exceeded_limit(text: str, fields: Any) -> str | None:
    """The limit that the number of values in `fields`, parsed from `text`, exceeds."""
    # In front of each value but the first stands a comma, a colon or a bracket; few rows have to be counted.
    if not isinstance(fields, dict) or sum(map(text.count, ",:[")) < ROW_VALUES:
        return None
    scores = fields.get("token_log_probs")
    if isinstance(scores, list) and all(isinstance(one, int | float) for one in scores):
        if len(scores) > ROW_TOKENS:
            return f"{len(scores):,} values of token_log_probs, {ROW_TOKENS:,} allowed"
        fields = {**fields, "token_log_probs": None}
    values, todo = 0, [fields]
    while todo:
        value = todo.pop()
        inner = value.values() if isinstance(value, dict) else value
        values += len(inner)
        if values > ROW_VALUES:
            return f"more fields, contexts and items of lists than the {ROW_VALUES:,} allowed"
        todo += [one for one in inner if isinstance(one, dict | list)]
    return None


def _contract_of(fields: Any) -> type[Row]:
    """The contract that `fields` are meant for; if none is recognised, the import format."""
    if not isinstance(fields, dict) or fields.keys() & _OF_INTERACTIONS:
        return ImportedInteraction
    if fields.keys() & _OF_REVIEWS:
        return Review
    is_thumb = "given_at" in fields or isinstance(fields.get("thumb"), str)
    return Thumb if is_thumb else ImportedInteraction


def _find_duplicate_keys(text: str) -> Reasons:
    """A reason for each key that one object of `text` has twice: which of its values is meant is unknown."""
    return tuple(invalid(format_key(key), "this key comes twice in one object") for key in find_duplicate_keys(text))


def _reason(problem: Any, contract: type[BaseModel]) -> Reason:
    """A pydantic problem as a reason."""
    where = ".".join(format_key(str(part)) for part in problem["loc"]) or "row"
    message = " ".join(str(problem["msg"]).split())
    if isinstance(problem["input"], str) and (twice := _find_duplicate_keys(problem["input"])):
        return invalid(where, str(twice[0]))  # JSON in a cell of a table, which was left as it is
    if problem["type"] == "json_invalid":
        kind = ReasonKind.HALF_CHARACTER if _has_half_character(problem["input"]) else ReasonKind.OTHER
        return invalid("line", f"invalid JSON: {problem['ctx']['error']}", kind)
    if problem["type"] == "string_too_short" and (problem["input"] or problem["loc"][-1] in _MAY_STAY_EMPTY):
        return invalid(
            where, "only white space", ReasonKind.BLANK_TEXT_REASON
        )  # something was typed, or what may stay empty is
    if problem["type"] == "missing":
        return invalid(where, "this field is missing")
    if problem["type"] == "extra_forbidden":
        *parents, name = problem["loc"]
        model = _PARTS.get(str(parents[0]), contract) if parents else contract
        hint = did_you_mean(str(name), model.model_fields, "known fields")
        return invalid(where, f"unknown field, {hint}")
    return invalid(where, f"{message[0].lower()}{message[1:]}")


def _has_half_character(text: str) -> bool:
    """Whether `text` is JSON but for half of a character, as of an emoji that was cut."""
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):
        return False
    return False
