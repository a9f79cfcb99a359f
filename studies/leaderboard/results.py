"""What the stages found about every scorer, for the tables of a study; all in the folder of the stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from abstain.core import paths
from abstain.core.contracts import Interaction
from abstain.core.scorer_names import PROBE
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import split_by_sampling
from abstain.learning.evaluation.curves import make_risk_coverage_table, make_roc_table
from abstain.learning.metrics.weighted_metrics import row_weights
from abstain.learning.thresholds.threshold_result import ThresholdResult
from abstain.reports.plots import PLOTS, render_svg
from abstain.reports.theme import LIGHT, LINES, add_legend, set_percent_ticks
from abstain.stages.shared import artifacts

METRICS = ("auroc", "brier", "error_recall_at_15pct", "error_recall_over_random")


def read_holdout() -> pd.DataFrame:
    """Read the reviewed answers of the hold-out that represent all of its answers, with the scores of all scorers.

    Returns:
        The columns of scores.parquet; that of the exported probe has the name of its architecture.
    """
    scores = pd.read_parquet(paths.SCORES)
    threshold = ThresholdResult.model_validate(artifacts.read_json(paths.THRESHOLD))
    rows, _ = split_by_sampling(scores[scores["split"] == "holdout"], threshold.guarantee.evidence.sampled)
    return rows.rename(columns={PROBE: artifacts.read_json(paths.PROBE_CHOICE)["exported"]})


def read_board() -> dict[str, Any]:
    """Read the leaderboard of the stage `evaluate`, as JSON.

    Returns:
        `rows`, with a record for each scorer; `unavailable`, the reasons why there are no others, by name; `counts`.
    """
    holdout_metrics, evaluation = artifacts.read_json(paths.METRICS)["holdout"], artifacts.read_json(paths.EVALUATION)
    exported = evaluation["probe"]["exported"]
    rows = [
        {
            "scorer": exported if name == PROBE else name,
            "kind": evaluation["kinds"][name].removeprefix("served "),
            "is_exported": name == PROBE,
            "is_served": name == evaluation["served"]["name"],
            "unscored": values["unscored"],
            "forward_tokens": evaluation["forward_tokens"][name],
            **{f"{metric}{end}": values.get(f"{metric}{end}") for metric in METRICS for end in ("", "_low", "_high")},
        }
        for name, values in holdout_metrics["scorers"].items()
    ]
    return {
        "rows": sorted(rows, key=lambda row: (-(row["auroc"] or 0.0), row["scorer"])),
        "unavailable": evaluation["skipped"],
        "counts": _count_answers(holdout_metrics),
    }


def _count_answers(holdout_metrics: Mapping[str, Any]) -> dict[str, Any]:
    holdout, dataset = read_holdout(), pd.read_parquet(paths.DATASET)
    by_split = dataset["split"].value_counts().to_dict()
    return {
        "test": len(holdout),
        "test_groups": int(holdout["group"].nunique()),
        "base_rate": holdout_metrics["base_rate"],
        "train": int(by_split.get("train", 0)),
        "validation": int(by_split.get("validation", 0)),
        "model": artifacts.read_json(paths.EVALUATION)["served"]["model"],
    }


def draw_curves(names: Sequence[str]) -> dict[str, str]:
    """Draw the first scorers of `names`, as many as there are distinguishable lines, on the test answers.

    Returns:
        SVG by file name: the ROC curves, and the precision of the shown answers by the share that is withheld.
    """
    rows = read_holdout()
    correct, weight = rows["correct"].to_numpy(int), row_weights(rows["inclusion_probability"].to_numpy(float))
    scores = rows[list(names)[: len(LINES)]]
    curves = {
        "roc.svg": (PLOTS["roc"], make_roc_table(correct, scores, weight)),
        "precision.svg": (_draw_precision, make_risk_coverage_table(correct, scores, weight)),
    }
    return {name: render_svg(draw, table).decode() for name, (draw, table) in curves.items()}


def _draw_precision(axes: Axes, table: pd.DataFrame) -> None:
    for (name, curve), (colour, dashes) in zip(table.groupby("scorer", sort=False), LINES, strict=False):
        axes.plot(1 - curve["coverage"], 1 - curve["risk"], color=LIGHT[colour], linestyle=dashes, label=str(name))
    axes.set(xlabel="withheld", ylabel="precision", xlim=(0, 1), ylim=(None, 1.01))
    set_percent_ticks(axes, x=True, y=True)
    add_legend(axes)


def select_answers(count: int) -> list[Interaction]:
    """Return `count` test answers, evenly spaced."""
    names = read_holdout()["interaction_id"]
    indices = np.unique(np.linspace(0, len(names), min(count, len(names)), endpoint=False, dtype=int))
    return DataStore(paths.DATA).read_interactions(names.iloc[indices])
