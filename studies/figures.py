"""Figures that several studies draw."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from abstain.reports.plots import render_svg
from abstain.reports.theme import LIGHT, LINES, add_legend, set_percent_ticks

BINS = 20


def draw_histogram(scores_by_kind: Mapping[str, np.ndarray], name: str) -> str:
    """Return the histogram of the scores of each kind, (rows,) in [0, 1], as SVG; rows without a score are left out.

    Args:
        scores_by_kind: At most four kinds.
        name: Name of the score.

    Returns:
        The figure.
    """
    edges = np.linspace(0, 1, BINS + 1)
    tables = [
        pd.DataFrame({"kind": kind, "score": edges, "share": np.append(counts, counts[-1]) / max(counts.sum(), 1)})
        for kind, scores in scores_by_kind.items()
        for counts in [np.histogram(scores[~np.isnan(scores)], edges)[0]]
    ]
    return render_svg(partial(_draw_steps, name=name), pd.concat(tables, ignore_index=True)).decode()


def _draw_steps(axes: Axes, table: pd.DataFrame, name: str) -> None:
    for (kind, steps), (colour, dashes) in zip(table.groupby("kind", sort=False), LINES, strict=False):
        axes.step(steps["score"], steps["share"], where="post", color=LIGHT[colour], linestyle=dashes, label=str(kind))
    axes.set(xlabel=name, ylabel="share of the kind", xlim=(0, 1), ylim=(0, None))
    set_percent_ticks(axes, y=True)
    add_legend(axes)
