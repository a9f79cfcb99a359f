"""The reviewers' ideal answers, and the similarity of answers to them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from abstain.core import paths
from abstain.core.contracts import Review
from abstain.data.store.dataset import DataStore
from abstain.learning.metrics.rouge import rouge_l


def read_ideal_answers() -> dict[str, str]:
    """Read the reviewers' ideal answers by interaction id; of several the latest."""
    reviews = sorted(DataStore(paths.DATA).iter_rows(Review), key=lambda review: review.reviewed_at)
    return {review.interaction_id: review.ideal_answer for review in reviews if review.ideal_answer}


def read_rouge(frame: pd.DataFrame) -> np.ndarray:
    """Compute the ROUGE-L of answers against the reviewers' latest ideal answers.

    Args:
        frame: Rows of the data set.

    Returns:
        float64 (rows,) in [0, 1]; nan without an ideal answer.
    """
    store = DataStore(paths.DATA)
    ideal = read_ideal_answers()
    answers = [row.answer for row in store.read_interactions(frame["interaction_id"])]
    return rouge_l(answers, [ideal.get(name) for name in frame["interaction_id"]])
