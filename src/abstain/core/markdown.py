"""Markdown (CommonMark with GitHub's tables) from untrusted text: used by every report.

Notes:

* Every function takes plain text and escapes it: the text reads the same, and becomes no link, image, tag, formula or
  table cell. `MarkdownText`, which these functions return, is the only text that is not escaped.
* A text is one line, so that it breaks no table and no list.
* An undefined value (None, nan) is shown as such in a table, never as a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

NOT_DEFINED = "not defined"

# What XML has no character for, and what turns the direction of the text around it.
UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]")
SPACE = re.compile(r"\s+")

# An underscore inside a word, as names have them, marks nothing. On GitHub "$" is a formula; ":" and "@" make links.
SPECIAL = re.compile(r"[\\`*\[\]<>|~&$#]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|@(?=\w)|(?<=www)\.", re.IGNORECASE)
LINE_START = re.compile(r"^(?:[-+=]|\d+[.)])")


class MarkdownText(str):
    """Text inside a line that is already Markdown and must not be escaped again."""

    __slots__ = ()


def to_single_line(text: str) -> str:
    """Return `text` as one line, with U+FFFD for each character that cannot be printed."""
    return UNPRINTABLE.sub("\ufffd", SPACE.sub(" ", text))


def is_defined(value: Any) -> bool:
    """Return whether `value` is neither None nor nan."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def escape(text: str) -> MarkdownText:
    """Return `text` as Markdown that reads the same inside a line."""
    return text if isinstance(text, MarkdownText) else MarkdownText(SPECIAL.sub(r"\\\g<0>", to_single_line(text)))


def bold(text: str) -> MarkdownText:
    """Return `text` in bold; an empty text stays empty."""
    inner = escape(text).strip()
    return MarkdownText(f"**{inner}**" if inner else "")


def join_texts(*texts: str) -> MarkdownText:
    """Join texts into one text inside a line.

    Args:
        *texts: Plain text, which is escaped, or `MarkdownText`.

    Returns:
        The joined text.
    """
    return MarkdownText("".join(map(escape, texts)))


def document(blocks: Iterable[str]) -> str:
    """Join blocks into the text of one file.

    Args:
        blocks: Results of `heading`, `paragraph`, `bullet_list`, `table` and so on; empty ones are dropped.

    Returns:
        The file's text.
    """
    return "\n\n".join(filter(None, blocks)) + "\n"


def heading(level: int, text: str) -> str:
    """Return a heading.

    Args:
        level: 1 to 6.
        text: The title.

    Returns:
        The block.
    """
    return f"{'#' * level} {escape(text)}"


def paragraph(*texts: str) -> str:
    """Return a paragraph of the joined `texts`."""
    return LINE_START.sub(lambda match: f"{match[0][:-1]}\\{match[0][-1]}", join_texts(*texts).strip())


def bullet_list(lines: Iterable[str]) -> str:
    """Return a list with one item for each line."""
    return "\n".join(f"- {paragraph(line)}" for line in lines)


def list_section(title: str, lines: Sequence[str]) -> list[str]:
    """Return a heading of level 2 and a list.

    Args:
        title: The title.
        lines: Items of the list.

    Returns:
        The two blocks; empty if there are no lines.
    """
    return [heading(2, title), bullet_list(lines)] if lines else []


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "", text_columns: Container[str] = ()
) -> str:
    """Return a table.

    Args:
        columns: Names of the columns. Columns after the first contain numbers and are aligned to the right.
        rows: Cells of each row: text, which is escaped, or numbers. A row with fewer cells than columns is padded with
            empty cells.
        caption: Line above the table.
        text_columns: Names of further columns that contain text.

    Returns:
        The block.
    """
    alignments = ["---" if index == 0 or name in text_columns else "---:" for index, name in enumerate(columns)]
    padded_rows = ([*map(_cell, row), *[""] * (len(columns) - len(row))] for row in rows)
    lines = (f"| {' | '.join(cells)} |" for cells in (map(escape, columns), alignments, *padded_rows))
    return "\n".join([*([f"*{escape(caption)}*", ""] if caption else []), *lines])


def records_table(records: Sequence[Mapping[str, Any]], text_columns: Container[str] = ()) -> str:
    """Return records as a table.

    Args:
        records: At least one record; all have the keys of the first, which are the columns.
        text_columns: Names of further columns that contain text.

    Returns:
        The block.
    """
    return table(
        list(records[0]), [[record[name] for name in records[0]] for record in records], text_columns=text_columns
    )


def key_metrics_table(metrics: Iterable[tuple[str, str]]) -> str:
    """Return the table of the most important metrics.

    Args:
        metrics: Pairs of a metric's value and its description.

    Returns:
        The block.
    """
    return table(("figure", "what"), metrics, "Key figures", text_columns=("what",))


def _cell(value: Any) -> str:
    return escape(value if isinstance(value, str) else str(value) if is_defined(value) else NOT_DEFINED)
