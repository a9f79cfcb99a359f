"""Read a file of the knowledge base, of any format, as a `Document`.

Notes:

* A parser turns the bytes of a file into fields and Markdown; after that all formats are treated alike, because a
  document's body is Markdown. Parsers are for untrusted files: ingest runs them in a process with limits.
* What the file does not say of itself comes from its folder, its path and its time (`FileOrigin`).
* A document without a rule of who may read it is readable by nobody. A field that is nearly called `entitlements` is an
  error, because otherwise a spelling mistake would decide who may read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from abstain.core.codes import Code
from abstain.core.contracts import NOBODY, Document
from abstain.core.errors import AbstainError, describe_first_problem
from abstain.core.text import find_nearest_name
from abstain.knowledge.documents.front_matter import split_front_matter

ParseFile = Callable[[bytes], tuple[dict[str, Any], str]]
"""Turns the bytes of a file into its fields and its text in Markdown."""

MARKDOWN_SUFFIXES = (".md", ".markdown", ".mdx")
HTML_SUFFIXES = (".html", ".htm")
SUFFIXES = (*MARKDOWN_SUFFIXES, *HTML_SUFFIXES, ".docx", ".pdf", ".xlsx")
"""The names of a document's file end so, in any case."""

FieldName = Literal["doc_id", "title", "product", "entitlements", "updated_at"]

DEFAULT_FIELD_NAMES: Mapping[FieldName, tuple[str, ...]] = {
    "doc_id": ("doc_id",),
    "title": ("title",),
    "product": ("product",),
    "entitlements": ("entitlements",),
    # of Hugo, Docusaurus and MkDocs
    "updated_at": ("updated_at", "lastmod", "last_update.date", "revision_date", "date"),
}
"""The names by which a file may give the fields of a document, the first one that is there counts; a dot enters."""

MAX_TITLE = 300  # characters: it is repeated in every chunk
MAX_BODY = 5_000_000  # characters: a book of two thousand pages
MAX_ID = 128
_SUFFIXES_BY_SIGNATURE = {b"%PDF-": (".pdf",), b"PK\x03\x04": (".docx", ".xlsx"), b"\xd0\xcf\x11\xe0": (".doc", ".xls")}
_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", re.MULTILINE)


