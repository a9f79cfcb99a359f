"""Test whether the guarantee of a live version holds. The test may be repeated at any time.

This is a test by betting (Waudby-Smith and Ramdas 2024). The capital starts at 1 and is multiplied, for each group of
each batch, by `1 + bet * excess`. `excess` is the sum of weight x (loss - tolerated loss) over the batch's reviews of
the group. It is a total (Horvitz and Thompson 1952), not a weighted mean, which is biased if rarely reviewed kinds of
answers are more often wrong. As long as the guarantee holds, the capital is not expected to grow, so the probability
that it ever reaches 1 / alpha is at most alpha (Ville 1939). The loss of a review is 1 if the answer is incorrect, else
0. For an error rate it is multiplied by the coverage, because only shown answers are reviewed.

The tested quantity is the mean over the traffic: groups may differ, and the same ones may recur. Bets are fixed before
the reviews arrive, and the capital is the mean over `BETS`. At a fixed bet, a good and a bad group multiply to less
than two average ones, so the product over groups errs towards no alarm.

The guarantee is about groups in general, and the current groups are a sample of them. It counts as violated only if the
difference also exceeds the variation between groups, by a t-test of their totals. Without this test, one year in ten of
50 groups drawn at a precision of .90 would be called violated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

BETS = np.geomspace(0.02, 0.6, 10)
"""In units of the largest bet that leaves some capital after a typical group whose answers are all correct."""
MIN_CAPITAL_LEFT = 0.1
"""Bets on a group with much more weight than earlier ones are smaller: at least this share of the capital is left."""
T_TEST_ALPHA_SHARE = 0.25
"""Alpha of the t-test as a share of the test's alpha, because it is repeated every day, though on the same groups."""
GRID_STEP = 0.005
GRID = np.arange(GRID_STEP, 1 - GRID_STEP / 2, GRID_STEP)
"""Mean losses that the confidence sequence tests."""


@dataclass(frozen=True)
class ReviewBatch:
    """Reviews of shown answers that arrived together, such as within a day.

    Attributes:
        correct: (n,) bool.
        weight: (n,) float > 0, one over the inclusion probability.
        groups: (n,) group ids, compared as they are.
        coverage: Share of all decisions in the time of the batch that were shown, in [0, 1].
    """

    correct: np.ndarray
    weight: np.ndarray
    groups: np.ndarray
    coverage: float = 1.0


@dataclass(frozen=True)
class GuaranteedTarget:
    """The guaranteed metric and target.

    Attributes:
        metric: "precision" (at least `target` of the shown answers are correct) or "error_rate" (at most `target` of
            all answers are shown and incorrect).
        target: The target.
    """

    metric: Literal["precision", "error_rate"]
    target: float

    @property
    def tolerated_loss(self) -> float:
        """The largest mean loss for which the guarantee holds."""
        return 1 - self.target if self.metric == "precision" else self.target


@dataclass(frozen=True)
class LiveGuaranteeResult:
    """The result of the test of a guarantee.

    Attributes:
        e_value: Evidence against the guarantee after the last batch; 1 means none.
        max_e_value: Largest evidence so far.
        is_violated: Whether the evidence was ever sufficient.
        violated_batch: Index of the batch after which it first was; None if never.
        reviews: Number of reviews.
        documents: Number of groups.
        estimate: Inclusion-weighted precision or error rate; nan without reviews.
        low: Lower bound of its confidence sequence, an interval that holds however often it is computed.
        high: Upper bound.
    """

    e_value: float
    max_e_value: float
    is_violated: bool
    violated_batch: int | None
    reviews: int
    documents: int
    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class GroupBatchTotals:
    """Sums over the reviews of one group in one batch (a cell), sorted by batch.

    Attributes:
        batch: (cells,) index of the batch.
        group: (cells,) index of the group, from 0.
        loss: (cells,) sum of weight x loss.
        weight: (cells,) sum of weights.
        scale: (cells,) mean weight of the cells before the batch, which is typical at that time.
        batches: Number of batches.
    """

    batch: np.ndarray
    group: np.ndarray
    loss: np.ndarray
    weight: np.ndarray
    scale: np.ndarray
    batches: int

    def compute_excess(self, tolerated: float) -> np.ndarray:
        """Compute the excess loss of each cell, loss - tolerated x weight.

        Args:
            tolerated: Tolerated mean loss.

        Returns:
            (cells,).
        """
        return np.asarray(self.loss - tolerated * self.weight)


