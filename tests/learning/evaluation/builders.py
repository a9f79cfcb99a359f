"""Reviewed answers with scores that know something, whose groups err together."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from abstain.learning.evaluation.reviewed_split import ReviewedSplit


def make_grouped(rows: int, groups: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """0/1 correctness, a noisy view of it in [0, 1], and groups; all (rows,)."""
    generator = np.random.default_rng(seed)
    group = generator.integers(groups, size=rows)
    share = np.clip(0.6 + 0.25 * generator.normal(size=groups), 0.05, 0.95)
    correct = (generator.random(rows) < share[group]).astype(int)
    confidence = 1 / (1 + np.exp(-(2 * correct - 1) - generator.normal(size=rows)))
    return correct, confidence, group


def make_split(
    correct: np.ndarray,
    scores: Mapping[str, np.ndarray],
    calibrated: Mapping[str, np.ndarray] | None = None,
    groups: np.ndarray | None = None,
    weight: np.ndarray | None = None,
) -> ReviewedSplit:
    """Answers in groups of their own with equal weights, unless given."""
    rows = pd.DataFrame({"correct": correct, "group": np.arange(len(correct)) if groups is None else groups})
    tables = (pd.DataFrame(dict(columns), rows.index) for columns in (scores, {} if calibrated is None else calibrated))
    return ReviewedSplit(rows, *tables, np.ones(len(correct)) if weight is None else weight)
