"""Readers of reports: of a page as a browser would read it, of Markdown as any reader of CommonMark would."""

import re
from collections import Counter
from html.parser import HTMLParser

from markdown_it import MarkdownIt
from markdown_it.token import Token

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
VOID = {"meta", "link", "img", "br"}  # however they are written


class Page(HTMLParser):
    """The elements of a page with their attributes, and the text in each kind of element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.tables: list[list[list[str]]] = []
        self.feed(page)
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], data.replace("\xa0", " ")))
        if "td" in self.open or ("th" in self.open and "table" in self.open):
            self.tables[-1][-1][-1] += data.replace("\xa0", " ")

    def of(self, *tags: str) -> list[str]:
        return [text.strip() for tag, text in self.texts if tag in tags and text.strip()]

    def attributes(self, name: str) -> list[str]:
        return [str(attrs[name]) for _, attrs in self.elements if name in attrs]

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]

    @property
    def prose(self) -> str:
        """The text of the page but for the links of its contents, in one line."""
        return " ".join(" ".join(text for tag, text in self.texts if tag not in ("style", "title", "a")).split())


def tokens(markdown: str) -> list[Token]:
    """Every token of the text, those inside of lines too."""
    return [inner for token in READER.parse(markdown) for inner in (token, *(token.children or ()))]


def shown(markdown: str) -> str:
    """What a reader of the text sees, alternative texts of images as well."""
    return " ".join(token.content for token in tokens(markdown) if token.type in ("text", "text_special", "image"))


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def said_in_markdown(markdown: str) -> Counter[str]:
    return Counter(words(shown(markdown)))


def said_on_page(page: str) -> Counter[str]:
    """Every word but those of the contents' links, with what images show."""
    parsed = Page(page)
    return Counter(words(f"{parsed.prose} {' '.join(parsed.attributes('alt'))}"))
