"""From figures to what is drawn: bars as shares, in fixed units that the page scales. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from abstain.data.store.profile import LENGTHS, MEASURES

LANGUAGES_SHOWN = 6
SEEN = 0.005
"""Classes at either end with a smaller share are not drawn."""

HEIGHT = 70
STEP = 26


@dataclass(frozen=True)
class Balance:
    """One split: how many answers, and which share of them is right, or labelled by an expert; None for no answers."""

    split: str
    answers: int
    right: float | None
    experts: float | None


@dataclass(frozen=True)
class Bar:
    """One class of a histogram: its place and the heights of both sides, in units of the drawing."""

    label: str
    x: int
    newest: float
    previous: float
    newest_share: float
    previous_share: float


@dataclass(frozen=True)
class Histogram:
    """One measure of the newest batch beside the batches before."""

    measure: str
    shift: float
    is_large: bool
    unit: str
    bars: Sequence[Bar]

    @property
    def width(self) -> int:
        return STEP * len(self.bars)


@dataclass(frozen=True)
class Drift:
    newest_rows: int
    previous_rows: int
    limit: float
    histograms: Sequence[Histogram]


def balance_of(figures: Sequence[Mapping[str, Any]]) -> list[Balance]:
    """The figures `splits` of a training table's result."""
    return [
        Balance(
            split=row["split"],
            answers=row["answers"],
            right=row["right"] / row["answers"] if row["answers"] else None,
            experts=row["reviewed"] / row["answers"] if row["answers"] else None,
        )
        for row in figures
    ]


def drift_of(figures: Mapping[str, Any]) -> Drift:
    """The figures `drift` of a result."""
    limit, histograms = figures["limit"], []
    for measure in MEASURES:
        newest, previous = (_shares(figures[side].get(measure, {})) for side in ("newest", "previous"))
        shift = figures["shift"][measure]
        is_length = measure in LENGTHS
        classes = _lengths(newest, previous) if is_length else _languages(newest, previous)
        unit = "characters, from" if is_length else "ISO 639; und: of no certain language"
        histograms.append(Histogram(measure, shift, shift > limit, unit, _bars(classes, newest, previous)))
    rows = figures["rows"]
    return Drift(rows["newest"], rows["previous"], limit, histograms)


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()} if total else {}


def _lengths(*sides: Mapping[str, float]) -> list[str]:
    """Every class from the first to the last that is worth drawing, those between them too."""
    seen = [int(name) for side in sides for name, share in side.items() if share >= SEEN]
    if not seen:
        return []
    every = {0, *(math.ceil(2 ** (half / 2)) for half in range(64))}
    return [str(lower) for lower in sorted(every) if min(seen) <= lower <= max(seen)]


def _languages(newest: Mapping[str, float], previous: Mapping[str, float]) -> list[str]:
    share = {name: max(newest.get(name, 0), previous.get(name, 0)) for name in {**newest, **previous}}
    return sorted(share, key=lambda name: (-share[name], name))[:LANGUAGES_SHOWN]


def _bars(classes: Sequence[str], newest: Mapping[str, float], previous: Mapping[str, float]) -> list[Bar]:
    pairs = [(newest.get(name, 0.0), previous.get(name, 0.0)) for name in classes]
    highest = max((share for pair in pairs for share in pair), default=0) or 1
    return [
        Bar(name, STEP * at, round(HEIGHT * new / highest, 1), round(HEIGHT * old / highest, 1), new, old)
        for at, (name, (new, old)) in enumerate(zip(classes, pairs, strict=True))
    ]
