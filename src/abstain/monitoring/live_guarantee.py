"""Is the promise of a live version kept? A test of its reviews that may be looked at as often as one likes.

A test by betting (Waudby-Smith and Ramdas 2024): capital starts at 1 and is multiplied, for each document of each
batch, by `1 + bet * excess`. `excess` is the sum of weight x (loss - tolerated loss) over the batch's reviews of the
document: a total (Horvitz and Thompson 1952), not a weighted mean, which is biased where the kinds of answers that are
reviewed rarely are more often wrong. As long as the promise is kept the capital is not expected to grow, so that it
reaches 1 / level at any time with a chance of at most `level` (Ville 1939). The loss of a review is 1 where the answer
is incorrect, else 0; for an error rate it is multiplied by the coverage, as only shown answers are reviewed.

What is tested is the mean over the traffic: documents may differ, and the same ones may recur. Bets are fixed before
the reviews come, and the capital is the mean over `BETS`: at a fixed bet a good and a bad document multiply to less
than two average ones, so that the product over documents errs towards no alarm.

A promise was made about documents at large, and those that are asked about now are a sample of them: it counts as
broken only where the difference is also more than what so many documents vary by, by a t-test of their totals (without
it, one year in ten of 50 documents drawn at a precision of .90 would be called broken).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

BETS = np.geomspace(0.02, 0.6, 10)
"""In units of the largest bet that a typical document, all of it correct, would leave something of."""
MIN_CAPITAL_LEFT = 0.1
"""A document that weighs much more than those before is bet on less: at least this share of the capital is left."""
T_TEST_ALPHA_SHARE = 0.25
"""The t-test's level, as a share of the test's: it is looked at every day, too, though on the same documents."""
GRID_STEP = 0.005
GRID = np.arange(GRID_STEP, 1 - GRID_STEP / 2, GRID_STEP)
"""The mean losses that the confidence sequence tries."""


@dataclass(frozen=True)
class ReviewBatch:
    """Reviews of shown answers that arrived together, as within a day.

    correct: (n,) bool. weight: (n,) float > 0, one over the inclusion probability. document: (n,) ids, compared as
    they are. coverage: the share of all decisions in the time of the batch that were shown, in [0, 1].
    """

    correct: np.ndarray
    weight: np.ndarray
    groups: np.ndarray
    coverage: float = 1.0


@dataclass(frozen=True)
class GuaranteedTarget:
    """Of what is shown at least `target` is correct, or of all answers at most `target` are shown and incorrect."""

    metric: Literal["precision", "error_rate"]
    target: float

    @property
    def tolerated(self) -> float:
        """The mean loss that keeps the promise."""
        return 1 - self.target if self.metric == "precision" else self.target


@dataclass(frozen=True)
class LiveGuaranteeResult:
    """What the reviews say of a promise.

    e_value: the evidence against it after the last batch, 1 for none; peak: the most that it ever was. broken: the
    evidence was enough, first after the batch `broken_at` (None: never). estimate: the inclusion-weighted precision or
    error rate, nan without reviews; low, high: its confidence sequence, an interval that holds however often one looks.
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


@dataclass(frozen=True)
class GroupBatchTotals:
    """Sums over the reviews of one document in one batch, all (cells,), by batch.

    batch: its index. document: from 0 on. loss: the sum of weight x loss. weight: of weights. scale: the mean weight
    of the cells before the batch, what is typical then.
    """

    batch: np.ndarray
    document: np.ndarray
    loss: np.ndarray
    weight: np.ndarray
    scale: np.ndarray
    batches: int

    def excess(self, tolerated: float) -> np.ndarray:
        return np.asarray(self.loss - tolerated * self.weight)


def check_live_guarantee(
    batches: Sequence[ReviewBatch], promise: GuaranteedTarget, alpha: float = 0.05
) -> LiveGuaranteeResult:
    """The test of `promise` over all batches since the version went live, in order of arrival.

    A version is never judged by fewer than two documents. A batch may be empty.
    """
    totals = sum_by_group(batches, promise)
    e_values = np.exp(log_capital(totals, promise.tolerated, +1))
    alarms = find_alarm_batches(batches, promise, alpha)
    estimate, low, high = _estimate_loss(totals, alpha)
    if promise.metric == "precision":
        estimate, low, high = 1 - estimate, 1 - high, 1 - low
    return LiveGuaranteeResult(
        e_value=float(e_values[-1]) if len(e_values) else 1.0,
        peak=float(e_values.max(initial=1.0)),
        broken=len(alarms) > 0,
        broken_at=int(alarms[0]) if len(alarms) else None,
        reviews=sum(len(batch.correct) for batch in batches),
        documents=len(np.unique(totals.document)),
        estimate=estimate,
        low=low,
        high=high,
    )


