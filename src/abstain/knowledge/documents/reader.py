"""Read a file of the knowledge base, Markdown or HTML, as a `Document`.

Notes:

* Markdown has its metadata in YAML front matter, HTML in `<meta>` and `<title>`; after that both are treated alike,
  because a document's body is Markdown.
* Fields are checked strictly: a misspelt entitlement would give every user access to a document, and so would a second
  line of `entitlements`, of which YAML keeps the last.
* Every problem of a file is an `AbstainError` of one line: file, problem, remedy.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from abstain.core.codes import Code
from abstain.core.contracts import Document
from abstain.core.errors import AbstainError

Kind = Literal["markdown", "html"]

KIND_BY_SUFFIX: Mapping[str, Kind] = {".md": "markdown", ".html": "html", ".htm": "html"}
"""The kind of a file, by the suffix of its name in lower case."""

MAX_TITLE = 300  # characters: it is repeated in every chunk
MAX_FRONT_MATTER = 20_000  # characters: YAML needs hours for numbers of millions of digits
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_WINDOWS_CHARSETS = frozenset(
    {"ascii", "us-ascii", "iso-8859-1", "iso8859-1", "latin-1", "latin1"}
)  # browsers read these charsets as windows-1252
# Errors of PyYAML's constructors and parsers for odd input: 2026-13-45, `!!bool x`, a thousand brackets or nested tags.
_YAML_ERRORS = (ValueError, LookupError, AttributeError, ArithmeticError, TypeError, RecursionError)


def parse_document(content: bytes | str, source_name: str) -> Document:
    """Parse a Markdown file with front matter, or an HTML page.

    The fields are `doc_id`, `title`, `updated_at`, and optionally `product` and `entitlements`.

    Args:
        content: The text of the file, or its bytes: Markdown is UTF-8, a page may declare its charset.
        source_name: Name of the file; its suffix decides the kind (`KIND_BY_SUFFIX`), else it is Markdown.

    Returns:
        The document.

    Raises:
        AbstainError: The file cannot be read; the message is one line: file, problem, remedy.
    """
    kind = KIND_BY_SUFFIX.get(PurePath(source_name).suffix.lower(), "markdown")
    try:
        text = content if isinstance(content, str) else _decode(content, kind)
        text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        fields, body = _read_html(text) if kind == "html" else _read_markdown(text)
        return _make_document(fields, body, kind)
    except _Unreadable as problem:
        raise AbstainError(Code.INVALID_ROW, f"{source_name}: {problem}") from None


def read_documents(files: Iterable[Path]) -> Iterator[Document]:
    """Read documents from files that are named by the document's id.

    Args:
        files: Paths of the files.

    Yields:
        The documents.

    Raises:
        AbstainError: A file cannot be read or has another name.
    """
    for path in files:
        document = parse_document(path.read_bytes(), str(path))
        if document.doc_id != path.stem:
            raise AbstainError(
                Code.INVALID_ROW,
                f"{path}: holds the document '{document.doc_id}': rename it to {document.doc_id}{path.suffix}",
            )
        yield document


class _Unreadable(Exception):
    """The problem of a file, and the remedy."""


def _decode(content: bytes, kind: Kind) -> str:
    encoding, is_declared = "utf-8", False
    if kind == "html":
        from bs4.dammit import EncodingDetector  # lazily: Markdown does not need it

        content, mark_charset = EncodingDetector.strip_byte_order_mark(content)
        charset = mark_charset or EncodingDetector.find_declared_encoding(
            content, is_html=True, search_entire_document=False
        )
        # A declaration that is readable as ASCII cannot be in UTF-16.
        if charset and (mark_charset or not charset.lower().startswith("utf-16")):
            encoding, is_declared = charset, True
            encoding = "windows-1252" if charset.lower() in _WINDOWS_CHARSETS else charset
    try:
        text = content.decode(encoding)
        text.encode()
        return text
    except UnicodeEncodeError:  # UTF-7 and others can write half a character, which nothing can store
        raise _Unreadable(
            f"not valid {encoding}, which it declares to be (half a character): save it as UTF-8"
        ) from None
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1} is 0x{content[error.start]:02x}"
        if is_declared:
            raise _Unreadable(f"not valid {encoding}, which it declares to be ({where}): correct its charset") from None
        raise _Unreadable(f"not valid UTF-8 ({where}): save it as UTF-8") from None
    except (LookupError, ValueError):
        raise _Unreadable(f"declares the unknown charset '{encoding}': save it as UTF-8") from None


def _read_markdown(text: str) -> tuple[dict[str, Any], str]:
    match = _FRONT_MATTER.match(text)
    if match is None:
        raise _Unreadable("no front matter: begin the file with '---', the lines doc_id, title and updated_at, '---'")
    if len(match.group(1)) > MAX_FRONT_MATTER:
        raise _Unreadable(
            f"the front matter has {len(match.group(1)):,} characters, {MAX_FRONT_MATTER:,} allowed: shorten it"
        )
    try:
        fields = yaml.load(match.group(1), _StrictLoader)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        raise _Unreadable(f"the front matter is not valid YAML: {' '.join(str(error).split())}") from None
    except _YAML_ERRORS as error:
        raise _Unreadable(f"the front matter cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(fields, dict):
        raise _Unreadable("the front matter holds no 'name: value' lines: add doc_id, title, updated_at")
    if "body" in fields:
        raise _Unreadable("'body' is no front matter field: write the text below the second '---'")
    return {str(name): value for name, value in fields.items()}, text[match.end() :]


class _StrictLoader(yaml.SafeLoader):
    """YAML's safe loader without duplicate names and aliases.

    It rejects duplicate names in one mapping, including merged ones (`<<`), and aliases, because a few of them, nested,
    stand for gigabytes.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise _Unreadable(f"the front matter has the alias '*{self.peek_event().anchor}': write the value itself")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if duplicates := [name for name, times in Counter(names).items() if times > 1]:
                raise _Unreadable(
                    f"the front matter names '{' '.join(duplicates[0].split())}' twice: keep one of the two"
                )
        return super().construct_mapping(node, deep)