def check_live_guarantee(
    batches: Sequence[ReviewBatch], target: GuaranteedTarget, alpha: float = 0.05
) -> LiveGuaranteeResult:
    """Test whether a live version still meets its guaranteed target (anytime-valid test by betting).

    The test may be repeated every day: if the guarantee holds, the probability of ever raising an alarm is at most
    `alpha`.

    Args:
        batches: Reviews since the version went live, in order of arrival. A batch may be empty.
        target: Guaranteed metric and target.
        alpha: Error level.

    Returns:
        e-value, estimate with its confidence sequence, and the batch after which the guarantee was found violated. A
        violation needs at least two groups.
    """
    totals = sum_by_group(batches, target)
    e_values = np.exp(compute_log_capital(totals, target.tolerated_loss, +1))
    alarms = find_alarm_batches(batches, target, alpha)
    estimate, low, high = _estimate_loss(totals, alpha)
    if target.metric == "precision":
        estimate, low, high = 1 - estimate, 1 - high, 1 - low
    return LiveGuaranteeResult(
        e_value=float(e_values[-1]) if len(e_values) else 1.0,
        max_e_value=float(e_values.max(initial=1.0)),
        is_violated=len(alarms) > 0,
        violated_batch=int(alarms[0]) if len(alarms) else None,
        reviews=sum(len(batch.correct) for batch in batches),
        documents=len(np.unique(totals.group)),
        estimate=estimate,
        low=low,
        high=high,
    )


def find_alarm_batches(batches: Sequence[ReviewBatch], target: GuaranteedTarget, alpha: float = 0.05) -> np.ndarray:
    """Find the batches after which the evidence against the guarantee is sufficient.

    Args:
        batches: Reviews since the version went live, in order of arrival.
        target: Guaranteed metric and target.
        alpha: Error level.

    Returns:
        (alarms,) int indices of batches.
    """
    totals = sum_by_group(batches, target)
    enough = compute_log_capital(totals, target.tolerated_loss, +1) >= -np.log(alpha)
    return np.flatnonzero(enough & exceeds_group_variation(totals, target.tolerated_loss, alpha))


def sum_by_group(batches: Sequence[ReviewBatch], target: GuaranteedTarget) -> GroupBatchTotals:
    """Sum reviews by batch and group.

    Args:
        batches: Reviews in order of arrival.
        target: Guaranteed metric and target.

    Returns:
        The sums.
    """
    ids: dict[object, int] = {}
    group_index = np.array(
        [ids.setdefault(group, len(ids)) for review_batch in batches for group in review_batch.groups], int
    )
    batch_index = np.repeat(np.arange(len(batches)), [len(review_batch.correct) for review_batch in batches])
    weight = np.concatenate([np.zeros(0), *(np.asarray(review_batch.weight, float) for review_batch in batches)])
    is_incorrect = np.concatenate(
        [np.zeros(0), *(1 - np.asarray(review_batch.correct, float) for review_batch in batches)]
    )
    coverage = np.array([review_batch.coverage if target.metric == "error_rate" else 1.0 for review_batch in batches])
    cells, cell = np.unique(batch_index * max(len(ids), 1) + group_index, return_inverse=True)
    loss = np.bincount(cell, weight * is_incorrect * coverage[batch_index], len(cells))
    weight_sums = np.bincount(cell, weight, len(cells))
    batch_index, group_index = np.divmod(cells, max(len(ids), 1))
    return GroupBatchTotals(
        batch_index,
        group_index,
        loss,
        weight_sums,
        _compute_scale(batch_index, weight_sums, len(batches)),
        len(batches),
    )


