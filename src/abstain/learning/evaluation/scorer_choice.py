"""Choices by out-of-fold AUROC: the cheapest of the best, and whether it replaces what is in use.

An AUROC is estimated on few answers. Among candidates that these cannot tell apart, the cost decides; and what is in
use is changed only for a gain that exceeds the error of the comparison, or else noise would change it every night.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import numpy as np
import pandas as pd

from abstain.learning.metrics.bootstrap import BootstrapConfig, Estimate, Key, bootstrap, paired_difference
from abstain.learning.metrics.weighted_metrics import auroc, row_weights


def compute_aurocs(
    rows: pd.DataFrame, confidences: Mapping[Key, np.ndarray], resamples: BootstrapConfig
) -> dict[Key, Estimate]:
    """The AUROC on `rows` of the data set of each of `confidences` (rows,), on the same resamples of groups."""
    correct, weight = rows["correct"].to_numpy(int), row_weights(rows["inclusion_probability"].to_numpy(float))
    figures = {name: partial(auroc, correct, confidence) for name, confidence in confidences.items()}
    return bootstrap(figures, rows["group"].to_numpy(), resamples.draws, resamples.seed, weight)


def choose_cheapest_of_best(
    estimates: Mapping[Key, Estimate], costs: Mapping[Key, float], in_use: Collection[Key] = ()
) -> Key:
    """The cheapest of those whose AUROC is within one standard error, paired, of the best; of equal costs the best.

    Where any of those `in_use` is among them, the cheapest of these.
    """
    best = max(estimates, key=lambda key: estimates[key].value)
    lost = {key: paired_difference(estimates[best], estimate) for key, estimate in estimates.items()}
    tied = [key for key, of in lost.items() if key == best or of.value <= of.standard_error]
    # Where the error is not known, nothing shows that the gain exceeds it.
    kept = [key for key, of in lost.items() if key in in_use and not of.value > of.standard_error]
    return min(kept or tied, key=lambda key: (costs[key], lost[key].value))
