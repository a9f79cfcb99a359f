"""Table 1's pair and table 2 of Huang et al., for every scorer on the test answers of the stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from abstain.config.params import Params
from abstain.learning.evaluation.scorer_choice import compute_aurocs
from abstain.learning.evaluation.selective_prediction import ScoredAnswers, build_threshold_table
from abstain.learning.metrics.bootstrap import RESAMPLING, make_interval_columns, paired_difference
from abstain.learning.metrics.weighted_metrics import row_weights
from abstain.llm.features.feature_store import OnProgress
from abstain.stages.shared.ideal_answers import read_rouge
from studies.leaderboard.results import read_board, read_holdout


def compute_board(pair: Sequence[str], params: Params, progress: OnProgress) -> dict[str, Any]:
    """Return the leaderboard with the paired difference of the two scorers of `pair`, None without either."""
    rows = read_holdout()
    difference = None
    if set(pair) <= set(rows):
        aurocs = compute_aurocs(rows, {name: rows[name].to_numpy(float) for name in pair}, RESAMPLING)
        difference = make_interval_columns("difference", paired_difference(aurocs[pair[0]], aurocs[pair[1]]))
    return {**read_board(), "difference": difference}


def compute_thresholds(params: Params, progress: OnProgress) -> dict[str, Any]:
    """Return table 2 of every scorer, and the number of answers with an ideal answer."""
    rows = read_holdout()
    rouge = read_rouge(rows)
    scorers = [row["scorer"] for row in read_board()["rows"]]
    tables = {}
    for done, name in enumerate(scorers):
        progress(done, len(scorers))
        tables[name] = make_threshold_rows(rows, rows[name].to_numpy(float), rouge, {})
    return {"tables": tables, "ideal_answers": int((~np.isnan(rouge)).sum())}


def make_threshold_rows(
    rows: pd.DataFrame, confidence: np.ndarray, rouge: np.ndarray, marked: dict[str, float]
) -> list[dict[str, Any]]:
    """Return the rows of table 2.

    Args:
        rows: Reviewed rows: correct, group and inclusion_probability.
        confidence: (rows,) raw confidences.
        rouge: (rows,) ROUGE-L against the ideal answer; nan without one.
        marked: Further thresholds by name.

    Returns:
        A record for each threshold, as of `build_threshold_table`.
    """
    answers = ScoredAnswers(
        rows["correct"].to_numpy(int), confidence, row_weights(rows["inclusion_probability"].to_numpy(float))
    )
    table = build_threshold_table(answers, rows["group"].to_numpy(), marked, RESAMPLING, rouge)
    return [{str(key): value for key, value in record.items()} for record in table.to_dict("records")]
