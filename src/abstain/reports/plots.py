"""Plots of a report, drawn as SVG from the tables that DVC plots too.

Notes:

* One file serves the page, Markdown and the Prefect UI: text stays text, and a viewer that asks for a dark page gets
  dark colours, by a style inside the file. Without such a style they are light, on their own background.
* No reader has to distinguish two colours, although these (after Okabe and Ito) can be distinguished with any colour
  vision: lines also differ in their dashes. Legends are below the plot, never on it.
* The same table gives the same bytes: no date, no random names of clips.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from abstain.learning.evaluation.evaluation_result import EvaluationResult
from abstain.reports.theme import LIGHT, LINES, STYLE, add_dark_theme, add_legend, set_percent_ticks, shorten_label

CURVES = ("threshold", "roc", "reliability", "reliability_by_product", "risk_coverage", "confidence")
"""Plots whose tables are separate files."""


def plot_tables(curves: Mapping[str, pd.DataFrame], result: EvaluationResult) -> dict[str, pd.DataFrame]:
    """Build the tables that `render_plot` draws.

    Args:
        curves: Name -> table of `CURVES`.
        result: Evaluation of the candidate.

    Returns:
        Name of the plot -> table.
    """
    evaluation, holdout, table = result.evaluation, result.metrics.holdout, curves["threshold"]
    guarantee = result.guarantee
    table = table.assign(mark=table["mark"].fillna(""), metric=guarantee.metric, target=guarantee.target)
    board = pd.DataFrame(
        [
            {"scorer": name, "kind": evaluation.kinds.get(name, ""), **{key: row.get(key) for key in _BOUNDED}}
            for name, row in holdout.scorers.items()
        ]
    )
    board[list(_BOUNDED)] = board[list(_BOUNDED)].astype(float)
    return {
        **curves,
        "threshold": table,
        "confidence": curves["confidence"].assign(threshold=holdout.at_threshold.threshold),
        "leaderboard": board.sort_values(["auroc", "scorer"], ascending=[False, True], ignore_index=True),
    }


def render_plot(name: str, table: pd.DataFrame) -> bytes:
    """Draw a plot from its table of `plot_tables`.

    Args:
        name: Name of the plot, a key of `PLOTS`.
        table: The table.

    Returns:
        The plot as SVG.
    """
    return render_svg(PLOTS[name], table)


def render_svg(plot: Callable[[Axes, pd.DataFrame], None], table: pd.DataFrame) -> bytes:
    """Draw a table with a plot function.

    Args:
        plot: Function that draws the table on axes.
        table: The table; an empty one gives the text "not defined".

    Returns:
        The plot as SVG.
    """
    with rc_context(STYLE), warnings.catch_warnings():
        figure = Figure(figsize=(4.5, 3.6), layout="constrained")
        axes = figure.add_subplot()
        if table.empty:
            axes.set_axis_off()
            axes.text(0.5, 0.5, "not defined for these answers", ha="center", color=LIGHT["soft"])
        else:
            plot(axes, table)
        buffer = io.StringIO()
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the viewer draws the text, with its own fonts
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return add_dark_theme(buffer.getvalue()).encode()


def _draw_threshold(axes: Axes, table: pd.DataFrame) -> None:
    metric, target = table["metric"].iloc[0], float(table["target"].iloc[0])
    if metric == "precision":
        axes.plot(table["threshold"], table["precision"], "o-", color=LIGHT["blue"], markersize=4, label="precision")
    else:
        incorrect = table["coverage"] * (1 - table["precision"].fillna(1.0))
        axes.plot(
            table["threshold"], incorrect, "o-", color=LIGHT["blue"], markersize=4, label="shown and incorrect, of all"
        )
    axes.plot(table["threshold"], table["coverage"], "s--", color=LIGHT["orange"], markersize=4, label="coverage")
    axes.axhline(target, color=LIGHT["green"], linewidth=1.4, linestyle=":", label=f"aimed at: {100 * target:g} %")
    for mark, dashes in (("guaranteed", "-"), ("heuristic", (0, (5, 3)))):
        for threshold in table.loc[table["mark"] == mark, "threshold"]:
            axes.axvline(
                threshold, color=LIGHT["text"], linewidth=1.2, linestyle=dashes, label=f"{mark}: {threshold:.3f}"
            )
    axes.set(xlabel="threshold", xlim=(0, 1), ylim=(0, 1.02))
    set_percent_ticks(axes, y=True)
    add_legend(axes)


def _draw_roc(axes: Axes, table: pd.DataFrame) -> None:
    axes.plot([0, 1], [0, 1], color=LIGHT["soft"], linestyle=(0, (1, 2)), linewidth=1)
    for (name, curve), (colour, dashes) in zip(table.groupby("scorer", sort=False), LINES, strict=False):
        label = shorten_label(str(name))
        axes.plot(
            curve["false_positive_rate"],
            curve["true_positive_rate"],
            color=LIGHT[colour],
            linestyle=dashes,
            label=label,
        )
    axes.set(xlabel="incorrect answers shown", ylabel="recall", xlim=(0, 1), ylim=(0, 1.01))
    set_percent_ticks(axes, x=True, y=True)
    add_legend(axes)


def _draw_risk_coverage(axes: Axes, table: pd.DataFrame) -> None:
    for (name, curve), (colour, dashes) in zip(table.groupby("scorer", sort=False), LINES, strict=False):
        axes.plot(
            curve["coverage"], curve["risk"], color=LIGHT[colour], linestyle=dashes, label=shorten_label(str(name))
        )
    axes.set(xlabel="coverage", ylabel="risk", xlim=(0, 1), ylim=(0, None))
    set_percent_ticks(axes, x=True, y=True)
    add_legend(axes)


def _draw_reliability(axes: Axes, table: pd.DataFrame) -> None:
    axes.plot([0, 1], [0, 1], color=LIGHT["soft"], linestyle=(0, (1, 2)), linewidth=1)
    max_share = max(float(table["share"].max()), 1e-9)
    for kind, colour, marker, filled in (("raw", "orange", "s", False), ("calibrated", "blue", "o", True)):
        bins = table[table["kind"] == kind]
        axes.scatter(
            bins["confidence"],
            bins["accuracy"],
            s=8 + 200 * bins["share"] / max_share,
            marker=marker,
            facecolor=LIGHT[colour] if filled else "none",
            edgecolor=LIGHT[colour],
            linewidth=1.4,
            zorder=3 if filled else 4,
            clip_on=False,
            label=kind,
        )
    axes.set(xlabel="confidence", ylabel="share correct", xlim=(0, 1), ylim=(-0.04, 1.04))
    set_percent_ticks(axes, y=True)
    add_legend(axes, size=35)


def _draw_reliability_by_product(axes: Axes, table: pd.DataFrame) -> None:
    axes.plot([0, 1], [0, 1], color=LIGHT["soft"], linestyle=(0, (1, 2)), linewidth=1)
    for (name, bins), (colour, dashes) in zip(table.groupby("kind", sort=False), LINES, strict=False):
        axes.plot(
            bins["confidence"],
            bins["accuracy"],
            "o",
            linestyle=dashes,
            color=LIGHT[colour],
            markersize=4,
            label=shorten_label(str(name)),
        )
    axes.set(xlabel="calibrated probability", ylabel="share correct", xlim=(0, 1), ylim=(-0.04, 1.04))
    set_percent_ticks(axes, y=True)
    add_legend(axes)


def _draw_confidence(axes: Axes, table: pd.DataFrame) -> None:
    width = (table["bin_high"] - table["bin_low"]) * 0.86
    middle = (table["bin_low"] + table["bin_high"]) / 2
    axes.bar(middle, table["correct"], width, color=LIGHT["blue"], label="correct (up)")
    axes.bar(middle, -table["incorrect"], width, color=LIGHT["orange"], label="incorrect (down)")
    axes.axhline(0, color=LIGHT["soft"], linewidth=1)
    threshold = float(table["threshold"].iloc[0])
    axes.axvline(threshold, color=LIGHT["text"], linewidth=1.2, label=f"threshold: {threshold:.3f}")
    highest = 1.08 * max(float(table[["correct", "incorrect"]].to_numpy().max()), 1e-9)
    axes.set(xlabel="confidence", ylabel="of all answers", xlim=(0, 1), ylim=(-highest, highest))
    axes.grid(visible=False, axis="x")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * abs(value):.3g} %")
    add_legend(axes)


def _draw_leaderboard(axes: Axes, table: pd.DataFrame) -> None:
    """Draw one line per scorer, best at the top; one without an AUROC says so."""
    height = 0.75 + 0.27 * len(table)
    axes.get_figure(root=True).set_size_inches(4.5, height)  # type: ignore[union-attr]
    positions = range(len(table), 0, -1)
    labels = [shorten_label(name) for name in table["scorer"]]
    axes.axvline(0.5, color=LIGHT["soft"], linestyle=(0, (1, 2)), linewidth=1)
    for y, (_, row) in zip(positions, table.iterrows(), strict=True):
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
    axes.set_yticks(list(positions), labels)
    for label, kind in zip(axes.get_yticklabels(), table["kind"], strict=True):
        label.set_color(LIGHT["text"])
        label.set_fontweight("bold" if kind.startswith("served") else "normal")
    axes.set(xlabel="AUROC", ylim=(0.4, len(table) + 0.6))
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


_BOUNDED = ("auroc", "auroc_low", "auroc_high")

PLOTS: dict[str, Callable[[Axes, pd.DataFrame], None]] = {
    "threshold": _draw_threshold,
    "risk_coverage": _draw_risk_coverage,
    "confidence": _draw_confidence,
    "leaderboard": _draw_leaderboard,
    "roc": _draw_roc,
    "reliability": _draw_reliability,
    "reliability_by_product": _draw_reliability_by_product,
}