def _read_html(text: str) -> tuple[dict[str, Any], str]:
    from abstain.knowledge.documents.html import (  # lazily: its parser costs a quarter of a second
        MAX_DEPTH,
        UnreadablePage,
        html_to_markdown,
    )

    try:
        return html_to_markdown(text)
    except UnreadablePage as error:
        raise _Unreadable(str(error)) from None
    except RecursionError:
        raise _Unreadable(
            f"its tags are nested too deeply to be read, more than the {MAX_DEPTH} allowed: simplify the page"
        ) from None


def _make_document(fields: dict[str, Any], body: str, kind: Kind) -> Document:
    try:
        # As CommonMark has it for U+0000.
        document = Document.model_validate({**fields, "body": body.replace("\0", "\ufffd")})
    except ValidationError as error:
        raise _Unreadable(_describe_problem(error.errors()[0], kind)) from None
    except OverflowError:  # 0001-01-01T00:00:00+14:00 lies before the first UTC timestamp
        raise _Unreadable("'updated_at' lies outside the years 1 to 9999") from None
    if len(document.title) > MAX_TITLE:
        raise _Unreadable(
            f"the title has {len(document.title):,} characters, and every chunk repeats it: {MAX_TITLE} at most"
        )
    return document


def _describe_problem(problem: Any, kind: Kind) -> str:
    name = str(problem["loc"][0])
    valid_fields = ", ".join(field for field in Document.model_fields if field != "body")
    if kind == "html":
        where, remedy = "page", "a <title>" if name == "title" else f'<meta name="{name}" content="...">'
    else:
        where, remedy = "front matter", f"a line '{name}: ...'"
    if name == "body":
        if kind == "html":
            return "there is no text in the page's body: if a script draws it, save it as the browser shows it"
        return "there is no text below the front matter: write the document there"
    if problem["type"] == "missing":
        return f"the {where} lacks '{name}': add {remedy}"
    if problem["type"] == "extra_forbidden":
        return f"unknown {where} field '{name}': use {valid_fields}"
    return f"{where} field '{name}': {problem['msg']}"
