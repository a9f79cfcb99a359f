"""The handbook of the fictional Aurora Bank: every fact drawn from a seed, every page written from its facts.

Notes:

* Facts are drawn first and the pages are written from them, so the true value of every fact is known.
* Some facts are drawn but left out of their page. They are real gaps: a question about one has no answer in the
  handbook, while the sibling products' pages state theirs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from abstain.core.contracts import Chunk, Document
from abstain.knowledge.documents.chunks import chunk_document
from abstain.knowledge.documents.reader import parse_document
from abstain.sample.catalogue import LINES, Attribute, ProductLine, ProductSection, Range, Words
from abstain.sample.topics import THEMES
from abstain.sample.values import Value, phrase, write

SEED = 2026
THEMES_PER_PAGE = 7
FACTS_PER_THEME = 2
GAPS_PER_PAGE = 2
FIRST_UPDATE = datetime(2025, 11, 3, 9, tzinfo=UTC)
UPDATE_SPAN_DAYS = 265  # the last pages are updated in July 2026, before the first question

Drawn = tuple[str, Value]  # as the page writes it, and its normal form


@dataclass(frozen=True)
class Fact:
    """One fact of one product. `source` is its line on the page; `stated` is false for a gap."""

    doc_id: str
    key: str
    product: str
    line: ProductLine
    section: str
    values: tuple[Value, ...]
    source: str
    sentence: str
    asks: tuple[str, ...]
    stated: bool


@dataclass(frozen=True)
class Page:
    """A handbook page: its file name's stem is the document's id."""

    doc_id: str
    markdown: str
    facts: tuple[Fact, ...]

    def document(self) -> Document:
        return parse_document(self.markdown, f"{self.doc_id}.md")

    def chunks(self) -> list[Chunk]:
        return chunk_document(self.document())


def build_handbook(seed: int = SEED) -> list[Page]:
    """All pages, in the order of the catalogue. The same seed gives the same bytes."""
    return [page for line in LINES for page in _line_pages(line, random.Random(f"{seed}/{line.key}"))]


def _line_pages(line: ProductLine, rng: random.Random) -> list[Page]:
    sections = (*line.sections, *THEMES)
    drawn = {(s.title, a.key): _siblings(a, len(line.names), rng) for s in sections for a in s.attributes}
    pages = []
    for number, name in enumerate(line.names):
        doc_id, product = f"{line.key}-{name.lower().replace(' ', '-')}", f"{name} {line.noun}"
        themes = sorted(rng.sample(range(len(THEMES)), THEMES_PER_PAGE))
        own = [(section, section.attributes) for section in line.sections]
        own += [(THEMES[i], tuple(rng.sample(THEMES[i].attributes, FACTS_PER_THEME))) for i in themes]
        said = [(section, attribute) for section, attributes in own for attribute in attributes]
        left_out = [(THEMES[i], a) for i in themes for a in THEMES[i].attributes if (THEMES[i], a) not in said]
        gaps = [rng.choice(said[: len(said) // 2]), *rng.sample(left_out, GAPS_PER_PAGE - 1)]
        rows = [*said, *gaps[1:]]
        facts = tuple(
            _fact(
                line,
                section,
                attribute,
                doc_id,
                product,
                drawn[section.title, attribute.key][number],
                (section, attribute) not in gaps,
            )
            for section, attribute in rows
        )
        updated = FIRST_UPDATE + timedelta(days=rng.randrange(UPDATE_SPAN_DAYS), minutes=15 * rng.randrange(32))
        pages.append(Page(doc_id, _front_matter(line, name, doc_id, product, updated) + _body(sections, facts), facts))
    return pages


def _siblings(attribute: Attribute, count: int, rng: random.Random) -> list[tuple[Drawn, ...]]:
    """Values of one attribute for all products of a line, all different where the range is wide enough."""
    columns = []
    for span in attribute.ranges:
        grid = _grid(span)
        columns.append(rng.sample(grid, count) if len(grid) >= count else (rng.sample(grid, len(grid)) * count)[:count])
    return list(zip(*columns, strict=True))


def _grid(span: Range | Words) -> list[Drawn]:
    if isinstance(span, Words):
        return [(text, phrase(text)) for text in span.choices]
    amounts = [round(span.low + step * span.step, 2) for step in range(round((span.high - span.low) / span.step) + 1)]
    match span.unit:
        case "years":
            return [(write("years", amount), Value("months", amount * 12)) for amount in amounts]
        case "clock":
            values = [Value("clock", amount * 60) for amount in amounts]
        case "date":
            dates = [date(2027, 1, 4) + timedelta(days=round(amount)) for amount in amounts]
            values = [Value("date", float(day.year * 10_000 + day.month * 100 + day.day)) for day in dates]
        case unit:
            values = [Value(unit, amount) for amount in amounts]
    return [(write(value.unit, value.amount), value) for value in values]


def _fact(
    line: ProductLine,
    section: ProductSection,
    attribute: Attribute,
    doc_id: str,
    product: str,
    drawn: tuple[Drawn, ...],
    stated: bool,
) -> Fact:
    written = attribute.form.format(*(text for text, _ in drawn))
    text = attribute.text.format(v=written, p=product)
    if section.kind == "table":
        source, sentence = f"| {text} | {written} |", f"{text}: {written}."
    elif section.kind == "list":
        source, sentence = f"- {text}", f"{text}."
    else:
        source = sentence = text
    asks = tuple(ask.format(p=product) for ask in attribute.asks)
    values = tuple(value for _, value in drawn)
    return Fact(doc_id, attribute.key, product, line, section.title, values, source, sentence, asks, stated)


def _front_matter(line: ProductLine, name: str, doc_id: str, product: str, updated: datetime) -> str:
    lines = ["---", f"doc_id: {doc_id}", f"title: {product}", f"product: {line.key}"]
    if name in line.closed:
        lines.append(f"entitlements: [{line.closed[name]}]")
    return "\n".join([*lines, f"updated_at: {updated:%Y-%m-%dT%H:%M:%SZ}", "---", "", ""])


def _body(sections: Sequence[ProductSection], facts: tuple[Fact, ...]) -> str:
    parts = []
    for section in sections:
        sources = [fact.source for fact in facts if fact.stated and fact.section == section.title]
        if not sources:
            continue
        if section.kind == "table":
            sources = [f"| {section.header[0]} | {section.header[1]} |", "|---|---|", *sources]
        parts.append(f"## {section.title}\n\n" + (" " if section.kind == "text" else "\n").join(sources) + "\n")
    return "\n".join(parts)
