"""Select answers for review: some at random with known probability, some because they are informative. Pure functions.

The method and its reasons are in docs/decisions/052-review-sampling.md.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.store.splits import hash_to_unit_interval

SelectionReason = Literal["random", "uncertain", "drift"]

STRATA = ("display", "product", "line_of_business", "thumb")
STRATA_LEVELS: tuple[tuple[str, ...], ...] = (
    STRATA,
    ("display", "product", "thumb"),
    ("display", "thumb"),
    ("display",),
    (),
)
"""Stratifications of the rows, from fine to coarse; the first with no more strata than rows to sample is used.

The decision is dropped last: withheld answers, which no user can rate, are seen only by reviewers.
"""


@dataclass(frozen=True)
class ReviewDesign:
    """A sample and its design.

    Attributes:
        rows: By `interaction_id`, ordered so that any first part represents the whole: reason, n_sampled and
            n_population of its stratum (1 and 1 for a row that was taken with certainty), probability, their ratio, and
            reviewed.
        strata: The columns that define the strata.
        n_extra: Rows beyond the requested size, because they, or rows after them, were sampled and reviewed before.
        n_missing: Withheld answers that were requested but do not exist; others are sampled instead.
    """

    rows: pd.DataFrame
    strata: tuple[str, ...]
    n_extra: int
    n_missing: int


def draw_sample(
    frame: pd.DataFrame,
    size: int,
    random_share: float,
    seed: int,
    threshold: float | None = None,
    withheld_share: float = 0.0,
) -> ReviewDesign:
    """Draw a sample for review, which includes the rows that were sampled and reviewed before.

    Args:
        frame: One row for each interaction, by `interaction_id`, with the columns of `ReviewCandidates.frame` and, if
            there is a promoted version, `confidence` and `drift` (larger is less like the training data), nan if
            unknown.
        size: Number of rows.
        random_share: Share of rows that are drawn at random, in (0, 1]; of the others half are the least certain and
            half the most drifted.
        seed: Seed of the permanent random numbers.
        threshold: The promoted version's threshold; None without one, and then every row is drawn at random.
        withheld_share: Smallest share, of the rows drawn at random, of answers that were withheld from users, in [0,
            1]. 0 leaves their number to the size of their strata.

    Returns:
        The sample and its design.

    Raises:
        AbstainError: The size or a share is invalid.
    """
    if size < 1 or not 0 < random_share <= 1 or not 0 <= withheld_share <= 1:
        raise AbstainError(
            Code.USAGE,
            "a sample needs -n of at least 1, a --random-share above 0 and at most 1, and a --withheld-share from 0 to "
            "1: change the one that is not",
        )
    n_certain = size - max(1, round(size * random_share))
    certain = _select_certain(frame, n_certain, threshold)
    n_previously_certain = min(int(_is_previously_certain(frame).sum()), n_certain)
    rest = frame[_is_available(frame) & ~frame.index.isin(certain.index)]
    sampled, strata, n_extra, n_missing = _draw_random(
        rest, size - n_previously_certain - len(certain), withheld_share, seed
    )
    rows = pd.concat([certain, sampled])
    rows["reviewed"] = frame.loc[rows.index, "reviewed"]
    rows["probability"] = rows["n_sampled"] / rows["n_population"]
    numbers = _compute_permanent_numbers(rows.index, seed)
    rank = pd.Series(numbers, rows.index)[certain.index].rank()
    rows.loc[certain.index, "turn"] = (rank - 0.5) / max(len(rank), 1)
    order = np.lexsort((numbers, rows["turn"].to_numpy(float)))
    return ReviewDesign(rows.drop(columns="turn").iloc[order], strata, n_extra, n_missing)


def allocate(total: int, sizes: Sequence[int]) -> list[int]:
    """Allocate rows to strata by equal proportions (the method of Huntington and Hill).

    Each stratum gets at least one row and at most its size.

    Args:
        total: Number of rows; a total above the sum of sizes allocates all rows.
        sizes: (strata,) sizes > 0.

    Returns:
        (strata,) numbers of rows.

    Raises:
        ValueError: `total` is less than one row for each stratum.
    """
    if total < len(sizes):
        raise ValueError(f"{total} rows cannot come from {len(sizes)} strata")
    allocation = [1] * len(sizes)
    queue = [(-size / math.sqrt(2), index) for index, size in enumerate(sizes) if size > 1]
    heapq.heapify(queue)
    for _ in range(min(total, sum(sizes)) - len(sizes)):
        _, index = heapq.heappop(queue)
        allocation[index] += 1
        if allocation[index] < sizes[index]:
            heapq.heappush(queue, (-sizes[index] / math.sqrt(allocation[index] * (allocation[index] + 1)), index))
    return allocation


def _select_certain(frame: pd.DataFrame, size: int, threshold: float | None) -> pd.DataFrame:
    """Select rows to take with certainty, besides earlier ones: half the least confident, half the most drifted."""
    reasons: dict[str, SelectionReason] = {}
    if threshold is not None:
        available = frame[_is_available(frame)]
        size -= int(_is_previously_certain(frame).sum())
        unsure = (available["confidence"] - threshold).abs().dropna().sort_values(kind="stable").index
        drifted = available["drift"].dropna().sort_values(ascending=False, kind="stable").index
        reasons |= dict.fromkeys(unsure[: max(0, math.ceil(size / 2))], "uncertain")
        for key in drifted:
            if len(reasons) >= size:
                break
            reasons.setdefault(key, "drift")
        for key in unsure:
            if len(reasons) >= size:
                break
            reasons.setdefault(key, "uncertain")
    return _make_rows(pd.Index(list(reasons)), list(reasons.values()), 1, 1, 0.0)


def _is_available(frame: pd.DataFrame) -> pd.Series:
    """Return the mask of rows that may be sampled: not reviewed yet, or sampled and reviewed before."""
    return ~frame["reviewed"] | (frame["queued"] & (frame["recorded_probability"] < 1))


def _is_previously_certain(frame: pd.DataFrame) -> pd.Series:
    return frame["queued"] & (frame["recorded_probability"] == 1)


def _is_withheld(frame: pd.DataFrame) -> np.ndarray:
    return (frame["display"] == "withheld").to_numpy(bool)


def _draw_random(
    rest: pd.DataFrame, size: int, withheld_share: float, seed: int
) -> tuple[pd.DataFrame, tuple[str, ...], int, int]:
    """Draw at least `size` rows by permanent random numbers.

    Returns the rows, their stratification, the number of extra rows, and by how many the withheld answers fall short of
    `withheld_share` of `size`, because there are no more.
    """
    if rest.empty or size < 1:
        return _make_rows(pd.Index([]), [], 1, 1, 0.0), STRATA, 0, 0
    withheld = _is_withheld(rest)
    n_requested = round(size * withheld_share)
    # Every other row needs a positive probability as well, so one row is left for each other display.
    min_withheld = max(
        0, min(n_requested, int(withheld.sum()), size - rest.loc[~withheld, "display"].nunique(dropna=False))
    )
    strata, stratum = next(
        (by, codes)
        for by, codes in _iter_stratifications(rest)
        if codes.max() < size and len(np.unique(codes[~withheld])) <= size - min_withheld
    )
    order = np.lexsort((_compute_permanent_numbers(rest.index, seed), stratum))
    stratum, reviewed = stratum[order], rest["reviewed"].to_numpy(bool)[order]
    sizes = np.bincount(stratum)
    position = np.arange(len(rest)) - (np.cumsum(sizes) - sizes)[stratum]
    allocation = _allocate(size, sizes, np.bincount(stratum, withheld[order]) == sizes, min_withheld)
    count = allocation.copy()
    np.maximum.at(count, stratum[reviewed], position[reviewed] + 1)
    chosen = position < count[stratum]
    n_sampled, n_population = count[stratum[chosen]], sizes[stratum[chosen]]
    turn = (position[chosen] + 0.5) / n_sampled
    rows = _make_rows(rest.index[order[chosen]], ["random"] * len(turn), n_sampled, n_population, turn)
    return rows, strata, int((count - allocation).sum()), n_requested - min_withheld


def _allocate(size: int, sizes: np.ndarray, withheld: np.ndarray, min_withheld: int) -> np.ndarray:
    """Allocate by stratum, with at least `min_withheld` rows to the strata of withheld answers.

    If these would get fewer, both sides are allocated separately, in equal proportions, so that a larger total takes no
    row away in this case either.
    """
    allocation = np.array(allocate(size, sizes.tolist()))
    if allocation[withheld].sum() < min_withheld:
        allocation[withheld] = allocate(min_withheld, sizes[withheld].tolist())
        allocation[~withheld] = allocate(size - min_withheld, sizes[~withheld].tolist())
    return allocation


def _iter_stratifications(rows: pd.DataFrame) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    """Yield the possible stratifications of `rows` and the number of each row's stratum, from fine to coarse."""
    for by in STRATA_LEVELS:
        codes = rows.groupby(list(by), observed=True, dropna=False).ngroup() if by else pd.Series(0, rows.index)
        yield by, codes.to_numpy(np.int64)


def _make_rows(
    ids: pd.Index,
    reasons: Sequence[SelectionReason],
    n_sampled: int | np.ndarray,
    n_population: int | np.ndarray,
    turn: float | np.ndarray,
) -> pd.DataFrame:
    reason = pd.array(list(reasons), dtype="object")
    columns = {"reason": reason, "n_sampled": n_sampled, "n_population": n_population, "turn": turn}
    return pd.DataFrame(columns, index=ids.astype("string").rename("interaction_id"))


def _compute_permanent_numbers(ids: pd.Index, seed: int) -> np.ndarray:
    """Return the permanent random number of each row, in [0, 1).

    It is salted, so that it is independent of the row's split.
    """
    return np.array([hash_to_unit_interval(seed, f"review queue/{key}") for key in ids], dtype=float)
