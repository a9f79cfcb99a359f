"""HTML page of a report, self-contained and made from its Markdown only, so that it says nothing more.

Notes:

* The reader knows headings, lists, tables, bold, captions in italics, and images, and nothing else: no link and no HTML
  can come from a text. An image is one of those passed in, or its alternative text.
* The layout follows from the Markdown. A heading of level 2 opens a section; the first one is a card in the colour of
  its mark. A heading of level 3 with a mark can be folded, and is folded if it passed.
* Style and plots are inlined, there is no script, and a content security policy tells the browser to fetch nothing.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Literal

from bs4 import BeautifulSoup, Tag
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markdown_it import MarkdownIt
from markupsafe import Markup

from abstain.core.markdown import bold, escape, paragraph

State = Literal["passed", "warned", "failed"]

STATUS_MARKS: dict[State, str] = {"passed": "✓", "warned": "!", "failed": "✗"}
SHORT_NAME = 20
"""A row name with fewer characters is never broken into lines."""

_READER = MarkdownIt("zero").enable(["heading", "list", "table", "escape", "emphasis", "image", "newline"])
_BELOW = re.compile(r"^(.*\S) (\([^()]*\))$", re.DOTALL)
_UNIT = re.compile(r"(?<=\d) (?=%)")


def plot(name: str, title: str, alt_text: str, explanation: str) -> str:
    """Return the blocks of the plot in the file `NAME.svg`.

    Args:
        name: Key of the plot in the `images` of `render_html`, and name of its file next to the Markdown.
        title: Title of the plot.
        alt_text: Content of the plot in words and numbers; it is shown if there is no such file.
        explanation: How to read the plot.

    Returns:
        Markdown.
    """
    return f"![{escape(alt_text)}]({name}.svg)\n\n{paragraph(bold(f'{title}.'), ' ', explanation)}"


def replace_images(markdown: str) -> str:
    """Return `markdown` with each image replaced by its alternative text."""
    return re.sub(r"^!\[(.*)\]\(\w+\.svg\)$", r"\1", markdown, flags=re.MULTILINE)


def render_html(markdown: str, images: Mapping[str, bytes]) -> str:
    """Render the page of a report.

    Args:
        markdown: The report: a heading of level 1, what it is about, a heading of level 2 with the mark of a state,
            and sections, each with a heading of level 2. A paragraph above the first heading is shown as a warning.
        images: Name -> plot as SVG.

    Returns:
        The HTML page.
    """
    body = BeautifulSoup(_UNIT.sub("\u00a0", _READER.render(markdown)), "html.parser")
    for image in body.find_all("img"):
        _inline_plot(image, images)
    for table in body.find_all("table"):
        _lay_out_table(body, table)
    for label in body.select("li > strong"):
        _isolate(body, label)
    for title in body.find_all("h3"):
        _fold(body, title)
    name, *titles = body.find_all(["h1", "h2"])
    for warning in name.find_previous_siblings("p"):
        warning["class"], warning["role"] = "card failed", "note"
    headline, *sections = (_enclose_section(body.new_tag("section"), title, "h2").extract() for title in titles)
    headline["class"], headline["id"] = f"card verdict {_get_state(titles[0])}", "verdict"
    for box in headline.select(".scroll"):  # the key metrics fit into any window
        del box["class"], box["tabindex"]
    for section, title in zip(sections, titles[1:], strict=True):
        section["id"] = re.sub(r"\W+", "-", title.get_text().lower()).strip("-")
    for cell in [*headline.select("td"), *(cell for section in sections for cell in section.select("td[style]"))]:
        _put_below(body, cell)
    return _load_shell().render(
        title=f"{name.get_text()}: {titles[0].get_text()[2:]}",
        header=Markup(body),  # noqa: S704 (rendered with HTML escaped)
        verdict=Markup(headline),  # noqa: S704 (likewise)
        contents=[(section["id"], title.get_text()) for section, title in zip(sections, titles[1:], strict=True)],
        sections=map(Markup, sections),
    )


def _inline_plot(image: Tag, images: Mapping[str, bytes]) -> None:
    """Show the plot and its explanation in one frame; if there is no such plot, its alternative text."""
    name, alt_text = str(image["src"]).removesuffix(".svg"), str(image["alt"])
    frame, explanation = image.find_parent("p"), image.find_next("p")
    if name not in images or frame is None or explanation is None:
        image.replace_with(alt_text)
        return
    image["src"] = f"data:image/svg+xml;base64,{base64.b64encode(images[name]).decode()}"
    frame.name, frame["class"], explanation.name = "figure", "card", "figcaption"
    frame.append(explanation.extract())


def _lay_out_table(body: BeautifulSoup, table: Tag) -> None:
    """Give the table a box to scroll in, with its caption as a name, and mark the first cell of a row as its name.

    Empty cells at the end of a row belong to the cell before them.
    """
    preceding = table.find_previous(["p", "h2", "h3"])
    label = "" if preceding is None else preceding.get_text()
    emphasised = preceding.find("em") if preceding is not None else None
    if preceding is not None and emphasised is not None and emphasised.get_text() == label:
        preceding.name, emphasised.name = "caption", "span"
        table.insert(0, preceding.extract())
    table.wrap(body.new_tag("div", attrs={"class": "card"}))
    table.wrap(body.new_tag("div", attrs={"class": "scroll", "role": "region", "aria-label": label, "tabindex": "0"}))
    for column in table.find_all("th"):
        column["scope"] = "col"
    for row in table.select("tbody tr"):
        name, *cells = row.find_all("td")
        name.name, name["scope"] = "th", "row"
        if len(name.get_text()) < SHORT_NAME:
            name["class"] = "short"
        empty = list(takewhile(lambda cell: not cell.get_text(), reversed(cells)))
        if 0 < len(empty) < len(cells):
            last = cells[-len(empty) - 1]
            last.attrs = {"colspan": str(len(empty) + 1)}
            for cell in empty:
                cell.decompose()


def _isolate(body: BeautifulSoup, label: Tag) -> None:
    """Isolate the text after the label of a list item: its writer may write from right to left."""
    if label.previous_sibling is None:
        text = body.new_tag("bdi")
        text.extend(list(label.next_siblings))
        label.insert_after(text)


def _fold(body: BeautifulSoup, title: Tag) -> None:
    """Turn a heading with a mark and the content below it into a fold."""
    if state := _get_state(title):
        fold = body.new_tag("details", attrs={"class": "card"} | ({} if state == "passed" else {"open": ""}))
        _enclose_section(fold, title, "h2", "h3")
        title["class"] = state
        title.wrap(body.new_tag("summary"))


def _put_below(body: BeautifulSoup, cell: Tag) -> None:
    """Put the parentheses at the end of a cell, such as an interval, below the rest."""
    text = cell.find(string=True)
    if text is not None and (match := _BELOW.match(text)):
        span = body.new_tag("span", attrs={"class": "below"}, string=match[2])
        text.replace_with(f"{match[1]} ", span)


def _get_state(title: Tag) -> str:
    """Return the state whose mark opens a heading; empty if there is none."""
    return next((state for state, mark in STATUS_MARKS.items() if title.get_text().startswith(f"{mark} ")), "")


def _enclose_section(box: Tag, title: Tag, *ends: str) -> Tag:
    """Wrap a heading, and what follows it up to the next heading of the kinds `ends`, in `box`, and return `box`."""
    elements = [
        title,
        *takewhile(lambda sibling: not (isinstance(sibling, Tag) and sibling.name in ends), title.next_siblings),
    ]
    title.insert_before(box)
    box.extend(elements)
    return box


@lru_cache(maxsize=1)
def _load_shell() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html")