def find_alarm_batches(batches: Sequence[ReviewBatch], promise: GuaranteedTarget, level: float = 0.05) -> np.ndarray:
    """The indices of the batches after which the evidence is enough, int (alarms,)."""
    totals = sum_by_group(batches, promise)
    enough = log_capital(totals, promise.tolerated, +1) >= -np.log(level)
    return np.flatnonzero(enough & exceeds_group_variation(totals, promise.tolerated, level))


def sum_by_group(batches: Sequence[ReviewBatch], promise: GuaranteedTarget) -> GroupBatchTotals:
    """The sums by batch and document."""
    ids: dict[object, int] = {}
    document = np.array([ids.setdefault(one, len(ids)) for batch in batches for one in batch.groups], int)
    batch = np.repeat(np.arange(len(batches)), [len(one.correct) for one in batches])
    weight = np.concatenate([np.zeros(0), *(np.asarray(one.weight, float) for one in batches)])
    wrong = np.concatenate([np.zeros(0), *(1 - np.asarray(one.correct, float) for one in batches)])
    coverage = np.array([one.coverage if promise.metric == "error_rate" else 1.0 for one in batches])
    cells, cell = np.unique(batch * max(len(ids), 1) + document, return_inverse=True)
    loss = np.bincount(cell, weight * wrong * coverage[batch], len(cells))
    summed = np.bincount(cell, weight, len(cells))
    batch, document = np.divmod(cells, max(len(ids), 1))
    return GroupBatchTotals(batch, document, loss, summed, _scale(batch, summed, len(batches)), len(batches))


def _scale(batch: np.ndarray, weight: np.ndarray, batches: int) -> np.ndarray:
    """The mean of `weight` over the earlier batches' cells; of the first batch itself where there is none earlier."""
    count = np.cumsum(np.bincount(batch, minlength=batches))
    total = np.cumsum(np.bincount(batch, weight, batches))
    before = np.maximum(batch - 1, batch[:1])  # cells are in order: the first one is of the first batch that has any
    return np.asarray(total[before] / count[before])


def log_capital(totals: GroupBatchTotals, tolerated: float, direction: int) -> np.ndarray:
    """The log of the evidence after each batch, (batches,), that the mean loss is above `tolerated` (side 1), or below
    it (side -1)."""
    least = tolerated if direction > 0 else 1 - tolerated
    excess = direction * totals.excess(tolerated) / least
    typical = BETS[:, None] / totals.scale
    bets = np.minimum(typical, (1 - MIN_CAPITAL_LEFT) / totals.weight)
    steps = np.log1p(bets * excess)
    summed = np.zeros((len(BETS), totals.batches + 1))
    np.add.at(summed.T, totals.batch + 1, steps.T)
    log = np.cumsum(summed, axis=1)[:, 1:]
    highest = log.max(axis=0)
    return np.asarray(highest + np.log(np.exp(log - highest).mean(axis=0)))


def exceeds_group_variation(totals: GroupBatchTotals, tolerated: float, level: float) -> np.ndarray:
    """After each batch, (batches,): is the excess of documents so far, a t-test of their sums, above 0 at `level`?"""
    from scipy.special import stdtrit

    excess = totals.excess(tolerated)
    before, new = _running_group_sums(totals.document, excess)
    after = before + excess
    count, total, squares = (
        np.cumsum(np.bincount(totals.batch, step, totals.batches)) for step in (new, excess, after**2 - before**2)
    )
    spread = np.sqrt(np.maximum(squares - total**2 / np.maximum(count, 1), 0) * count / np.maximum(count - 1, 1))
    return np.asarray(
        (count > 1) & (total > stdtrit(np.maximum(count - 1, 1), 1 - T_TEST_ALPHA_SHARE * level) * spread)
    )


def _running_group_sums(document: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum of a document's earlier steps, and whether this is its first; both (cells,)."""
    order = np.argsort(document, kind="stable")
    first = np.diff(document[order], prepend=-1) > 0
    summed = np.cumsum(step[order]) - step[order]
    before = np.empty(len(step))
    before[order] = summed - np.repeat(summed[first], np.diff([*np.flatnonzero(first), len(step)]))
    is_first = np.empty(len(step))
    is_first[order] = first
    return before, is_first


def _estimate_loss(totals: GroupBatchTotals, level: float) -> tuple[float, float, float]:
    """The weighted mean loss, and its confidence sequence after the last batch."""
    if not len(totals.weight):
        return float("nan"), 0.0, 1.0
    estimate = float(totals.loss.sum() / totals.weight.sum())
    enough = np.log(2 / level)
    above, below = (GRID[[log_capital(totals, loss, side)[-1] < enough for loss in GRID]] for side in (+1, -1))
    low, high = above.min(initial=estimate) - GRID_STEP, below.max(initial=estimate) + GRID_STEP
    return estimate, float(max(low, 0.0)), float(min(high, 1.0))
