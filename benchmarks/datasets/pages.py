"""Markdown documents from titles, headings and plain passages: what imported rows refer to."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

import yaml

from benchmarks.datasets import DocumentFile

Passage = tuple[tuple[str, ...], str]
"""The headings above a passage, outermost first, and its text."""

# Openings of a heading, a fence, a table or HTML at the beginning of a line; lists are lists in plain text, too.
_MARKUP = re.compile(r"^[ \t]*(?=#{1,6}(?:\s|$)|=+\s*$|-+\s*$|`{3}|~{3}|\||<)", re.MULTILINE)
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)


class Articles:
    """The documents of a set, collected passage by passage; an article in several files is one document."""

    def __init__(self, prefix: str, unit: str) -> None:
        self._prefix, self._unit = prefix, unit
        self._passages: dict[str, dict[Passage, int]] = {}

    def add_passage(self, title: str, passage: Passage) -> str:
        """Add a passage, unless it is there, and return the id that names it in its document."""
        passages = self._passages.setdefault(title, {})
        number = passages.setdefault(passage, len(passages) + 1)
        return f"{make_doc_id(self._prefix, title)}#{self._unit}-{number}"

    def documents(self, updated_at: str) -> Iterator[DocumentFile]:
        """Yield a document for each title, with the passages of one section next to each other."""
        for title, passages in self._passages.items():
            sections = list(dict.fromkeys(headings for headings, _ in passages))
            ordered = sorted(passages, key=lambda passage: sections.index(passage[0]))
            yield make_page(make_doc_id(self._prefix, title), title.replace("_", " "), updated_at, ordered)


def make_doc_id(prefix: str, name: str) -> str:
    """Return a `doc_id` for `name`: readable, valid as a file name, and different for different names."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", plain).strip("-")[:60]
    if slug != name:
        slug = f"{slug}-{hashlib.sha256(name.encode()).hexdigest()[:8]}".lstrip("-")
    return f"{prefix}-{slug}"


def make_page(
    doc_id: str, title: str, updated_at: str, passages: Iterable[Passage], product: str | None = None
) -> DocumentFile:
    """Return a document of `passages`, each below its headings."""
    title = " ".join(title.split())
    everyone: list[str] = []
    front = {"doc_id": doc_id, "title": title, "product": product, "entitlements": everyone, "updated_at": updated_at}
    fields = {name: value for name, value in front.items() if value is not None}
    blocks = [f"---\n{yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=10_000)}---"]
    above: tuple[str, ...] = ()
    for headings, text in passages:
        path = tuple(name for name in (" ".join(heading.split()) for heading in headings) if name)
        blocks += _headings(path, above, title or doc_id)
        blocks.append(_MARKUP.sub(r"\\", _INDENT.sub("", text.strip())))
        above = path
    return DocumentFile(f"{doc_id}.md", "\n\n".join(blocks) + "\n")


def _headings(path: Sequence[str], above: Sequence[str], title: str) -> list[str]:
    """Return the headings to write so that what follows is below `path` and no longer below `above`."""
    if path == above:
        return []
    if not path:
        return [f"# {title}"]
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, above, strict=False)))
    first = min(shared, len(path) - 1)  # back to an upper section: its heading is repeated
    return [f"{'#' * min(depth + 1, 6)} {path[depth]}" for depth in range(first, len(path))]
