"""The four plots of a report, drawn from the tables that DVC plots too."""

from __future__ import annotations

import io
from collections.abc import Callable

import matplotlib

matplotlib.use("Agg")  # no screen is needed, and none is looked for
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes


def draw(name: str, table: pd.DataFrame) -> bytes:
    """The plot called `name` (a key of `PLOTS`) as PNG bytes, small enough to be inlined in a page."""
    figure, axes = plt.subplots(figsize=(4.6, 3.4), dpi=90, layout="constrained")
    PLOTS[name](axes, table)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    plt.close(figure)
    return buffer.getvalue()


def _roc(axes: Axes, table: pd.DataFrame) -> None:
    axes.plot(table["false_positive_rate"], table["true_positive_rate"], color="tab:blue")
    axes.plot([0, 1], [0, 1], color="gray", linestyle=":", linewidth=1)
    axes.set(title="ROC", xlabel="wrong answers shown", ylabel="right answers shown")


def _threshold(axes: Axes, table: pd.DataFrame) -> None:
    axes.plot(table["threshold"], table["precision"], marker="o", label="precision", color="tab:blue")
    axes.plot(table["threshold"], table["display_rate"], marker="s", label="display rate", color="tab:orange")
    tuned = float(table.loc[table["tuned"], "threshold"].iloc[0])
    axes.axvline(tuned, color="gray", linestyle="--", linewidth=1, label=f"tuned: {tuned:.2f}")
    axes.set(title="Precision and display rate", xlabel="threshold", ylim=(0, 1.03))
    axes.legend(frameon=False, fontsize=8)


def _reliability(axes: Axes, table: pd.DataFrame) -> None:
    axes.plot([0, 1], [0, 1], color="gray", linestyle=":", linewidth=1)
    axes.scatter(table["confidence"], table["accuracy"], s=10 + 3 * table["rows"], color="tab:blue", alpha=0.7)
    axes.set(title="Reliability (area: answers)", xlabel="confidence", ylabel="share right", xlim=(0, 1), ylim=(0, 1))


def _risk_coverage(axes: Axes, table: pd.DataFrame) -> None:
    axes.plot(table["coverage"], table["risk"], color="tab:blue")
    axes.axhline(float(table["risk"].iloc[-1]), color="gray", linestyle=":", linewidth=1)
    axes.set(
        title="Risk against coverage", xlabel="share of answers shown", ylabel="share wrong of those", ylim=(0, None)
    )


PLOTS: dict[str, Callable[[Axes, pd.DataFrame], None]] = {
    "threshold": _threshold,
    "roc": _roc,
    "reliability": _reliability,
    "risk_coverage": _risk_coverage,
}
