"""The handbook of the fictional Aurora Bank: every fact drawn from a seed, every page written from its facts.

Facts are drawn first and the pages are written from them, so the true value of every fact is known. One page of each
topic leaves a fact out that its twins state: a question about this gap has no answer in the handbook.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from abstain.core.contracts import Chunk, Document
from abstain.knowledge.documents.chunks import chunk_document
from abstain.knowledge.documents.reader import parse_document
from benchmarks.sample.catalogue import Attribute, Range, Topic, Words, topics
from benchmarks.sample.values import Value, phrase, write

SEED = 2026
FIRST_UPDATE = datetime(2025, 11, 3, 9, tzinfo=UTC)
UPDATE_SPAN_DAYS = 265  # the last pages are updated in July 2026, before the first question

WrittenValue = tuple[str, Value]  # as the page writes it, and its normal form


@dataclass(frozen=True)
class Fact:
    """One fact of one product. `source` is its line on the page; `stated` is false for a gap."""

    doc_id: str
    key: str
    product: str
    topic: Topic
    values: tuple[Value, ...]
    source: str
    sentence: str
    asks: tuple[str, ...]
    stated: bool


@dataclass(frozen=True)
class Page:
    """A handbook page; its `doc_id` is the stem of its file name."""

    doc_id: str
    markdown: str
    facts: tuple[Fact, ...]

    def document(self) -> Document:
        """Parse the page."""
        return parse_document(self.markdown.encode(), f"{self.doc_id}.md")

    def chunks(self) -> list[Chunk]:
        """Return the chunks of the page."""
        return chunk_document(self.document())


def build_handbook(seed: int = SEED) -> list[Page]:
    """Return all pages, in the order of the catalogue. The same seed gives the same bytes."""
    return [page for topic in topics() for page in _make_pages(topic, random.Random(f"{seed}/{topic.key}"))]


def _make_pages(topic: Topic, rng: random.Random) -> list[Page]:
    values_by_attribute = [_draw_values(attribute, len(topic.names), rng) for attribute in topic.attributes]
    gap = rng.randrange(len(topic.names)), rng.randrange(len(topic.attributes))
    pages = []
    for number, name in enumerate(topic.names):
        product = f"{name} {topic.noun}"
        doc_id = f"{topic.key}-{name.lower().replace(' ', '-')}"
        facts = tuple(
            _make_fact(topic, attribute, doc_id, product, values[number], (number, position) != gap)
            for position, (attribute, values) in enumerate(zip(topic.attributes, values_by_attribute, strict=True))
        )
        updated_at = FIRST_UPDATE + timedelta(days=rng.randrange(UPDATE_SPAN_DAYS), minutes=15 * rng.randrange(32))
        pages.append(Page(doc_id, _front_matter(topic, name, doc_id, product, updated_at) + _body(topic, facts), facts))
    return pages


def _draw_values(attribute: Attribute, count: int, rng: random.Random) -> list[tuple[WrittenValue, ...]]:
    """Draw values of one attribute for all products of a topic, all different."""
    return list(zip(*(rng.sample(_list_values(part), count) for part in attribute.parts), strict=True))


def _list_values(part: Range | Words) -> list[WrittenValue]:
    if isinstance(part, Words):
        return [(text, phrase(text)) for text in part.choices]
    amounts = [round(part.low + step * part.step, 2) for step in range(round((part.high - part.low) / part.step) + 1)]
    match part.unit:
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


def _make_fact(
    topic: Topic,
    attribute: Attribute,
    doc_id: str,
    product: str,
    written_values: tuple[WrittenValue, ...],
    stated: bool,
) -> Fact:
    written = attribute.form.format(*(text for text, _ in written_values))
    text = attribute.text.format(v=written, p=product)
    if topic.kind == "table":
        source, sentence = f"| {text} | {written} |", f"{text}: {written}."
    elif topic.kind == "list":
        source, sentence = f"- {text}", f"{text}."
    else:
        source = sentence = text
    asks = tuple(ask.format(p=product) for ask in attribute.asks)
    values = tuple(value for _, value in written_values)
    return Fact(doc_id, attribute.text, product, topic, values, source, sentence, asks, stated)


def _front_matter(topic: Topic, name: str, doc_id: str, product: str, updated: datetime) -> str:
    lines = ["---", f"doc_id: {doc_id}", f"title: {product}", f"product: {topic.line}"]
    lines.append(f"entitlements: [{topic.closed.get(name, '')}]")  # `[]` is everyone
    return "\n".join([*lines, f"updated_at: {updated:%Y-%m-%dT%H:%M:%SZ}", "---", "", ""])


def _body(topic: Topic, facts: Sequence[Fact]) -> str:
    sources = [fact.source for fact in facts if fact.stated]
    if topic.kind == "table":
        sources = ["| " + " | ".join(topic.header) + " |", "|---|---|", *sources]
    return f"## {topic.title}\n\n" + (" " if topic.kind == "text" else "\n").join(sources) + "\n"
