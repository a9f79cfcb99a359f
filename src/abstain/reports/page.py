"""A report's Markdown as one HTML page that holds all it needs; it has no other source, so that it says nothing more.

Notes:

* The reader knows headings, lists, tables, bold, captions in italics, and images, and nothing else: no link and no HTML
  can come from a text. An image is one of those given, or its alternative text.
* The layout follows from what the Markdown is. A heading of level 2 opens a section; the first one, which `verdict`
  writes, is a card in the colour of its mark. A heading of level 3 with a mark can be folded, and is where it passed.
* Style and plots are inlined, there is no script, and a content security policy tells the browser to fetch nothing.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Literal

from bs4 import BeautifulSoup, Tag
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markdown_it import MarkdownIt
from markupsafe import Markup

from abstain.core.markdown import bold, bullet_list, escape, heading, paragraph

State = Literal["passed", "warned", "failed"]

STATUS_MARKS: dict[State, str] = {"passed": "✓", "warned": "!", "failed": "✗"}
SHORT_NAME = 20
"""A row's name with fewer characters is never broken."""

_READER = MarkdownIt("zero").enable(["heading", "list", "table", "escape", "emphasis", "image", "newline"])
_BELOW = re.compile(r"^(.*\S) (\([^()]*\))$", re.DOTALL)
_UNIT = re.compile(r"(?<=\d) (?=%)")


def status_heading(level: int, state: State, text: str) -> str:
    """Return a heading that opens with the mark of `state`."""
    return heading(level, f"{STATUS_MARKS[state]} {text}")


def headline_section(state: State, headline: str, lines: Sequence[str]) -> list[str]:
    """Return the blocks that come first in a report: the heading, and a point for each of `lines`."""
    return [status_heading(2, state, headline), *([bullet_list(lines)] if lines else [])]


def plot(name: str, title: str, shows: str, reading: str) -> list[str]:
    """Return the blocks of the plot in the file `NAME.svg`.

    Args:
        name: the key of the plot in the `images` of `render_html`, and its file's name beside the Markdown.
        title: what it is a plot of.
        shows: what is seen in it, in words and figures; it stands where there is no such file.
        reading: how to read it.
    """
    return [f"![{escape(shows)}]({name}.svg)", paragraph(bold(f"{title}."), " ", reading)]


def without_images(markdown: str) -> str:
    """Return `markdown` with each image replaced by its alternative text."""
    return re.sub(r"^!\[(.*)\]\(\w+\.svg\)$", r"\1", markdown, flags=re.MULTILINE)


def render_html(markdown: str, images: Mapping[str, bytes]) -> str:
    """Return the page of a report.

    Args:
        markdown: the report: a heading of level 1, what it is about, the blocks of `verdict`, and sections, each with
            a heading of level 2. A paragraph above the first heading is shown as a warning.
        images: the plots, as SVG, by name.
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
    first, *others = (_enclosed(body.new_tag("section"), title, "h2").extract() for title in titles)
    first["class"], first["id"] = f"card verdict {_state(titles[0])}", "verdict"
    for box in first.select(".scroll"):  # the key figures fit into any window
        del box["class"], box["tabindex"]
    for section, title in zip(others, titles[1:], strict=True):
        section["id"] = re.sub(r"\W+", "-", title.get_text().lower()).strip("-")
    for cell in [*first.select("td"), *(cell for section in others for cell in section.select("td[style]"))]:
        _put_below(body, cell)
    return _shell().render(
        title=f"{name.get_text()}: {titles[0].get_text()[2:]}",
        header=Markup(body),  # noqa: S704 (rendered with HTML escaped)
        verdict=Markup(first),  # noqa: S704 (likewise)
        contents=[(section["id"], title.get_text()) for section, title in zip(others, titles[1:], strict=True)],
        sections=map(Markup, others),
    )


def _inline_plot(image: Tag, images: Mapping[str, bytes]) -> None:
    """Show the plot and what is said of it in one frame; where there is no such plot, what it shows."""
    name, shows = str(image["src"]).removesuffix(".svg"), str(image["alt"])
    frame, reading = image.find_parent("p"), image.find_next("p")
    if name not in images or frame is None or reading is None:
        image.replace_with(shows)
        return
    image["src"] = f"data:image/svg+xml;base64,{base64.b64encode(images[name]).decode()}"
    frame.name, frame["class"], reading.name = "figure", "card", "figcaption"
    frame.append(reading.extract())


def _lay_out_table(body: BeautifulSoup, table: Tag) -> None:
    """Give the table a box to scroll in, with its caption as a name, and tell names of rows from what is said of them.

    Empty cells at the end of a row belong to the cell before them.
    """
    before = table.find_previous(["p", "h2", "h3"])
    label = "" if before is None else before.get_text()
    emphasised = before.find("em") if before is not None else None
    if before is not None and emphasised is not None and emphasised.get_text() == label:
        before.name, emphasised.name = "caption", "span"
        table.insert(0, before.extract())
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
    """Isolate what stands after the label of a point: its writer may write from right to left."""
    if label.previous_sibling is None:
        text = body.new_tag("bdi")
        text.extend(list(label.next_siblings))
        label.insert_after(text)


def _fold(body: BeautifulSoup, title: Tag) -> None:
    """Make a fold of a heading with a mark and what is below it."""
    if state := _state(title):
        fold = body.new_tag("details", attrs={"class": "card"} | ({} if state == "passed" else {"open": ""}))
        _enclosed(fold, title, "h2", "h3")
        title["class"] = state
        title.wrap(body.new_tag("summary"))


def _put_below(body: BeautifulSoup, cell: Tag) -> None:
    """Put what a cell has in parentheses at its end, as an interval, below the rest."""
    text = cell.find(string=True)
    if text is not None and (found := _BELOW.match(text)):
        below = body.new_tag("span", attrs={"class": "below"}, string=found[2])
        text.replace_with(f"{found[1]} ", below)


def _state(title: Tag) -> str:
    """Return the state whose mark opens a heading; empty where none does."""
    return next((state for state, mark in STATUS_MARKS.items() if title.get_text().startswith(f"{mark} ")), "")


def _enclosed(box: Tag, title: Tag, *ends: str) -> Tag:
    """Return `box`, in the place of a heading, with this and what follows it up to the next of the headings `ends`."""
    inside = [title, *takewhile(lambda one: not (isinstance(one, Tag) and one.name in ends), title.next_siblings)]
    title.insert_before(box)
    box.extend(inside)
    return box


@lru_cache(maxsize=1)
def _shell() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html")
