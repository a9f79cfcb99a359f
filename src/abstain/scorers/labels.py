"""What was found of training answers: what every fit learns from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Labels:
    """What was found of training answers, all (rows,): `correct` 0/1, `weight` >= 0, and `groups` that err together."""

    correct: np.ndarray
    weight: np.ndarray
    groups: np.ndarray
