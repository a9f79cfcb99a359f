"""Convert an HTML page, or HTML inside Markdown, to Markdown, so that all documents are chunked in one way.

Notes:

* Scripts, styles, controls and hidden parts are removed, and so is what frames a page: its header and footer,
  navigation, breadcrumbs, table of contents, links to headings, author and "Edit this page". If there is exactly one
  `<main>`, only its content counts.
* A table becomes a grid in which every row can be read by itself: a cell that spans columns or rows is repeated in each
  of them, and several header rows become one. A layout table (headings or tables inside, no `<th>`) is not a table. A
  table in a cell is written in one line, its rows apart.
"""

from __future__ import annotations

import re
from typing import Any

from bs4 import BeautifulSoup
from bs4.dammit import EncodingDetector
from bs4.element import PreformattedString, Tag

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.knowledge.documents.html_converter import INVISIBLE, Converter

_WINDOWS_CHARSETS = frozenset(
    {"ascii", "us-ascii", "iso-8859-1", "iso8859-1", "latin-1", "latin1"}
)  # browsers read these charsets as windows-1252
_DROPPED = "script style noscript template nav svg iframe object canvas button input select textarea head"
_DROPPED_ROLES = {"navigation", "banner", "contentinfo", "search"}
_DROPPED_IDS = {"breadcrumbs", "breadcrumb-section", "toc", "footer"}
_DROPPED_CLASSES = (
    {"breadcrumb", "breadcrumbs", "toc", "headerlink"}
    | {"page-metadata", "toc-macro", "plugin_pagetree", "pageSectionHeader", "greybox"}  # Confluence
    | {"md-skip", "md-content__button", "md-source-file"}  # MkDocs
    | {"theme-doc-toc-mobile", "theme-doc-toc-desktop", "hash-link"}  # Docusaurus
    | {"theme-doc-footer", "theme-edit-this-page", "theme-last-updated"}
    | {"mw-editsection", "printfooter"}  # MediaWiki
)
_UNIQUE_FIELDS = ("doc_id", "product", "updated_at")  # a page may have several colours, but not several ids
_BLOCKS = (
    "address article aside center details div fieldset figcaption figure footer form header hgroup label legend "
    "main section summary"
)
_HEADINGS = ["h1", "h2", "h3", "h4", "h5", "h6"]
_PARTS = ["caption", "thead", "tbody", "tfoot", "tr", "th", "td"]


def parse_html(content: bytes) -> tuple[dict[str, Any], str]:
    """Parse an HTML page.

    Args:
        content: The bytes of the page, which may declare its charset.

    Returns:
        The page's fields (from its `<meta>`, and `title` from its `<title>`), and its content as Markdown.

    Raises:
        AbstainError: The page is not text in its charset, or its fields contradict each other.
    """
    soup = BeautifulSoup(_decode(content).replace("\r\n", "\n").replace("\r", "\n"), "lxml")
    return _read_fields(soup), _to_markdown(soup)


def html_to_markdown(text: str) -> str:
    """Convert a piece of HTML to Markdown.

    Args:
        text: The HTML.

    Returns:
        The Markdown.

    Raises:
        AbstainError: The tags are nested too deeply.
    """
    return _to_markdown(BeautifulSoup(text, "lxml"))


def _decode(content: bytes) -> str:
    content, mark_charset = EncodingDetector.strip_byte_order_mark(content)
    charset = mark_charset or EncodingDetector.find_declared_encoding(
        content, is_html=True, search_entire_document=False
    )
    encoding = "utf-8"
    # A declaration that is readable as ASCII cannot be in UTF-16.
    if charset and (mark_charset or not charset.lower().startswith("utf-16")):
        encoding = "windows-1252" if charset.lower() in _WINDOWS_CHARSETS else charset
    try:
        text = content.decode(encoding)
        text.encode()  # UTF-7 and others can write half a character, which nothing can store
    except UnicodeError as error:
        where = f" (byte {error.start + 1} is 0x{content[error.start]:02x})" if hasattr(error, "start") else ""
        raise AbstainError(
            Code.INVALID_ROW, f"not valid {encoding}{where}: correct its charset, or save it as UTF-8"
        ) from None
    except LookupError:
        raise AbstainError(Code.INVALID_ROW, f"declares the unknown charset '{encoding}': save it as UTF-8") from None
    return text


def _to_markdown(soup: BeautifulSoup) -> str:
    for string in soup.find_all(string=lambda string: isinstance(string, PreformattedString)):
        string.extract()
    content = soup.body or soup
    for tag in [*content.find_all(_DROPPED.split()), *content.find_all(_is_dropped)]:
        tag.decompose()
    mains = [tag for tag in content.find_all(_is_main) if tag.find_parent(_is_main) is None]
    content = mains[0] if len(mains) == 1 else content
    _tidy(content)
    try:
        markdown: str = Converter().process_tag(content, parent_tags=set())
    except RecursionError:
        raise AbstainError(Code.TOO_LARGE, "its tags are nested too deeply: simplify the page") from None
    return "\n".join(line.rstrip() for line in markdown.strip().split("\n"))


def _is_dropped(tag: Tag) -> bool:
    attributes = tag.attrs
    return (
        "hidden" in attributes
        or attributes.get("role") in _DROPPED_ROLES
        or attributes.get("id") in _DROPPED_IDS
        or not _DROPPED_CLASSES.isdisjoint(attributes.get("class", ()))
        or (tag.name in ("header", "footer") and tag.parent is not None and tag.parent.name == "body")
    )


def _is_main(tag: Tag) -> bool:
    return tag.name == "main" or tag.get("role") == "main"


def _read_fields(soup: BeautifulSoup) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for meta in soup.find_all("meta"):
        name, value = str(meta.get("name", "")).strip().lower(), " ".join(str(meta.get("content", "")).split())
        if name == "entitlements":
            fields[name] = ",".join(filter(None, [fields.get(name), value]))
        elif name and fields.setdefault(name, value) != value and name in _UNIQUE_FIELDS:
            problem = f'<meta name="{name}"> is there twice, as "{fields[name]}" and as "{value}": keep one'
            raise AbstainError(Code.INVALID_ROW, problem)
    if soup.title is not None and (title := " ".join(soup.title.get_text().translate(INVISIBLE).split())):
        fields["title"] = title
    return fields


def _tidy(content: Tag) -> None:
    """Normalize structures without Markdown: items, cells and rows that stray, layout tables, lists in lists."""
    for item in content.find_all("li"):
        if item.find_parent(["ul", "ol"]) is None:
            item.name = "div"  # else its mark would be joined to the word before it
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
        if is_layout or table.get("role") in ("presentation", "none") or table.find_parent(_HEADINGS):
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
