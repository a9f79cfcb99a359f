"""Convert an HTML page, or HTML inside Markdown, to Markdown, so that all documents are chunked in one way.

Notes:

* Scripts, styles, navigation, controls, hidden parts, and the page's own header and footer are removed. If there is
  exactly one `<main>`, only its content counts.
* A table becomes a grid in which every row can be read by itself: a cell that spans columns or rows is repeated in each
  of them, and several header rows become one. A layout table (headings or tables inside, no `<th>`) is not a table.
"""

from __future__ import annotations

import re
from typing import Any

from bs4 import BeautifulSoup
from bs4.element import PreformattedString, Tag
from lxml import etree

from abstain.core.text import find_nearest_name
from abstain.knowledge.documents.html_converter import INVISIBLE, Converter
from abstain.knowledge.documents.html_tables import MAX_CELLS, TooManyCells

FIELDS = ("doc_id", "product", "entitlements", "updated_at")

MAX_DEPTH = 100
"""The deepest nesting of a page's tags: later steps take time that grows with its square."""

_DROPPED = "script style noscript template nav svg iframe object canvas button input select textarea head [hidden]"
_CHROME = "body > header, body > footer, [role=navigation], [role=banner], [role=contentinfo]"
_BLOCKS = (
    "address article aside center details div fieldset figcaption figure footer form header hgroup legend main "
    "section summary"
)
_HEADINGS = ["h1", "h2", "h3", "h4", "h5", "h6"]
_PARTS = ["caption", "thead", "tbody", "tfoot", "tr", "th", "td"]


class UnreadablePage(ValueError):
    """A page cannot be read; the message is the reason."""


def html_to_markdown(text: str) -> tuple[dict[str, Any], str]:
    """Convert an HTML page to Markdown.

    Args:
        text: The page.

    Returns:
        The page's fields (`FIELDS` from its `<meta>`, `title` from its `<title>`; missing ones are left out), and its
        content as Markdown.

    Raises:
        UnreadablePage: Fields contradict each other or are misspelt, or a table is too large.
        RecursionError: Tags are nested too deeply.
    """
    soup = _parse_html(text)
    try:
        return _read_fields(soup), _to_markdown(soup)
    except TooManyCells:
        raise UnreadablePage(
            f"a table has more than the {MAX_CELLS:,} places allowed, rows x columns: divide it"
        ) from None


def read_fragment(text: str) -> str:
    """Convert a piece of HTML to Markdown.

    Args:
        text: The HTML.

    Returns:
        The Markdown.

    Raises:
        RecursionError: Tags are nested too deeply.
        TooManyCells: A table is too large.
    """
    return _to_markdown(_parse_html(text))


def _parse_html(text: str) -> BeautifulSoup:
    """Return the tree of `text`. Raises `RecursionError` beyond `MAX_DEPTH`, before the tree is built."""
    parser = etree.HTMLParser(target=_Depth())
    parser.feed(text)
    parser.close()
    return BeautifulSoup(text, "lxml")


class _Depth:
    """Counts open tags, for lxml. Raises `RecursionError` beyond `MAX_DEPTH`."""

    def __init__(self) -> None:
        self._open = 0

    def start(self, tag: str, attributes: Any) -> None:
        self._open += 1
        if self._open > MAX_DEPTH:
            raise RecursionError

    def end(self, tag: str) -> None:
        self._open -= 1

    def close(self) -> None:
        """Do nothing; lxml requires this method."""


def _to_markdown(soup: BeautifulSoup) -> str:
    for string in soup.find_all(string=lambda string: isinstance(string, PreformattedString)):
        string.extract()
    content = soup.body or soup
    for tag in content.select(", ".join([*_DROPPED.split(), _CHROME])):
        tag.decompose()
    mains = content.find_all("main")
    content = mains[0] if len(mains) == 1 else content
    _tidy(content)
    markdown: str = Converter().process_tag(content, parent_tags=set())
    return "\n".join(line.rstrip() for line in markdown.strip().split("\n"))


def _read_fields(soup: BeautifulSoup) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for meta in soup.find_all("meta"):
        name, content = str(meta.get("name", "")).strip().lower(), meta.get("content")
        if name not in FIELDS:
            # A misspelt one would give every user access to the page.
            if find_nearest_name(name, ["entitlements"], cutoff=0.8):
                raise UnreadablePage(f'<meta name="{name}"> is unknown: did you mean "entitlements"?')
            continue
        if content is None:
            raise UnreadablePage(f'<meta name="{name}"> is empty: add content="..."')
        value = " ".join(str(content).split())
        if name == "entitlements":
            fields[name] = list(dict.fromkeys([*fields.get(name, ()), *filter(None, map(str.strip, value.split(",")))]))
        elif fields.setdefault(name, value) != value:
            raise UnreadablePage(f'<meta name="{name}"> is there twice, as "{fields[name]}" and as "{value}": keep one')
    if soup.title is not None and (title := " ".join(soup.title.get_text().translate(INVISIBLE).split())):
        fields["title"] = title
    return fields


def _tidy(content: Tag) -> None:
    """Normalize structures without Markdown: layout tables, cells without table or row, lists directly in lists."""
    ids_with_text: set[int] = set()
    for words in [*content.find_all(string=re.compile(r"\S")), *content.find_all("img", alt=re.compile(r"\S"))]:
        node = words.parent
        while (
            node is not None and id(node) not in ids_with_text
        ):  # each tag is looked at once, however deep its text lies
            ids_with_text.add(id(node))
            node = node.parent
    for block in content.find_all(_BLOCKS.split()):
        # markdownify strips the spaces around a block: one without text would join the words before and after it.
        block.name = "div" if id(block) in ids_with_text else "span"
    for table in content.find_all("table"):
        parts = [tag for tag in table.find_all(_PARTS) if tag.find_parent("table") is table]
        is_layout = not any(tag.name == "th" for tag in parts) and table.find([*_HEADINGS, "table"])
        # A cell or a heading is one line, in which there is no room for another table.
        if is_layout or table.get("role") in ("presentation", "none") or table.find_parent(["table", *_HEADINGS]):
            for tag in [table, *parts]:
                tag.name = "div"
    for part in content.find_all(_PARTS):
        if part.find_parent("table") is None:
            part.name = "div"
        elif part.name == "caption":
            part.name = "p"
        elif part.name in ("td", "th") and part.parent is not None and part.parent.name != "tr":
            following_cells = [tag for tag in part.find_next_siblings() if tag.name in ("td", "th")]
            row = part.wrap(Tag(name="tr"))
            row.extend(following_cells)
    for inner in content.find_all(["ul", "ol"]):
        previous_item = inner.find_previous_sibling("li")
        if inner.parent is not None and inner.parent.name in ("ul", "ol") and previous_item is not None:
            previous_item.append(inner.extract())
