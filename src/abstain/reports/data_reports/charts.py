"""How far the newest batch is from those before: a histogram of each measure, in words and as a drawing."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import Any

from abstain.core.formatting import format_percent
from abstain.core.markdown import heading, paragraph
from abstain.data.store.profile import LENGTHS, MEASURES
from abstain.reports.page import plot
from abstain.reports.theme import LIGHT, themed

LANGUAGES_SHOWN = 6
SEEN = 0.005
"""Classes at either end with a smaller share are not drawn."""

HEIGHT, STEP, LEAST_WIDTH = 70, 26, 260
"""Of the drawing, in its own units: the highest bar, a class with both of its bars, all of it."""


def drift_section(figures: Mapping[str, Any]) -> list[str]:
    """Return the figures `drift` of a result in words, with a plot of each measure."""
    rows, limit = figures["rows"], figures["limit"]
    text = (
        f"Blue: the newest batch, {rows['newest']:,} interactions; grey: those before, {rows['previous']:,}. "
        f"Shift: population stability index, {limit} allowed."
    )
    plots = [block for measure in MEASURES for block in _plot(figures, measure, figures["shift"][measure] > limit)]
    return [heading(2, "Drift of the newest batch"), paragraph(text), *plots]


def drift_images(figures: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the drawings of `drift_section`, as SVG, by name."""
    return {_name(measure): _drawing(histogram(figures, measure)) for measure in MEASURES}


def histogram(figures: Mapping[str, Any], measure: str) -> dict[str, tuple[float, float]]:
    """Return the classes of a measure: the shares of the newest batch, and of those before, that are in each."""
    newest, previous = (_shares(figures[side].get(measure, {})) for side in ("newest", "previous"))
    classes = _lengths(newest, previous) if measure in LENGTHS else _languages(newest, previous)
    return {name: (newest.get(name, 0.0), previous.get(name, 0.0)) for name in classes}


def _plot(figures: Mapping[str, Any], measure: str, is_large: bool) -> list[str]:
    items = [
        f"{name}: {format_percent(new)}, before {format_percent(old)}"
        for name, (new, old) in histogram(figures, measure).items()
    ]
    shift = f"{measure}: shift {figures['shift'][measure]:.2f}{': large' if is_large else ''}"
    unit = "Characters, from." if measure in LENGTHS else "ISO 639; und: of no certain language."
    return plot(_name(measure), shift, f"{measure}: {'; '.join(items) or 'no answers'}.", unit)


def _name(measure: str) -> str:
    return f"drift_{measure.replace(' ', '_')}"


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


def _drawing(classes: Mapping[str, tuple[float, float]]) -> bytes:
    highest = max((share for pair in classes.values() for share in pair), default=0) or 1
    drawn = []
    for at, (name, shares) in enumerate(classes.items()):
        for x, colour, share in zip((13, 2), ("blue", "grey"), shares, strict=True):
            height = round(HEIGHT * share / highest, 1)
            box = f'x="{STEP * at + x}" y="{HEIGHT - height:g}" width="10" height="{height:g}"'
            drawn.append(f'<rect {box} style="fill: {LIGHT[colour]}"/>')
        label = f'x="{STEP * at + 12.5}" y="{HEIGHT + 11}" text-anchor="middle" font-size="8.5"'
        drawn.append(f'<text {label} style="fill: {LIGHT["soft"]}">{html.escape(name)}</text>')
    width, height = max(STEP * len(classes), LEAST_WIDTH), HEIGHT + 14
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    return themed("".join([head, *drawn, "</svg>"])).encode()
