"""Choices by out-of-fold AUROC: the cheapest of the best, and whether it replaces the one in use.

An AUROC is estimated on few answers. If they cannot distinguish candidates, the cost decides; and the candidate in use
is replaced only for a gain that exceeds the error of the comparison, otherwise noise would replace it every night.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import numpy as np
import pandas as pd

from abstain.learning.metrics.bootstrap import BootstrapConfig, Estimate, Key, bootstrap, paired_difference
from abstain.learning.metrics.weighted_metrics import auroc, row_weights


def compute_aurocs(
    rows: pd.DataFrame, confidences: Mapping[Key, np.ndarray], resampling: BootstrapConfig
) -> dict[Key, Estimate]:
    """Compute AUROCs on the same resamples of groups.

    Args:
        rows: Rows of the data set.
        confidences: Key -> confidence (rows,).
        resampling: Number of resamples and seed.

    Returns:
        Key -> AUROC.
    """
    correct, weight = rows["correct"].to_numpy(int), row_weights(rows["inclusion_probability"].to_numpy(float))
    statistics = {name: partial(auroc, correct, confidence) for name, confidence in confidences.items()}
    return bootstrap(
        statistics, rows["group"].to_numpy(), n_resamples=resampling.n_resamples, seed=resampling.seed, weight=weight
    )


def choose_cheapest_of_best(
    estimates: Mapping[Key, Estimate], costs: Mapping[Key, float], in_use: Collection[Key] = ()
) -> Key:
    """Choose the cheapest candidate whose AUROC is within one paired standard error of the best.

    Args:
        estimates: Candidate -> AUROC, all from one call of `bootstrap`.
        costs: Candidate -> cost, for example forward tokens per answer. Ties go to the higher AUROC.
        in_use: Candidates in production now. They are kept unless they are worse than the best by more than one
            standard error; of several the cheapest is kept.

    Returns:
        The key of the chosen candidate.
    """
    best = max(estimates, key=lambda key: estimates[key].value)
    losses = {key: paired_difference(estimates[best], estimate) for key, estimate in estimates.items()}
    tied = [key for key, loss in losses.items() if key == best or loss.value <= loss.standard_error]
    # With an unknown error there is no evidence that the gain exceeds it.
    retained = [key for key, loss in losses.items() if key in in_use and not loss.value > loss.standard_error]
    return min(retained or tied, key=lambda key: (costs[key], losses[key].value))
