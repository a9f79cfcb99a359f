"""Is the promise of a live version kept? A test of its reviews that may be looked at as often as one likes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class ReviewBatch:
    """Reviews of shown answers that arrived together, as within a day.

    correct: (n,) bool. weight: (n,) float > 0, one over the inclusion probability. document: (n,) ids, compared as
    they are. coverage: the share of all decisions in the time of the batch that were shown, in [0, 1].
    """

    correct: np.ndarray
    weight: np.ndarray
    document: np.ndarray
    coverage: float = 1.0


@dataclass(frozen=True)
class Promise:
    """Of what is shown at least `target` is correct, or of all answers at most `target` are shown and incorrect."""

    metric: Literal["precision", "error_rate"]
    target: float


@dataclass(frozen=True)
class PromiseTest:
    """What the reviews say of a promise.

    e_value: the evidence against it after the last batch; peak: the most that it ever was. broken: the evidence was
    enough, first after the batch `broken_at` (None: never). estimate: the inclusion-weighted precision or error rate;
    low, high: its confidence sequence, an interval that holds however often one looks.
    """

    e_value: float
    peak: float
    broken: bool
    broken_at: int | None
    reviews: int
    documents: int
    estimate: float
    low: float
    high: float


def test_promise(batches: Sequence[ReviewBatch], promise: Promise, level: float = 0.05) -> PromiseTest:
    """The test of `promise` over all batches since the version went live, in order of arrival."""
    return PromiseTest(1.0, 1.0, False, None, 0, 0, float("nan"), 0.0, 1.0)
