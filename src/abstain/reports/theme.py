"""How every plot looks: colours on a light and on a dark page, lines that can be told apart, axes and legends."""

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


def themed(svg: str) -> str:
    """The drawing with its colours for a dark page."""
    rules = "".join(
        f'[style*="{what}: {colour}"]{{{what}:{DARK[name]}!important}}'
        for name, colour in LIGHT.items()
        for what in ("fill", "stroke")
    )
    style = f"<style>{FONT}@media (prefers-color-scheme:dark){{{rules}}}</style>"
    return re.sub(r"(<svg\b[^>]*>)", lambda found: found[1] + style, svg, count=1)


def short_name(name: str) -> str:
    """A scorer's name as a label has room for."""
    name = to_single_line(name)
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def shares(axes: Axes, x: bool = False, y: bool = False) -> None:
    """Ticks in percent."""
    for axis in ([axes.xaxis] if x else []) + ([axes.yaxis] if y else []):
        axis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")


def legend(axes: Axes, size: float | None = None) -> None:
    """A legend below the plot, where it hides nothing; `size`: of its points, where those of the plot differ."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    legend = figure.legend(loc="outside lower center", ncols=2)
    for handle in legend.legend_handles if size else ():
        handle.set_sizes([size])  # type: ignore[union-attr]
