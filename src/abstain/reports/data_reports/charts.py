"""Drift of the newest batch against those before: a histogram of each measure, in words and as a drawing."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping

from abstain.core.formatting import format_percent
from abstain.data.store.profile import LENGTHS, MEASURES
from abstain.data.validation.results import DriftStatistics
from abstain.reports.theme import LIGHT, add_dark_theme

LANGUAGES_SHOWN = 6
MIN_SHARE = 0.005
"""Least share of the first and the last class that is drawn."""

HEIGHT, STEP, LEAST_WIDTH = 70, 26, 260
"""Sizes in the units of the drawing: height of the highest bar, width of a class with both bars, least total width."""


def describe_drift(drift: DriftStatistics) -> list[tuple[str, str, str, str]]:
    """Describe the plots of `drift_images` in words: name, title, content and unit of each."""
    return [
        (
            _make_plot_name(measure),
            f"{measure}: shift {drift.shift[measure]:.2f}{': large' if drift.shift[measure] > drift.limit else ''}",
            f"{measure}: {'; '.join(_describe_classes(drift, measure)) or 'no answers'}.",
            "Characters, from." if measure in LENGTHS else "ISO 639; und: of no certain language.",
        )
        for measure in MEASURES
    ]


def drift_images(drift: DriftStatistics) -> dict[str, bytes]:
    """Draw the drift of the newest batch: name of the plot of each measure -> SVG."""
    return {_make_plot_name(measure): _draw_histogram(histogram(drift, measure)) for measure in MEASURES}


def histogram(drift: DriftStatistics, measure: str) -> dict[str, tuple[float, float]]:
    """Compute the histogram of a measure: class -> its share in the newest batch, and in those before."""
    newest, previous = (_compute_shares(side.get(measure, {})) for side in (drift.newest, drift.previous))
    classes = _list_length_classes(newest, previous) if measure in LENGTHS else _list_languages(newest, previous)
    return {name: (newest.get(name, 0.0), previous.get(name, 0.0)) for name in classes}


def _describe_classes(drift: DriftStatistics, measure: str) -> list[str]:
    return [
        f"{name}: {format_percent(new)}, before {format_percent(old)}"
        for name, (new, old) in histogram(drift, measure).items()
    ]


def _make_plot_name(measure: str) -> str:
    return f"drift_{measure.replace(' ', '_')}"


def _compute_shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()} if total else {}


def _list_length_classes(*sides: Mapping[str, float]) -> list[str]:
    """Return every class from the first to the last with a visible share, including those between them."""
    visible = [int(name) for side in sides for name, share in side.items() if share >= MIN_SHARE]
    if not visible:
        return []
    boundaries = {0, *(math.ceil(2 ** (half / 2)) for half in range(64))}
    return [str(lower) for lower in sorted(boundaries) if min(visible) <= lower <= max(visible)]


def _list_languages(newest: Mapping[str, float], previous: Mapping[str, float]) -> list[str]:
    share = {name: max(newest.get(name, 0), previous.get(name, 0)) for name in {**newest, **previous}}
    return sorted(share, key=lambda name: (-share[name], name))[:LANGUAGES_SHOWN]


def _draw_histogram(classes: Mapping[str, tuple[float, float]]) -> bytes:
    highest = max((share for pair in classes.values() for share in pair), default=0) or 1
    elements = []
    for index, (name, shares) in enumerate(classes.items()):
        for x, colour, share in zip((13, 2), ("blue", "grey"), shares, strict=True):
            height = round(HEIGHT * share / highest, 1)
            box = f'x="{STEP * index + x}" y="{HEIGHT - height:g}" width="10" height="{height:g}"'
            elements.append(f'<rect {box} style="fill: {LIGHT[colour]}"/>')
        label = f'x="{STEP * index + 12.5}" y="{HEIGHT + 11}" text-anchor="middle" font-size="8.5"'
        elements.append(f'<text {label} style="fill: {LIGHT["soft"]}">{html.escape(name)}</text>')
    width, height = max(STEP * len(classes), LEAST_WIDTH), HEIGHT + 14
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    return add_dark_theme("".join([head, *elements, "</svg>"])).encode()
