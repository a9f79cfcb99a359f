"""What a report is made of, whatever it is rendered as. Every text in it is plain: a renderer escapes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["passed", "warned", "failed"]


class Strong(str):
    """Text that stands out."""


Line = Sequence[str]
"""A sentence or more, as runs of text of which some are `Strong`."""


@dataclass(frozen=True)
class Paragraph:
    line: Line


@dataclass(frozen=True)
class Points:
    """A list."""

    lines: Sequence[Line]


@dataclass(frozen=True)
class Cell:
    """A figure, and what is said below it in smaller print, as its interval."""

    text: str
    below: str = ""


@dataclass(frozen=True)
class Row:
    """The first cell names the row. A row that is `marked` stands out; the last cell of a short one takes the rest."""

    cells: Sequence[str | Cell]
    marked: bool = False


@dataclass(frozen=True)
class Table:
    """`wordy` names the columns that hold words; the others hold figures."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Row]
    wordy: Sequence[str] = ()


@dataclass(frozen=True)
class Plot:
    """`name` is a key of `plots.PLOTS`; `shows` says in words and figures what is seen, `reading` how to read it."""

    name: str
    title: str
    shows: str
    reading: str


@dataclass(frozen=True)
class Plots:
    """Plots that stand side by side where there is room."""

    plots: Sequence[Plot]


@dataclass(frozen=True)
class Subheading:
    text: str


@dataclass(frozen=True)
class Example:
    """One answer: `about` are its figures, `texts` (what it is, the text)."""

    about: str
    texts: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Examples:
    examples: Sequence[Example]


Block = Paragraph | Points | Table | Plots | Subheading | Examples


@dataclass(frozen=True)
class Section:
    """`name` is its address within the page."""

    name: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Tile:
    """A figure that is read first."""

    figure: str
    what: str
    below: str = ""


@dataclass(frozen=True)
class Verdict:
    state: State
    headline: str
    lines: Sequence[Line]


@dataclass(frozen=True)
class Report:
    title: str
    about: str
    verdict: Verdict
    tiles: Sequence[Tile]
    sections: Sequence[Section]
