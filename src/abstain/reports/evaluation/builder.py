"""Values of the report's templates, which are in `reports/templates/evaluation`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pandas as pd

from abstain.core.codes import Code
from abstain.learning.evaluation.evaluation_result import EvaluationResult
from abstain.reports.evaluation.plot_texts import describe_plots
from abstain.reports.evaluation.verdict import make_verdict
from abstain.reports.templating import rank_best_first, render_template

if TYPE_CHECKING:
    from abstain.data.labels.data_card import DataCard  # imports scipy


def render_evaluation(result: EvaluationResult, dataset: DataCard, tables: Mapping[str, pd.DataFrame]) -> str:
    """Render the report of one candidate.

    Args:
        result: Evaluation of the candidate.
        dataset: The data card.
        tables: The tables of `plots.plot_tables`.

    Returns:
        Markdown.
    """
    evaluation, metrics = result.evaluation, result.metrics
    return render_template(
        "evaluation",
        **_make_board(result),
        verdict=make_verdict(result),
        alt=describe_plots(result, tables),
        dataset=dataset,
        label_counts=asdict(dataset.labels),
        thresholds=tables["threshold"].to_dict("records"),
        has_rouge=bool(tables["threshold"]["rouge_shown"].notna().any()),
        holdout=metrics.holdout,
        newest=metrics.newest,
        point=metrics.holdout.at_threshold,
        served_metrics=result.served_metrics,
        too_few_shown=result.too_few_shown,
        threshold=evaluation.threshold,
        guarantee=result.guarantee,
        has_guarantee=result.guarantee.status != "none",
        is_precision=result.guarantee.metric == "precision",
        audits=evaluation.audits,
        dropped=max((row.dropped for row in evaluation.regressors.regressors.values()), key=len, default={}),
        contradicts_code=Code.CONTRADICTS_OTHERS,
    )


def render_leaderboard(result: EvaluationResult) -> str:
    """Render the leaderboard as Markdown.

    Args:
        result: Evaluation of the candidate.

    Returns:
        Markdown.
    """
    return render_template("leaderboard", **_make_board(result))


def _make_board(result: EvaluationResult) -> dict[str, Any]:
    scorers = result.metrics.holdout.scorers
    return {
        "content": result.evaluation,
        "probe": result.evaluation.probe,
        "served": result.evaluation.served,
        "scorers": scorers,
        "ranked": rank_best_first({name: row.auroc for name, row in scorers.items()}),
    }