def _compute_scale(batch: np.ndarray, weight: np.ndarray, batches: int) -> np.ndarray:
    """Compute the mean of `weight` over the cells of earlier batches; for the first batch, over its own cells."""
    count = np.cumsum(np.bincount(batch, minlength=batches))
    total = np.cumsum(np.bincount(batch, weight, batches))
    earlier_batch = np.maximum(batch - 1, batch[:1])  # cells are sorted: the first one is in the first non-empty batch
    return np.asarray(total[earlier_batch] / count[earlier_batch])


def compute_log_capital(totals: GroupBatchTotals, tolerated: float, direction: int) -> np.ndarray:
    """Compute the log of the evidence that the mean loss is above, or below, the tolerated loss.

    Args:
        totals: Sums by batch and group.
        tolerated: Tolerated mean loss.
        direction: 1 to test for a higher loss, -1 for a lower one.

    Returns:
        (batches,) log capital after each batch.
    """
    unit = tolerated if direction > 0 else 1 - tolerated
    excess = direction * totals.compute_excess(tolerated) / unit
    typical_bets = BETS[:, None] / totals.scale
    bets = np.minimum(typical_bets, (1 - MIN_CAPITAL_LEFT) / totals.weight)
    steps = np.log1p(bets * excess)
    summed = np.zeros((len(BETS), totals.batches + 1))
    np.add.at(summed.T, totals.batch + 1, steps.T)
    log = np.cumsum(summed, axis=1)[:, 1:]
    highest = log.max(axis=0)
    return np.asarray(highest + np.log(np.exp(log - highest).mean(axis=0)))


def exceeds_group_variation(totals: GroupBatchTotals, tolerated: float, alpha: float) -> np.ndarray:
    """Test after each batch whether the excess exceeds the variation between groups (one-sided t-test of group sums).

    Args:
        totals: Sums by batch and group.
        tolerated: Tolerated mean loss.
        alpha: Error level of the whole test; the t-test uses `T_TEST_ALPHA_SHARE` of it.

    Returns:
        (batches,) bool.
    """
    from scipy.special import stdtrit

    excess = totals.compute_excess(tolerated)
    earlier_sums, is_first = _running_group_sums(totals.group, excess)
    sums = earlier_sums + excess
    count, total, squares = (
        np.cumsum(np.bincount(totals.batch, step, totals.batches))
        for step in (is_first, excess, sums**2 - earlier_sums**2)
    )
    spread = np.sqrt(np.maximum(squares - total**2 / np.maximum(count, 1), 0) * count / np.maximum(count - 1, 1))
    return np.asarray(
        (count > 1) & (total > stdtrit(np.maximum(count - 1, 1), 1 - T_TEST_ALPHA_SHARE * alpha) * spread)
    )


def _running_group_sums(group: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of each group's earlier steps, and whether a step is its first; both (cells,)."""
    order = np.argsort(group, kind="stable")
    first = np.diff(group[order], prepend=-1) > 0
    summed = np.cumsum(step[order]) - step[order]
    earlier_sums = np.empty(len(step))
    earlier_sums[order] = summed - np.repeat(summed[first], np.diff([*np.flatnonzero(first), len(step)]))
    is_first = np.empty(len(step))
    is_first[order] = first
    return earlier_sums, is_first


def _estimate_loss(totals: GroupBatchTotals, alpha: float) -> tuple[float, float, float]:
    """Estimate the weighted mean loss and its confidence sequence after the last batch."""
    if not len(totals.weight):
        return float("nan"), 0.0, 1.0
    estimate = float(totals.loss.sum() / totals.weight.sum())
    enough = np.log(2 / alpha)
    above, below = (GRID[[compute_log_capital(totals, loss, side)[-1] < enough for loss in GRID]] for side in (+1, -1))
    low, high = above.min(initial=estimate) - GRID_STEP, below.max(initial=estimate) + GRID_STEP
    return estimate, float(max(low, 0.0)), float(min(high, 1.0))
