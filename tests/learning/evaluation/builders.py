"""Made-up answers whose confidences know something, and whose groups err together."""

from __future__ import annotations

import numpy as np


def grouped(rows: int, groups: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """0/1 correctness, a noisy view of it in [0, 1], and groups; all (rows,)."""
    generator = np.random.default_rng(seed)
    group = generator.integers(groups, size=rows)
    share = np.clip(0.6 + 0.25 * generator.normal(size=groups), 0.05, 0.95)
    correct = (generator.random(rows) < share[group]).astype(int)
    confidence = 1 / (1 + np.exp(-(2 * correct - 1) - generator.normal(size=rows)))
    return correct, confidence, group
