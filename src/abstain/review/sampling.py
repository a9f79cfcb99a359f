"""Select answers for review: part at random with known probability, part the most informative ones. Pure.

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

STRATA = ("decision", "product", "line_of_business", "thumb")
STRATA_LEVELS: tuple[tuple[str, ...], ...] = (
    STRATA,
    ("decision", "product", "thumb"),
    ("decision", "thumb"),
    ("decision",),
    (),
)
"""Stratifications of the rows, from fine to coarse; the first with no more strata than rows to sample is used. The
decision goes last: withheld answers, which no user can rate, are seen by reviewers alone."""


@dataclass(frozen=True)
class ReviewDesign:
    """A sample and its design.

    `rows`, by `interaction_id`, ordered so that any first part is representative of the whole: why, drawn (n) and of
    (N) of its stratum (1 and 1 for a row taken with certainty), reviewed, and probability = n / N. `overflow` rows were
    added to the requested size, because they, or rows behind them, were sampled and reviewed before. `short` is how
    many more withheld answers were asked for than can be drawn; others are drawn instead.
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
    """A sample of `size` rows of `frame`, those included that were sampled and reviewed before.

    Args:
        frame: one row an interaction, by `interaction_id`, with the columns of `ReviewCandidates.frame` and, where
            there is a promoted version, `confidence` and `drift` (larger: less like the training data), nan where not
            known.
        random_share: of the size, in (0, 1]; the other rows are half the least sure and half the most drifted.
        threshold: the promoted version's; None without one, and then every row is drawn at random.
        withheld_share: of the rows drawn at random, in [0, 1]; at least so many are answers that were withheld from
            users. 0 leaves their number to the size of their strata.

    Raises `AbstainError` for an invalid size or share.
    """
    if size < 1 or not 0 < random_share <= 1 or not 0 <= withheld_share <= 1:
        raise AbstainError(
            Code.USAGE,
            "a sample needs -n of at least 1, a --random-share above 0 and at most 1, and a --withheld-share from 0 to "
            "1: change the one that is not",
        )
    certainly = size - max(1, round(size * random_share))
    certain = _select_certain(frame, certainly, threshold)
    counted = min(int(_were_certain(frame).sum()), certainly)
    rest = frame[_is_available(frame) & ~frame.index.isin(certain.index)]
    drawn, strata, overflow, short = _draw(rest, size - counted - len(certain), withheld_share, seed)
    rows = pd.concat([certain, drawn])
    rows["reviewed"] = frame.loc[rows.index, "reviewed"]
    rows["probability"] = rows["drawn"] / rows["of"]
    u = _permanent(rows.index, seed)
    rank = pd.Series(u, rows.index)[certain.index].rank()
    rows.loc[certain.index, "turn"] = (rank - 0.5) / max(len(rank), 1)
    order = np.lexsort((u, rows["turn"].to_numpy(float)))
    return ReviewDesign(rows.drop(columns="turn").iloc[order], strata, overflow, short)


def allocate(total: int, sizes: Sequence[int]) -> list[int]:
    """The allocation of `total` rows to strata of `sizes` (all positive), by equal proportions.

    At least one each, never more than there are, and all rows where `total` is as large. ValueError where `total` is
    less than one each.
    """
    if total < len(sizes):
        raise ValueError(f"{total} rows cannot come from {len(sizes)} strata")
    given = [1] * len(sizes)
    queue = [(-size / math.sqrt(2), at) for at, size in enumerate(sizes) if size > 1]
    heapq.heapify(queue)
    for _ in range(min(total, sum(sizes)) - len(sizes)):
        _, at = heapq.heappop(queue)
        given[at] += 1
        if given[at] < sizes[at]:
            heapq.heappush(queue, (-sizes[at] / math.sqrt(given[at] * (given[at] + 1)), at))
    return given


def _select_certain(frame: pd.DataFrame, size: int, threshold: float | None) -> pd.DataFrame:
    """Rows to take with certainty, besides earlier ones: half the least confident, half the most drifted."""
    taken: dict[str, SelectionReason] = {}
    if threshold is not None:
        free = frame[_is_available(frame)]
        size -= int(_were_certain(frame).sum())
        unsure = (free["confidence"] - threshold).abs().dropna().sort_values(kind="stable").index
        drifted = free["drift"].dropna().sort_values(ascending=False, kind="stable").index
        taken |= dict.fromkeys(unsure[: max(0, math.ceil(size / 2))], "uncertain")
        for key in drifted:
            if len(taken) >= size:
                break
            taken.setdefault(key, "drift")
        for key in unsure:
            if len(taken) >= size:
                break
            taken.setdefault(key, "uncertain")
    return _rows(pd.Index(list(taken)), list(taken.values()), 1, 1, 0.0)


