"""Readers of reports: of a page as a browser would read it, of Markdown as any reader of CommonMark would."""

import re
from collections import Counter

from bs4 import BeautifulSoup
from markdown_it import MarkdownIt
from markdown_it.token import Token

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])

VOID = {"meta", "link", "img", "br"}


class Page:
    """The elements of a page with their attributes, and the text in each kind of element."""

    def __init__(self, page: str) -> None:
        opened, closed = (Counter(re.findall(rf"<{mark}(\w+)", page)) for mark in ("", "/"))
        assert closed <= opened and (opened - closed).keys() <= VOID, "every element is closed"
        soup = BeautifulSoup(page.replace("\xa0", " "), "html.parser", multi_valued_attributes=None)
        self.elements = [(element.name, element.attrs) for element in soup.find_all()]
        self.texts = [(text.parent.name, str(text)) for text in soup.strings]
        self.tables = [
            [[cell.get_text() for cell in row.find_all(["td", "th"])] for row in table.find_all("tr")]
            for table in soup.find_all("table")
        ]

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
        return " ".join(" ".join(text for tag, text in self.texts if tag not in ("title", "a")).split())


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