@dataclass(frozen=True)
class FileOrigin:
    """What is known of a file beside its content.

    Attributes:
        name: Path of the file, relative to the folder of its source.
        updated_at: The time of its last change.
        product: The product of its folder.
        entitlements: The entitlements of its folder; None if there is no rule.
        field_names: Field of a document -> the name that the files of this source use for it.
    """

    name: str
    updated_at: datetime | None = None
    product: str | None = None
    entitlements: tuple[str, ...] | None = None
    field_names: Mapping[FieldName, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadFile:
    """A document, and how it came by its fields.

    Attributes:
        document: The document.
        has_own_time: Whether the file itself tells its time.
        unused_fields: Names of fields in the file that no document has.
    """

    document: Document
    has_own_time: bool
    unused_fields: tuple[str, ...]


def get_parser(name: str) -> ParseFile:
    """Import and return the parser of a file.

    Args:
        name: Name of the file, whose suffix tells the format.

    Returns:
        The parser. It raises an `AbstainError` for a file that it cannot read.

    Raises:
        AbstainError: The packages of the format are not installed.
    """
    suffix = PurePosixPath(name).suffix.lower()
    parse = _import_parser(suffix)

    def parse_checked(content: bytes) -> tuple[dict[str, Any], str]:
        for signature, suffixes in _SUFFIXES_BY_SIGNATURE.items():
            if content.startswith(signature) and suffix not in suffixes:
                problem = f"its content is that of {' or '.join(suffixes)}: rename or convert it"
                raise AbstainError(Code.WRONG_FORMAT, problem)
        return parse(content)

    return parse_checked


def _import_parser(suffix: str) -> ParseFile:
    if suffix in HTML_SUFFIXES:
        from abstain.knowledge.documents.html import parse_html

        return parse_html
    if suffix == ".docx":
        from abstain.knowledge.documents.word import parse_word

        return parse_word
    if suffix == ".pdf":
        from abstain.knowledge.documents.pdf import parse_pdf

        return parse_pdf
    if suffix == ".xlsx":
        from abstain.knowledge.documents.spreadsheet import parse_spreadsheet

        return parse_spreadsheet
    from abstain.knowledge.documents.markdown import parse_markdown

    return parse_markdown


def make_document(fields: Mapping[str, Any], body: str, origin: FileOrigin) -> ReadFile:
    """Make the document of a parsed file.

    Args:
        fields: The fields that the file gives.
        body: The file's text, as Markdown.
        origin: Where the file is.

    Returns:
        The document, and how it came by its fields.

    Raises:
        AbstainError: There is no text, a field is wrong, or no time is known; the message does not name the file.
    """
    values, unused_fields = _select_fields(fields, origin.field_names)
    title = " ".join(str(values.get("title") or "").split())
    if not title:
        heading = _HEADING.search(body)
        title = heading[1] if heading else PurePosixPath(origin.name).stem
    if not body.strip():
        raise AbstainError(Code.INVALID_ROW, "there is no text in it: write some, or leave the file out")
    if len(body) > MAX_BODY:
        problem = f"its text has {len(body):,} characters, {MAX_BODY:,} allowed: divide it"
        raise AbstainError(Code.TOO_LARGE, problem)
    if len(title) > MAX_TITLE:
        problem = f"the title has {len(title):,} characters, and every chunk repeats it: {MAX_TITLE} at most"
        raise AbstainError(Code.INVALID_ROW, problem)
    own_time = values.get("updated_at")
    try:
        document = Document(
            doc_id=values.get("doc_id") or make_document_id(origin.name),
            title=title,
            product=values.get("product") or origin.product,
            entitlements=_read_entitlements(values, origin),
            updated_at=_to_moment(own_time) or origin.updated_at,
            body=body.replace("\0", "\ufffd"),  # as CommonMark has it
        )
    except ValidationError as error:
        raise AbstainError(Code.INVALID_ROW, describe_first_problem(error)) from None
    except OverflowError:  # 0001-01-01T00:00:00+14:00 lies before the first UTC timestamp
        raise AbstainError(Code.INVALID_ROW, "updated_at: lies outside the years 1 to 9999") from None
    return ReadFile(document, own_time is not None, unused_fields)


def make_document_id(name: str) -> str:
    """Make the id of a document from the path of its file.

    Args:
        name: Path, relative to the folder of its source.

    Returns:
        The path with dots for slashes, without its suffix. Characters that no id has become dashes; a digest keeps such
        ids, and those of long paths, apart.
    """
    stem = str(PurePosixPath(name).with_suffix(""))
    doc_id = re.sub(r"[^A-Za-z0-9._-]+", "-", stem.replace("/", ".")).strip("._-")
    if doc_id == stem.replace("/", ".") and len(doc_id) <= MAX_ID:
        return doc_id
    digest = hashlib.sha256(stem.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{doc_id[: MAX_ID - 9]}-{digest}".lstrip("-")


def parse_document(content: bytes, name: str) -> Document:
    """Parse a file of which nothing but its name is known; see `get_parser` and `make_document`.

    Args:
        content: The bytes of the file.
        name: Name of the file.

    Returns:
        The document.

    Raises:
        AbstainError: The file cannot be read, or does not tell its time; the message names the file.
    """
    try:
        fields, body = get_parser(name)(content)
        return make_document(fields, body, FileOrigin(name)).document
    except AbstainError as error:
        raise AbstainError(error.code, f"{name}: {error.message}") from None


def serialize_document(document: Document) -> bytes:
    """Serialize a document as the Markdown file with front matter in which the data folder keeps it."""
    fields = document.model_dump(mode="json", exclude={"body"}, exclude_none=True)
    front_matter = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=1_000_000)
    return f"---\n{front_matter}---\n{document.body}\n".encode()


def parse_stored_document(content: bytes) -> Document:
    """Parse what `serialize_document` wrote.

    Args:
        content: The bytes.

    Returns:
        The document.

    Raises:
        AbstainError: The content is something else; the message does not name it.
    """
    try:
        fields, body = split_front_matter(content.decode())
        return Document.model_validate(fields | {"body": body})
    except UnicodeDecodeError as error:
        raise AbstainError(Code.INVALID_ROW, f"is not UTF-8: {error.reason}: restore it: `dvc checkout`") from None
    except ValidationError as error:
        problem = describe_first_problem(error)
        raise AbstainError(Code.INVALID_ROW, f"{problem}: restore it: `dvc checkout`") from None


def read_documents(files: Iterable[Path]) -> Iterator[Document]:
    """Read documents of the data folder, whose files are named by the document's id.

    Args:
        files: Paths of the files.

    Yields:
        The documents.

    Raises:
        AbstainError: A file cannot be read or has another name.
    """
    for path in files:
        try:
            document = parse_stored_document(path.read_bytes())
        except AbstainError as error:
            raise AbstainError(error.code, f"{path}: {error.message}") from None
        if document.doc_id != path.stem:
            raise AbstainError(
                Code.INVALID_ROW,
                f"{path}: holds the document '{document.doc_id}': rename it to {document.doc_id}{path.suffix}",
            )
        yield document


def _select_fields(
    fields: Mapping[str, Any], field_names: Mapping[FieldName, str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields of a document, by its own names, and the names of the file's other fields."""
    values: dict[str, Any] = {}
    used: set[str] = set()
    for target, names in DEFAULT_FIELD_NAMES.items():
        for name in (field_names[target],) if target in field_names else names:
            value = _get_nested(fields, name)
            if value is not None:
                used.add(name.partition(".")[0])
                values.setdefault(target, value)
    unused = tuple(name for name in fields if name not in used and fields[name] is not None)
    entitlement_names = [field_names.get("entitlements", "entitlements")]
    for name in unused:
        if name not in DEFAULT_FIELD_NAMES and find_nearest_name(name.lower(), entitlement_names, cutoff=0.8):
            problem = f"unknown field '{name}': did you mean '{entitlement_names[0]}'?"
            raise AbstainError(Code.INVALID_ROW, problem)
    return values, unused


def _get_nested(fields: Mapping[str, Any], name: str) -> Any:
    value: Any = fields
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _read_entitlements(values: Mapping[str, Any], origin: FileOrigin) -> Any:
    value = values.get("entitlements")
    if value is None:
        return (NOBODY,) if origin.entitlements is None else origin.entitlements
    return tuple(dict.fromkeys(filter(None, map(str.strip, value.split(","))))) if isinstance(value, str) else value


def _to_moment(value: Any) -> Any:
    """Return a date as its first moment in UTC, and a moment without a time zone as one in UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            return value  # which the contract rejects
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value