def _is_available(frame: pd.DataFrame) -> pd.Series:
    """Rows that may be sampled: not reviewed yet, or sampled and reviewed before."""
    return ~frame["reviewed"] | (frame["queued"] & (frame["recorded_probability"] < 1))


def _were_certain(frame: pd.DataFrame) -> pd.Series:
    return frame["queued"] & (frame["recorded_probability"] == 1)


def _is_withheld(frame: pd.DataFrame) -> np.ndarray:
    return (frame["decision"] == "withheld").to_numpy(bool)


def _draw(
    rest: pd.DataFrame, size: int, withheld_share: float, seed: int
) -> tuple[pd.DataFrame, tuple[str, ...], int, int]:
    """At least `size` rows of `rest` by permanent random numbers; their stratification; the number of extra rows; and
    how many fewer are withheld answers than `withheld_share` of `size`, because there are no more."""
    if rest.empty or size < 1:
        return _rows(pd.Index([]), [], 1, 1, 0.0), STRATA, 0, 0
    withheld = _is_withheld(rest)
    asked = round(size * withheld_share)
    # Every other row needs a chance, too, so one row is left for each other decision.
    least = max(0, min(asked, int(withheld.sum()), size - rest.loc[~withheld, "decision"].nunique(dropna=False)))
    strata, stratum = next(
        (by, codes)
        for by, codes in _stratified(rest)
        if codes.max() < size and len(np.unique(codes[~withheld])) <= size - least
    )
    order = np.lexsort((_permanent(rest.index, seed), stratum))
    stratum, reviewed = stratum[order], rest["reviewed"].to_numpy(bool)[order]
    sizes = np.bincount(stratum)
    place = np.arange(len(rest)) - (np.cumsum(sizes) - sizes)[stratum]
    given = _allocate(size, sizes, np.bincount(stratum, withheld[order]) == sizes, least)
    count = given.copy()
    np.maximum.at(count, stratum[reviewed], place[reviewed] + 1)
    chosen = place < count[stratum]
    drawn, of = count[stratum[chosen]], sizes[stratum[chosen]]
    turn = (place[chosen] + 0.5) / drawn
    rows = _rows(rest.index[order[chosen]], ["random"] * len(turn), drawn, of, turn)
    return rows, strata, int((count - given).sum()), asked - least


def _allocate(size: int, sizes: np.ndarray, withheld: np.ndarray, least: int) -> np.ndarray:
    """`allocate`, by stratum, with at least `least` rows to those of `withheld` answers.

    Both sides are allocated by themselves then, in equal proportions, so that a larger total takes no row away here
    either.
    """
    given = np.array(allocate(size, sizes.tolist()))
    if given[withheld].sum() < least:
        given[withheld] = allocate(least, sizes[withheld].tolist())
        given[~withheld] = allocate(size - least, sizes[~withheld].tolist())
    return given


def _stratified(rows: pd.DataFrame) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    """The possible stratifications of `rows`, and the number of each row's stratum: from fine to coarse."""
    for by in STRATA_LEVELS:
        codes = rows.groupby(list(by), observed=True, dropna=False).ngroup() if by else pd.Series(0, rows.index)
        yield by, codes.to_numpy(np.int64)


def _rows(
    ids: pd.Index,
    why: Sequence[SelectionReason],
    drawn: int | np.ndarray,
    of: int | np.ndarray,
    turn: float | np.ndarray,
) -> pd.DataFrame:
    columns = {"why": pd.array(list(why), dtype="object"), "drawn": drawn, "of": of, "turn": turn}
    return pd.DataFrame(columns, index=ids.astype("string").rename("interaction_id"))


def _permanent(ids: pd.Index, seed: int) -> np.ndarray:
    """The permanent random number of a row, in [0, 1): salted, so that it is independent of the row's split."""
    return np.array([hash_to_unit_interval(seed, f"review queue/{key}") for key in ids], dtype=float)
