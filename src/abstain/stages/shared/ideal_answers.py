"""The reviewers' ideal answers, and the similarity of answers to them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from abstain.core import paths
from abstain.core.contracts import Review
from abstain.data.store.dataset import DataStore
from abstain.learning.metrics.rouge import rouge_l


def read_ideal_answers() -> dict[str, str]:
    """Interaction id -> the ideal answer of its reviewer; of several the latest."""
    reviews = sorted(DataStore(paths.DATA).iter_rows(Review), key=lambda review: review.reviewed_at)
    return {review.interaction_id: review.ideal_answer for review in reviews if review.ideal_answer}


def read_rouge(frame: pd.DataFrame) -> np.ndarray:
    """ROUGE-L of each row's answer against the reviewers' latest ideal answer; nan where there is none."""
    store = DataStore(paths.DATA)
    ideal = read_ideal_answers()
    answers = [row.answer for row in store.interactions(frame["interaction_id"])]
    return rouge_l(answers, [ideal.get(name) for name in frame["interaction_id"]])
