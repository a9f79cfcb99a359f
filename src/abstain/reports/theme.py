"""Look of all plots: colours on a light and on a dark page, distinguishable lines, axes and legends."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from abstain.core.markdown import to_single_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LIGHT = {
    "paper": "#ffffff",
    "text": "#1b1f24",
    "soft": "#5b6572",
    "line": "#dfe3e8",
    "blue": "#0072b2",
    "orange": "#c65400",
    "green": "#008a63",
    "grey": "#6f7782",
}
DARK = {
    "paper": "#1c2026",
    "text": "#e7eaee",
    "soft": "#a7b0bc",
    "line": "#343b44",
    "blue": "#63b3ee",
    "orange": "#ff9a5c",
    "green": "#45c99c",
    "grey": "#98a1ad",
}
LINES = (("blue", "-"), ("orange", "--"), ("green", "-."), ("grey", ":"))
LONGEST_NAME = 24

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "abstain",
    "text.parse_math": False,  # a name may hold a dollar sign
    "font.size": 10,
    "figure.facecolor": LIGHT["paper"],
    "axes.facecolor": LIGHT["paper"],
    "axes.edgecolor": LIGHT["soft"],
    "axes.labelcolor": LIGHT["text"],
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT["line"],
    "grid.linewidth": 0.8,
    "text.color": LIGHT["text"],
    "xtick.color": LIGHT["soft"],
    "ytick.color": LIGHT["soft"],
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
}
FONT = "text{font-family:system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif!important}"


def add_dark_theme(svg: str) -> str:
    """Add the colours for a dark page to the drawing `svg`."""
    rules = "".join(
        f'[style*="{property_name}: {colour}"]{{{property_name}:{DARK[name]}!important}}'
        for name, colour in LIGHT.items()
        for property_name in ("fill", "stroke")
    )
    style = f"<style>{FONT}@media (prefers-color-scheme:dark){{{rules}}}</style>"
    return re.sub(r"(<svg\b[^>]*>)", lambda match: match[1] + style, svg, count=1)


def shorten_label(name: str) -> str:
    """Shorten the `name` of a scorer to the length of a label."""
    name = to_single_line(name)
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def set_percent_ticks(axes: Axes, x: bool = False, y: bool = False) -> None:
    """Show the ticks of axes in percent.

    Args:
        axes: The axes of the plot.
        x: Whether the x-axis changes.
        y: Whether the y-axis changes.
    """
    for axis in ([axes.xaxis] if x else []) + ([axes.yaxis] if y else []):
        axis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")


def add_legend(axes: Axes, size: float | None = None) -> None:
    """Add a legend below the plot, where it hides nothing.

    Args:
        axes: The axes of the plot.
        size: Size of the points in the legend, if it differs from that in the plot.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    legend = figure.legend(loc="outside lower center", ncols=2)
    for handle in legend.legend_handles if size else ():
        handle.set_sizes([size])  # type: ignore[union-attr]
