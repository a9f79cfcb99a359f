"""Markdown (CommonMark with GitHub's tables) from untrusted text: used by every report.

Notes:

* Every function takes plain text and escapes it: what is written reads the same, and becomes no link, image, tag,
  formula, or cell of its own. `MarkdownText`, which these functions return, is the only text that is not escaped.
* A text is one line, so that it breaks no table and no list.
* A value that is not defined (None, nan) says so in a table, never as a number.
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
    """Text inside a line that is Markdown already: nothing escapes it again."""

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


def join_runs(*runs: str) -> MarkdownText:
    """Return `runs` as one text inside a line."""
    return MarkdownText("".join(map(escape, runs)))


def format_labelled(label: str, text: str) -> MarkdownText:
    """Return `label` in bold, a colon, and `text`."""
    return join_runs(bold(f"{label}:"), " ", text)


def document(blocks: Iterable[str]) -> str:
    """Return the blocks (`heading`, `paragraph`, `bullet_list`, `table` and so on) as one file's text."""
    return "\n\n".join(filter(None, blocks)) + "\n"


def heading(level: int, text: str) -> str:
    """Return a heading of `level` 1 to 6."""
    return f"{'#' * level} {escape(text)}"


def paragraph(*runs: str) -> str:
    """Return a paragraph of `runs`."""
    return LINE_START.sub(lambda found: f"{found[0][:-1]}\\{found[0][-1]}", join_runs(*runs).strip())


def bullet_list(lines: Iterable[str]) -> str:
    """Return a list with a point for each line."""
    return "\n".join(f"- {paragraph(line)}" for line in lines)


def list_section(title: str, lines: Sequence[str]) -> list[str]:
    """Return a heading of level 2 and a list; nothing where there are no lines."""
    return [heading(2, title), bullet_list(lines)] if lines else []


def numbered_list(items: Iterable[tuple[str, Iterable[str]]]) -> str:
    """Return a numbered list of (text, points below it)."""
    return "\n".join(
        "\n".join([f"{number}. {escape(text)}", *(f"   - {paragraph(line)}" for line in lines)])
        for number, (text, lines) in enumerate(items, start=1)
    )


def bold_row(cells: Sequence[str]) -> list[str]:
    """Return a table's row that stands out: every cell is bold."""
    return [bold(cell) for cell in cells]


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "", words: Container[str] = ()) -> str:
    """Return a table.

    Args:
        columns: the names of the columns; those after the first hold figures and are aligned to the right.
        rows: cells of each row: text, which is escaped, or figures. A row with fewer cells than columns is filled up
            with empty ones.
        caption: a line above the table.
        words: the names of further columns that hold words.
    """
    aligned = ["---" if at == 0 or name in words else "---:" for at, name in enumerate(columns)]
    filled = ([*map(_cell, row), *[""] * (len(columns) - len(row))] for row in rows)
    lines = (f"| {' | '.join(cells)} |" for cells in (map(escape, columns), aligned, *filled))
    return "\n".join([*([f"*{escape(caption)}*", ""] if caption else []), *lines])


def records_table(records: Sequence[Mapping[str, Any]], words: Container[str] = ()) -> str:
    """Return `records`, one or more, all with the keys of the first, as a table with these columns."""
    return table(list(records[0]), [[record[name] for name in records[0]] for record in records], words=words)


def key_metrics_table(figures: Iterable[tuple[str, str]]) -> str:
    """Return the table of what is read first: (figure, what it is)."""
    return table(("figure", "what"), figures, "Key figures", words=("what",))


def _cell(value: Any) -> str:
    return escape(value if isinstance(value, str) else str(value) if is_defined(value) else NOT_DEFINED)
