"""The plots of a report, drawn as SVG from the tables that DVC plots too.

Notes:

* One file each, for the page, for Markdown and for the Prefect UI: text stays text, and what asks for a dark page gets
  dark colours, by a style inside the file. Without such a style they are light, on a ground of their own.
* No reader has to distinguish two colours, though these (after Okabe and Ito) can be, whatever one's colour vision:
  lines differ in their dashes, too. Legends lie below what is drawn, never on it.
* The same table is the same bytes: no date, no random names of clips.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from abstain.reports.theme import LIGHT, LINES, STYLE, legend, shares, short_name, themed

CURVES = ("threshold", "roc", "reliability", "reliability_by_product", "risk_coverage", "confidence")
"""The plots whose tables are files of their own."""


def plot_tables(
    curves: Mapping[str, pd.DataFrame], metrics: Mapping[str, Any], evaluation: Mapping[str, Any]
) -> dict[str, pd.DataFrame]:
    """What `render_plot` draws, by plot.

    Args:
        curves: the tables of `CURVES`. metrics, evaluation: the parsed files of these names, for the leaderboard's
            intervals, the target, and the threshold.
    """
    scorers, threshold = metrics["holdout"]["scorers"], evaluation["threshold"]
    table = curves["threshold"]
    table = table.assign(mark=table["mark"].fillna(""), metric=threshold["metric"], target=threshold["target"])
    board = pd.DataFrame(
        [
            {"scorer": name, "kind": evaluation["kinds"].get(name, ""), **{k: row[k] for k in _BOUNDED}}
            for name, row in scorers.items()
        ]
    )
    board[list(_BOUNDED)] = board[list(_BOUNDED)].astype(float)
    return {
        **curves,
        "threshold": table,
        "confidence": curves["confidence"].assign(threshold=metrics["holdout"]["at_threshold"]["threshold"]),
        "leaderboard": board.sort_values(["auroc", "scorer"], ascending=[False, True], ignore_index=True),
    }


def render_plot(name: str, table: pd.DataFrame) -> bytes:
    """The plot called `name` (a key of `PLOTS`) of its table of `plot_tables`, as SVG."""
    return render_svg(PLOTS[name], table)


def render_svg(plot: Callable[[Axes, pd.DataFrame], None], table: pd.DataFrame) -> bytes:
    """What `plot` draws of `table`, as SVG."""
    with rc_context(STYLE), warnings.catch_warnings():
        figure = Figure(figsize=(4.5, 3.6), layout="constrained")
        axes = figure.add_subplot()
        if table.empty:
            axes.set_axis_off()
            axes.text(0.5, 0.5, "not defined for these answers", ha="center", color=LIGHT["soft"])
        else:
            plot(axes, table)
        buffer = io.StringIO()
        warnings.filterwarnings("ignore", "Glyph .* missing")  # text is drawn by who shows it, in fonts of its own
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return themed(buffer.getvalue()).encode()


def _threshold(axes: Axes, table: pd.DataFrame) -> None:
    metric, target = table["metric"].iloc[0], float(table["target"].iloc[0])
    if metric == "precision":
        axes.plot(table["threshold"], table["precision"], "o-", color=LIGHT["blue"], markersize=4, label="precision")
    else:
        wrong = table["coverage"] * (1 - table["precision"].fillna(1.0))
        axes.plot(
            table["threshold"], wrong, "o-", color=LIGHT["blue"], markersize=4, label="shown and incorrect, of all"
        )
    axes.plot(table["threshold"], table["coverage"], "s--", color=LIGHT["orange"], markersize=4, label="coverage")
    axes.axhline(target, color=LIGHT["green"], linewidth=1.4, linestyle=":", label=f"aimed at: {100 * target:g} %")
    for mark, dashes in (("guaranteed", "-"), ("heuristic", (0, (5, 3)))):
        for at in table.loc[table["mark"] == mark, "threshold"]:
            axes.axvline(at, color=LIGHT["text"], linewidth=1.2, linestyle=dashes, label=f"{mark}: {at:.3f}")
    axes.set(xlabel="threshold", xlim=(0, 1), ylim=(0, 1.02))
    shares(axes, y=True)
    legend(axes)


def _roc(axes: Axes, table: pd.DataFrame) -> None:
    axes.plot([0, 1], [0, 1], color=LIGHT["soft"], linestyle=(0, (1, 2)), linewidth=1)
    for (name, curve), (colour, dashes) in zip(table.groupby("scorer", sort=False), LINES, strict=False):
        label = short_name(str(name))
        axes.plot(
            curve["false_positive_rate"],
            curve["true_positive_rate"],
            color=LIGHT[colour],
            linestyle=dashes,
            label=label,
        )
    axes.set(xlabel="incorrect answers shown", ylabel="recall", xlim=(0, 1), ylim=(0, 1.01))
    shares(axes, x=True, y=True)
    legend(axes)


def _risk_coverage(axes: Axes, table: pd.DataFrame) -> None:
    for (name, curve), (colour, dashes) in zip(table.groupby("scorer", sort=False), LINES, strict=False):
        axes.plot(curve["coverage"], curve["risk"], color=LIGHT[colour], linestyle=dashes, label=short_name(str(name)))
    axes.set(xlabel="coverage", ylabel="risk", xlim=(0, 1), ylim=(0, None))
    shares(axes, x=True, y=True)
    legend(axes)


def _reliability(axes: Axes, table: pd.DataFrame) -> None:
    axes.plot([0, 1], [0, 1], color=LIGHT["soft"], linestyle=(0, (1, 2)), linewidth=1)
    most = max(float(table["share"].max()), 1e-9)
    for kind, colour, marker, filled in (("raw", "orange", "s", False), ("calibrated", "blue", "o", True)):
        of = table[table["kind"] == kind]
        axes.scatter(
            of["confidence"],
            of["accuracy"],
            s=8 + 200 * of["share"] / most,
            marker=marker,
            facecolor=LIGHT[colour] if filled else "none",
            edgecolor=LIGHT[colour],
            linewidth=1.4,
            zorder=3 if filled else 4,
            clip_on=False,
            label=kind,
        )
    axes.set(xlabel="confidence", ylabel="share correct", xlim=(0, 1), ylim=(-0.04, 1.04))
    shares(axes, y=True)
    legend(axes, size=35)


def _reliability_by_product(axes: Axes, table: pd.DataFrame) -> None:
    axes.plot([0, 1], [0, 1], color=LIGHT["soft"], linestyle=(0, (1, 2)), linewidth=1)
    for (name, bins), (colour, dashes) in zip(table.groupby("kind", sort=False), LINES, strict=False):
        axes.plot(
            bins["confidence"],
            bins["accuracy"],
            "o",
            linestyle=dashes,
            color=LIGHT[colour],
            markersize=4,
            label=short_name(str(name)),
        )
    axes.set(xlabel="calibrated probability", ylabel="share correct", xlim=(0, 1), ylim=(-0.04, 1.04))
    shares(axes, y=True)
    legend(axes)


def _confidence(axes: Axes, table: pd.DataFrame) -> None:
    width = (table["bin_high"] - table["bin_low"]) * 0.86
    middle = (table["bin_low"] + table["bin_high"]) / 2
    axes.bar(middle, table["correct"], width, color=LIGHT["blue"], label="correct (up)")
    axes.bar(middle, -table["incorrect"], width, color=LIGHT["orange"], label="incorrect (down)")
    axes.axhline(0, color=LIGHT["soft"], linewidth=1)
    at = float(table["threshold"].iloc[0])
    axes.axvline(at, color=LIGHT["text"], linewidth=1.2, label=f"threshold: {at:.3f}")
    highest = 1.08 * max(float(table[["correct", "incorrect"]].to_numpy().max()), 1e-9)
    axes.set(xlabel="confidence", ylabel="of all answers", xlim=(0, 1), ylim=(-highest, highest))
    axes.grid(visible=False, axis="x")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * abs(value):.3g} %")
    legend(axes)


def _leaderboard(axes: Axes, table: pd.DataFrame) -> None:
    """One line a scorer, best at the top; one without an AUROC says so."""
    height = 0.75 + 0.27 * len(table)
    axes.get_figure(root=True).set_size_inches(4.5, height)  # type: ignore[union-attr]
    places = range(len(table), 0, -1)
    labels = [short_name(name) for name in table["scorer"]]
    axes.axvline(0.5, color=LIGHT["soft"], linestyle=(0, (1, 2)), linewidth=1)
    for y, (_, row) in zip(places, table.iterrows(), strict=True):
        served = row["kind"].startswith("served")
        colour = LIGHT["blue" if served else "soft"]
        if pd.isna(row["auroc"]):
            axes.text(0.515, y, "not defined", va="center", color=LIGHT["soft"], fontsize=9)
            continue
        axes.plot([row["auroc_low"], row["auroc_high"]], [y, y], color=colour, linewidth=2.6 if served else 1.6)
        axes.plot(row["auroc"], y, "D" if served else "o", color=colour, markersize=7 if served else 5)
        axes.text(
            1.02,
            y,
            f"{row['auroc']:.3f}",
            transform=axes.get_yaxis_transform(),
            va="center",
            color=LIGHT["text"],
            fontsize=9.5,
        )
    axes.set_yticks(list(places), labels)
    for label, kind in zip(axes.get_yticklabels(), table["kind"], strict=True):
        label.set_color(LIGHT["text"])
        label.set_fontweight("bold" if kind.startswith("served") else "normal")
    axes.set(xlabel="AUROC", ylim=(0.4, len(table) + 0.6))
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


_BOUNDED = ("auroc", "auroc_low", "auroc_high")

PLOTS: dict[str, Callable[[Axes, pd.DataFrame], None]] = {
    "threshold": _threshold,
    "risk_coverage": _risk_coverage,
    "confidence": _confidence,
    "leaderboard": _leaderboard,
    "roc": _roc,
    "reliability": _reliability,
    "reliability_by_product": _reliability_by_product,
}
