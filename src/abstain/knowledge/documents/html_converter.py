"""Convert the content of an HTML page to Markdown: markdownify's converter, for text that is to be read, not drawn.

Notes:

* Emphasis, links and pictures are reduced to their text.
* Text that would be markup at the beginning of a line of Markdown is escaped; nothing else is.
* The text of a table cell or a heading is one line, as in markdownify; so is a table in a cell.
"""

from __future__ import annotations

import re
from typing import Any

from bs4.element import NavigableString, Tag
from markdownify import ATX, MarkdownConverter, should_remove_whitespace_outside

from abstain.knowledge.documents.html_tables import build_grid, write_grid, write_line

INVISIBLE = {0xA0: " ", 0xAD: None, 0x200B: None, 0xFEFF: None}
"""Characters that are removed or become a space, for `str.translate`."""

_BEFORE_MARKUP = re.compile(
    r"\s*(?:\d{1,9}(?=[.)](?:\s|$))"
    r"|(?=#{1,6}(?:\s|$)|[>+*-](?:\s|$)|:?-{2,}|=+\s*$|_{3,}|`{3,}|~{3,}|\||<[a-zA-Z/!?]))"
)


class Converter(MarkdownConverter):  # type: ignore[misc]
    """markdownify's converter for text that is to be read, not drawn."""

    def __init__(self) -> None:
        super().__init__(
            bullets="-",
            escape_asterisks=False,
            escape_underscores=False,
            heading_style=ATX,
            strip=["a", "b", "em", "i", "strong", "tr", "video"],
            wrap=True,  # a line break in the source is a space
            wrap_width=None,
        )
        self._cells: dict[int, str] = {}
        self._numbers: dict[int, int] = {}

    def process_text(self, el: NavigableString, parent_tags: set[str]) -> str:
        text = str(super().process_text(el, parent_tags=parent_tags)).translate(INVISIBLE)
        if "_noformat" in parent_tags:
            return text
        text = re.sub(" {2,}", " ", text)
        if "_inline" not in parent_tags and (match := _BEFORE_MARKUP.match(text)) and _is_line_start(el):
            text = f"{match[0]}\\{text[match.end() :]}"
        return text

    def convert_hN(self, n: int, el: Tag, text: str, parent_tags: set[str]) -> str:
        return f" {text} " if "_inline" in parent_tags else str(super().convert_hN(n, el, text, parent_tags))

    def convert_img(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return " ".join(str(el.get("alt") or "").split())

    def convert_pre(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
        text = text.strip("\n")
        return f"\n\n{fence}\n{text}\n{fence}\n\n" if text.strip() else ""

    def convert_li(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        text, marker = text.strip(), _get_bullet(parent_tags)
        if not text:
            return ""
        if el.parent is not None and el.parent.name == "ol":
            # markdownify counts the items before each one, which takes minutes in a list of some ten thousand.
            number = self._numbers.get(id(el.parent), _get_first_number(el.parent))
            self._numbers[id(el.parent)] = number + 1
            marker = f"{number}. "
        indent = "\n" + " " * len(marker)
        return marker + re.sub(r"\n(?!\n|$)", indent, text) + "\n"

    def convert_dt(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return f"\n{_get_bullet(parent_tags)}{' '.join(text.split())}:"

    def convert_dd(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return f" {' '.join(text.split())}"

    def convert_td(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        self._cells[id(el)] = " ".join(text.split())
        return ""

    convert_th = convert_td

    def convert_table(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        # The rest of `text` is in no cell: the caption, and text that strayed from a broken table.
        grid = build_grid(el, self._cells)
        if "_inline" in parent_tags:
            return " ".join(["", *filter(None, [text.strip(), write_line(grid)]), ""])
        return "\n\n".join(["", *filter(None, [text.strip(), write_grid(grid)]), ""])


def _get_bullet(parent_tags: set[str]) -> str:
    """Return the mark of a list item; in the one line of a cell, "- 0.5 %" would read as a number below zero."""
    return "• " if "_inline" in parent_tags else "- "


def _get_first_number(ordered: Tag) -> int:
    """Return the number of a list's first item, at most nine digits, as Markdown requires."""
    start = str(ordered.get("start", "1"))
    return int(start) if start.isascii() and start.isdigit() and len(start) < 9 else 1


def _is_line_start(el: NavigableString) -> bool:
    """Whether there is nothing before `el` in its line."""
    node: Any = el
    while node is not None and not should_remove_whitespace_outside(node):
        for sibling in node.previous_siblings:
            if isinstance(sibling, Tag):
                return sibling.name in ("br", "hr") or bool(should_remove_whitespace_outside(sibling))
            if sibling.strip():
                return False
        node = node.parent
    return True
