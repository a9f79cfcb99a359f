"""The content of an HTML page -> Markdown: markdownify's converter, for text that is to be read, not drawn.

Notes:

* Emphasis, links and pictures are reduced to their text.
* Text that would be markup at the beginning of a line of Markdown is escaped; nothing else is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from bs4.element import NavigableString, Tag
from markdownify import ATX, MarkdownConverter

from abstain.knowledge.documents.html_tables import grid_of, write_grid

HEADINGS = ["h1", "h2", "h3", "h4", "h5", "h6"]
INVISIBLE = {0xA0: " ", 0xAD: None, 0x200B: None, 0xFEFF: None}
"""Characters that are removed or become a space: for `str.translate`."""

_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        "address article aside blockquote body center dd details div dl dt fieldset figcaption figure footer form "
        "header hgroup hr legend li main ol p pre section summary table td th ul",
    )
).union(HEADINGS)
_MARKUP = re.compile(
    r"(\s*)(#{1,6}(?=\s|$)|[>+*-](?=\s|$)|:?-{2,}|=+(?=\s*$)|_{3,}|`{3,}|~{3,}|\||<(?=[a-zA-Z/!?]))"
    r"|(\s*\d{1,9})([.)])(?=\s|$)"
)


class Converter(MarkdownConverter):  # type: ignore[misc]
    """markdownify's converter for text that is to be read, not drawn."""

    def __init__(self) -> None:
        super().__init__(
            bullets="-",
            escape_asterisks=False,
            escape_underscores=False,
            heading_style=ATX,
            strip=["a", "abbr", "audio", "b", "em", "i", "strong", "video"],
            wrap=True,  # a line break in the source is a space
            wrap_width=None,
        )
        self._cells: dict[int, str] = {}
        self._numbers: dict[int, int] = {}

    def process_text(self, el: NavigableString, parent_tags: set[str]) -> str:
        text = str(super().process_text(el, parent_tags=parent_tags)).translate(INVISIBLE)
        if "pre" in parent_tags or "_noformat" in parent_tags:
            return text
        text = re.sub(" {2,}", " ", text)
        if "_inline" not in parent_tags and _begins_a_line(el):
            text = _MARKUP.sub(_escaped, text, count=1) if _MARKUP.match(text) else text
        return text

    def convert_div(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        text = text.strip()
        return f" {text} " if "_inline" in parent_tags else f"\n\n{text}\n\n" if text else ""

    convert_address = convert_article = convert_aside = convert_center = convert_details = convert_fieldset = (
        convert_div
    )
    convert_figcaption = convert_figure = convert_footer = convert_form = convert_header = convert_hgroup = convert_div
    convert_legend = convert_main = convert_section = convert_summary = convert_div

    def convert_br(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return " " if "_inline" in parent_tags else "\n"

    def convert_hN(self, n: int, el: Tag, text: str, parent_tags: set[str]) -> str:
        return f" {text} " if "_inline" in parent_tags else str(super().convert_hN(n, el, text, parent_tags))

    def convert_img(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return " ".join(str(el.get("alt") or "").split())

    def convert_pre(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        if "_inline" in parent_tags:
            return f" {' '.join(text.split())} "
        fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
        text = text.strip("\n")
        return f"\n\n{fence}\n{text}\n{fence}\n\n" if text.strip() else ""

    def convert_li(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        text = text.strip()
        if "_inline" in parent_tags or not text:
            return f"{text}; " if text else ""
        mark = "- "
        if el.parent is not None and el.parent.name == "ol":
            # markdownify counts the items before each one, which takes minutes in a list of some ten thousand.
            number = self._numbers.get(id(el.parent), _start(el.parent))
            self._numbers[id(el.parent)] = number + 1
            mark = f"{number}. "
        indent = "\n" + " " * len(mark)
        return mark + re.sub(r"\n(?!\n|$)", indent, text) + "\n"

    def convert_ul(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        if "_inline" in parent_tags:
            return f" {text.strip().removesuffix(';')} "
        return str(super().convert_list(el, text, parent_tags))

    convert_ol = convert_ul

    def convert_dl(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return f" {text.strip()} " if "_inline" in parent_tags else f"\n\n{text.strip()}\n\n"

    def convert_dt(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return f"{'' if '_inline' in parent_tags else chr(10)}- {' '.join(text.split())}:"

    def convert_dd(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return f" {' '.join(text.split())}"

    def convert_td(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        self._cells[id(el)] = " ".join(text.split())
        return f"{text.strip()}, "

    convert_th = convert_td

    def convert_caption(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        self._cells[id(el)] = " ".join(text.split())
        return f"{text.strip()}: "

    def convert_tr(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return f"{text.strip().removesuffix(',')}; "

    def convert_table(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        if "_inline" in parent_tags:
            return f" {text.strip().removesuffix(';')} "
        before = [self._cells[id(caption)] for caption in el.find_all("caption") if id(caption) in self._cells]
        before += [" ".join(stray.split()) for stray in _stray(el)]
        parts = [*before, write_grid(grid_of(el, self._cells))]
        return "\n\n" + "\n\n".join(part for part in parts if part) + "\n\n"


def _start(ordered: Tag) -> int:
    """The number of a list's first item, at most nine digits, as Markdown has it."""
    start = str(ordered.get("start", "1"))
    return int(start) if start.isascii() and start.isdigit() and len(start) < 9 else 1


def _stray(table: Tag) -> Iterator[str]:
    """Text of a broken table that stands in none of its cells."""
    for string in table.find_all(string=True):
        if string.strip() and string.find_parent(["td", "th", "caption", "table"]) is table:
            yield str(string)


def _begins_a_line(el: NavigableString) -> bool:
    """Whether nothing stands before `el` in its line."""
    node: Any = el
    while True:
        before = node.previous_sibling
        while before is not None and not isinstance(before, Tag) and not before.strip():
            before = before.previous_sibling
        if before is not None:
            return isinstance(before, Tag) and (before.name == "br" or before.name in _BLOCKS)
        if node.parent is None or node.parent.name in _BLOCKS:
            return True
        node = node.parent


def _escaped(match: re.Match[str]) -> str:
    space, mark, number, dot = match.groups()
    return f"{space}\\{mark}" if mark else f"{number}\\{dot}"
