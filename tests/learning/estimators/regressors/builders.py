"""Features that know something of a correctness score, some of them missing, and groups in which answers err together."""

import numpy as np
import pandas as pd

from abstain.config.params import RegressorFit

PARAMS = RegressorFit(folds=4, seed=7, trees=40, max_features=0.5, min_leaf=3)


def make_planted(
    rows: int, seed: int, strength: float = 1.0, missing: float = 0.05
) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Features (rows, 8), of which two move the score, the score in [0, 1], and 20 groups."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(rows, 8))
    known = np.tanh(values[:, 0]) + 0.5 * values[:, 1]
    score = np.clip(0.6 + 0.2 * strength * known + 0.05 * generator.normal(size=rows), 0, 1)
    scaled = 5 + 3 * values
    scaled[generator.random(values.shape) < missing] = np.nan
    names = [f"nll_{n}" for n in range(8)]
    groups = np.array([f"g-{row % 20}" for row in range(rows)], dtype=object)
    return pd.DataFrame(scaled, columns=names), score, groups
