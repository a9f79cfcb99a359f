"""Markdown documents out of titles, headings and plain passages: what imported rows refer to."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import takewhile

import yaml

from abstain.ingest.importers import DocumentFile

# What would open a heading, a fence, a table or HTML at the beginning of a line; lists are lists in plain text, too.
_MARKUP = re.compile(r"^[ \t]*(?=#{1,6}(?:\s|$)|=+\s*$|-+\s*$|`{3}|~{3}|\||<)", re.MULTILINE)
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)


def doc_id(prefix: str, name: str) -> str:
    """A `doc_id` for `name`: readable, fit for a file name, and another one for every other name."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", plain).strip("-")[:60]
    if slug != name:
        slug = f"{slug}-{hashlib.sha256(name.encode()).hexdigest()[:8]}".lstrip("-")
    return f"{prefix}-{slug}"


def page(
    doc_id: str,
    title: str,
    updated_at: str,
    passages: Iterable[tuple[Sequence[str], str]],
    product: str | None = None,
) -> DocumentFile:
    """A document of `passages`: the headings above each (outermost first), and its text."""
    front = {"doc_id": doc_id, "title": " ".join(title.split()), "product": product, "updated_at": updated_at}
    kept = {name: value for name, value in front.items() if value is not None}
    blocks = [f"---\n{yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=10_000)}---"]
    above: tuple[str, ...] = ()
    for headings, text in passages:
        path = tuple(name for name in (" ".join(heading.split()) for heading in headings) if name)
        blocks += _headings(path, above, front["title"] or doc_id)
        blocks.append(_MARKUP.sub(r"\\", _INDENT.sub("", text.strip())))
        above = path
    return DocumentFile(f"{doc_id}.md", "\n\n".join(blocks) + "\n")


def _headings(path: tuple[str, ...], above: tuple[str, ...], title: str) -> list[str]:
    """The headings to write so that what follows stands under `path` and no longer under `above`."""
    if path == above:
        return []
    if not path:
        return [f"# {title}"]
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, above, strict=False)))
    first = min(shared, len(path) - 1)  # back to an upper section: its heading once more
    return [f"{'#' * min(depth + 1, 6)} {path[depth]}" for depth in range(first, len(path))]
