"""The topics of the fictional Aurora Bank's handbook, read from `handbook.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import yaml

Unit = Literal["euros", "percent", "days", "months", "years", "clock", "date", "number"]


@dataclass(frozen=True)
class Range:
    """Values that a product may have: `low` to `high` by `step`, in `unit`, before the unit is written out."""

    unit: Unit
    low: float
    high: float
    step: float


@dataclass(frozen=True)
class Words:
    """Words that a product may have, as the handbook writes them."""

    choices: tuple[str, ...]


@dataclass(frozen=True)
class Attribute:
    """One fact of each product of a topic.

    Attributes:
        text: The table row's label, the list item or the sentence, with `{v}` for the value and `{p}` for the product.
        parts: The possible values; two parts are joined by `form`.
        asks: Phrasings of the question about it, with `{p}`.
    """

    text: str
    parts: tuple[Range | Words, ...]
    asks: tuple[str, ...]
    form: str = "{0}"


@dataclass(frozen=True)
class Topic:
    """A subject with a page for each of `names`: near-duplicates that differ only in their values.

    Attributes:
        line: The product line, and `business` the line of business that it belongs to.
        noun: Follows each name: "Cobalt" + "Card".
        closed: The entitlement that a name's page needs.
        header: The two columns of a table.
    """

    key: str
    line: str
    business: str
    title: str
    kind: Literal["text", "table", "list"]
    noun: str
    names: tuple[str, ...]
    closed: dict[str, str]
    attributes: tuple[Attribute, ...]
    header: tuple[str, ...] = ()


@cache
def topics() -> tuple[Topic, ...]:
    """Return all topics, in the order of the file."""
    text = (Path(__file__).parent / "handbook.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    return tuple(_topic(entry, content["lines"], content["words"]) for entry in content["topics"])


def _topic(entry: dict[str, Any], lines: dict[str, str], words: dict[str, list[str]]) -> Topic:
    return Topic(
        key=entry["topic"],
        line=entry["line"],
        business=lines[entry["line"]],
        title=entry["title"],
        kind=entry["kind"],
        noun=entry["noun"],
        names=tuple(entry["names"]),
        closed=entry.get("closed", {}),
        attributes=tuple(_attribute(fact, words) for fact in entry["facts"]),
        header=tuple(entry.get("header", ())),
    )


def _attribute(fact: dict[str, Any], words: dict[str, list[str]]) -> Attribute:
    parts = tuple(_part(part, words) for part in fact["value"].split(" + "))
    return Attribute(fact["text"], parts, tuple(fact["asks"]), fact.get("form", "{0}"))


def _part(text: str, words: dict[str, list[str]]) -> Range | Words:
    if text in words:
        return Words(tuple(words[text]))
    unit, *numbers = text.split()
    low, high, step = map(float, numbers)
    return Range(cast(Unit, unit), low, high, step)
