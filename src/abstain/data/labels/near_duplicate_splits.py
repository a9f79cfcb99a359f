"""The split of each row where rows of different groups are near-duplicates (twins). Pure.

Notes:

* Groups that share twins are joined while together they have at most `split.max_component` of the rows; beyond that
  the group alone decides. Joined groups have one split: that of their first group.
* A group gets its place with the batch in which it first occurs, from the rows up to that batch, and keeps it: later
  rows, and the growth of a component, move no group into or out of the hold-out.
* What later twins then have on both sides is resolved at the cost of training: in a component that is small enough
  among the rows there are now, the rows for training and validation with a twin in the hold-out are left out
  (`excluded`). In larger ones they stay, because they could be most of the training rows;
  `has_near_duplicate_in_training` marks the hold-out rows that they are twins of. It marks rows for validation with a
  twin in training, too: none is left out.
* By time, no groups are joined: one repeated question would exclude the history of a whole group. Twins of the
  hold-out are left out in the same way.
* Twins in the newest window change nothing: it shows what is asked now, repeated questions included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from abstain.config.params import SplitParams
from abstain.data.labels.near_duplicates import TWINS
from abstain.data.store.splits import assign_splits

TRAINED_ON = ("train", "validation")


def split_rows(rows: pd.DataFrame, params: SplitParams) -> pd.DataFrame:
    """Assign every row to a split.

    Args:
        rows: group, batch, asked_at, question_twin and answer_twin (null: no twin), in the order of arrival and with
            the index 0, 1, ...

    Returns, by row, `split` as of `assign_splits`; `left_out`: excluded as a twin of a hold-out row; `joined`: in a
    group whose split is that of another group.
    """
    groups = _first_groups(rows, params.max_component) if params.by == "group" else rows["group"]
    split = assign_splits(groups, rows["asked_at"], params)
    left_out = _must_be_left_out(rows, split, params.max_component)
    return pd.DataFrame(
        {"split": split.mask(left_out, "excluded"), "left_out": left_out, "joined": groups != rows["group"]}
    )


def has_near_duplicate_in_training(rows: pd.DataFrame) -> pd.Series:
    """Whether a row of the hold-out has a twin among the rows for training and validation, or one for validation among
    those for training.

    Args:
        rows: split, question_twin and answer_twin, with a unique index.
    """
    clusters = _clusters(rows)
    split = rows.loc[clusters.index, "split"]

    def have_twin(name: str, among: Sequence[str]) -> pd.Series:
        twins = clusters.isin(clusters[split.isin(among).to_numpy()])
        return (rows["split"] == name) & rows.index.isin(clusters.index[twins])

    return have_twin("holdout", TRAINED_ON) | have_twin("validation", ["train"])


def _first_groups(rows: pd.DataFrame, max_component: float) -> pd.Series:
    """The group that decides the split of each row: the first of those that its own group was joined with."""
    codes, names = pd.factorize(rows["group"])
    clusters = _clusters(rows)
    found = pd.DataFrame({"cluster": clusters.to_numpy(), "group": codes[clusters.index], "row": clusters.index})
    pairs = {name: of.to_numpy() for name, of in found.drop_duplicates(["cluster", "group"]).items()}  # rows ascend
    components, groups_of = _Components(len(names)), dict[int, list[int]]()
    decides: list[int] = []
    arrived = 0
    for size in rows.groupby("batch", sort=False).size():
        batch = slice(arrived, arrived + size)
        arrived += size
        components.grow(codes[batch])
        new = slice(*np.searchsorted(pairs["row"], [batch.start, batch.stop]))
        for cluster, group in zip(pairs["cluster"][new], pairs["group"][new], strict=True):
            groups_of.setdefault(cluster, []).append(group)
        for cluster in dict.fromkeys(pairs["cluster"][new]):
            components.join(groups_of[cluster], max_component * arrived)
        for group in range(len(decides), max(len(decides), int(codes[batch].max()) + 1)):
            first = components.first(group)
            decides.append(group if first == group else decides[first])
    return pd.Series(names[np.array(decides, int)[codes]], rows.index, dtype="str")


def _must_be_left_out(rows: pd.DataFrame, split: pd.Series, max_component: float) -> pd.Series:
    """Whether a row for training or validation has a twin in the hold-out, in a component that is small enough now."""
    codes, names = pd.factorize(rows["group"])
    clusters = _clusters(rows)
    components = _Components(len(names))
    components.grow(codes)
    groups_of = pd.Series(codes[clusters.index], dtype="int64").groupby(clusters.to_numpy(), sort=False).unique()
    small = [key for key, groups in groups_of.items() if components.join(groups.tolist(), max_component * len(rows))]
    held = clusters[(split[clusters.index] == "holdout").to_numpy()]
    twins = clusters.index[clusters.isin(held) & clusters.isin(small)]
    return split.isin(TRAINED_ON) & split.index.isin(twins)


def _clusters(rows: pd.DataFrame) -> pd.Series:
    """The clusters of twins that each row is in, for no, one or two of its texts, by row in the order of `rows`."""
    questions, answers = (rows[name].dropna().astype("int64") for name in TWINS)
    return pd.concat([2 * questions, 2 * answers + 1]).sort_index(kind="stable")


class _Components:
    """Groups (0, 1, ... by first occurrence) that are joined, each component known by its first group."""

    def __init__(self, groups: int) -> None:
        self._next = list(range(groups))
        self._rows = [0] * groups

    def grow(self, groups: np.ndarray) -> None:
        """Count one more row for each of `groups`."""
        for group, rows in zip(*np.unique(groups, return_counts=True), strict=True):
            self._rows[self.first(int(group))] += int(rows)

    def first(self, group: int) -> int:
        while self._next[group] != group:
            self._next[group] = group = self._next[self._next[group]]
        return group

    def join(self, groups: Iterable[int], most: float) -> bool:
        """Join all of `groups`, or none if they would have more than `most` rows; whether they are joined."""
        firsts = sorted({self.first(group) for group in groups})
        rows = sum(self._rows[first] for first in firsts)
        if len(firsts) > 1 and rows > most:
            return False
        for first in firsts:
            self._next[first] = firsts[0]
        self._rows[firsts[0]] = rows
        return True
