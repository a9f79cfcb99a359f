"""The split of each row if rows of different groups are near-duplicates. Pure.

Notes:

* Groups that share near-duplicates are joined if together they have at most `split.max_component` of the rows. Beyond
  that, each group decides for itself. Joined groups have one split: that of their first group.
* A group is assigned with the batch in which it first occurs, from the rows up to that batch, and keeps its split:
  later rows, and the growth of a component, move no group into or out of the hold-out.
* Near-duplicates that arrive later may then be on both sides. This is resolved at the cost of training: in a component
  that is small enough among all present rows, the rows for training and validation with a near-duplicate in the
  hold-out are left out (`excluded`). In larger components they stay, because they could be most of the training rows;
  `has_near_duplicate_in_training` marks the corresponding hold-out rows. It also marks rows for validation with a
  near-duplicate in training, of which none is left out.
* If rows are split by time, no groups are joined: one repeated question would exclude the history of a whole group.
  Near-duplicates of the hold-out are left out in the same way.
* Near-duplicates in the newest split change nothing: it shows what is asked now, including repeated questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from abstain.config.params import SplitParams
from abstain.data.labels.near_duplicates import DUPLICATE_COLUMNS
from abstain.data.store.splits import assign_splits

TRAINING_SPLITS = ("train", "validation")


def split_rows(rows: pd.DataFrame, params: SplitParams) -> pd.DataFrame:
    """Assign every row to a split.

    Args:
        rows: Columns group, batch, asked_at, question_duplicate and answer_duplicate (null without near-duplicates), in
            order of arrival, with the index 0, 1, ...
        params: `split` of params.yaml.

    Returns:
        By row: `split` as in `assign_splits`; `left_out`, excluded as a near-duplicate of a hold-out row; `joined`, in
        a group whose split is that of another group.
    """
    groups = _find_deciding_groups(rows, params.max_component) if params.by == "group" else rows["group"]
    split = assign_splits(groups, rows["asked_at"], params)
    left_out = _find_left_out(rows, split, params.max_component)
    return pd.DataFrame(
        {"split": split.mask(left_out, "excluded"), "left_out": left_out, "joined": groups != rows["group"]}
    )


def has_near_duplicate_in_training(rows: pd.DataFrame) -> pd.Series:
    """Mark rows that have near-duplicates among rows used to fit.

    Args:
        rows: Columns split, question_duplicate and answer_duplicate, with a unique index.

    Returns:
        By row: whether it is a hold-out row with a near-duplicate for training or validation, or a row for validation
        with a near-duplicate for training.
    """
    clusters = _get_clusters(rows)
    split = rows.loc[clusters.index, "split"]

    def has_duplicate(name: str, among: Sequence[str]) -> pd.Series:
        is_duplicated = clusters.isin(clusters[split.isin(among).to_numpy()])
        return (rows["split"] == name) & rows.index.isin(clusters.index[is_duplicated])

    return has_duplicate("holdout", TRAINING_SPLITS) | has_duplicate("validation", ["train"])


def _find_deciding_groups(rows: pd.DataFrame, max_component: float) -> pd.Series:
    """Return the group that decides the split of each row: the first of those that its own group was joined with."""
    codes, names = pd.factorize(rows["group"])
    clusters = _get_clusters(rows)
    memberships = pd.DataFrame({"cluster": clusters.to_numpy(), "group": codes[clusters.index], "row": clusters.index})
    pairs = {
        name: column.to_numpy() for name, column in memberships.drop_duplicates(["cluster", "group"]).items()
    }  # rows ascend
    components, groups_by_cluster = _Components(len(names)), dict[int, list[int]]()
    deciding_groups: list[int] = []
    arrived = 0
    for size in rows.groupby("batch", sort=False).size():
        batch = slice(arrived, arrived + size)
        arrived += size
        components.add_rows(codes[batch])
        new_pairs = slice(*np.searchsorted(pairs["row"], [batch.start, batch.stop]))
        for cluster, group in zip(pairs["cluster"][new_pairs], pairs["group"][new_pairs], strict=True):
            groups_by_cluster.setdefault(cluster, []).append(group)
        for cluster in dict.fromkeys(pairs["cluster"][new_pairs]):
            components.join(groups_by_cluster[cluster], max_component * arrived)
        for group in range(len(deciding_groups), max(len(deciding_groups), int(codes[batch].max()) + 1)):
            first_group = components.get_first_group(group)
            deciding_groups.append(group if first_group == group else deciding_groups[first_group])
    return pd.Series(names[np.array(deciding_groups, int)[codes]], rows.index, dtype="str")


def _find_left_out(rows: pd.DataFrame, split: pd.Series, max_component: float) -> pd.Series:
    """Mark rows for training or validation with a near-duplicate in the hold-out, in a component that is small now."""
    codes, names = pd.factorize(rows["group"])
    clusters = _get_clusters(rows)
    components = _Components(len(names))
    components.add_rows(codes)
    groups_by_cluster = (
        pd.Series(codes[clusters.index], dtype="int64").groupby(clusters.to_numpy(), sort=False).unique()
    )
    small_clusters = [
        cluster
        for cluster, groups in groups_by_cluster.items()
        if components.join(groups.tolist(), max_component * len(rows))
    ]
    holdout_clusters = clusters[(split[clusters.index] == "holdout").to_numpy()]
    duplicates = clusters.index[clusters.isin(holdout_clusters) & clusters.isin(small_clusters)]
    return split.isin(TRAINING_SPLITS) & split.index.isin(duplicates)


def _get_clusters(rows: pd.DataFrame) -> pd.Series:
    """Return the clusters of near-duplicates by row, in the order of `rows`: none, one or two for its two texts."""
    questions, answers = (rows[name].dropna().astype("int64") for name in DUPLICATE_COLUMNS)
    return pd.concat([2 * questions, 2 * answers + 1]).sort_index(kind="stable")


class _Components:
    """Joined groups; a component is identified by its first group. Groups are 0, 1, ... by first occurrence."""

    def __init__(self, n_groups: int) -> None:
        self._next = list(range(n_groups))
        self._rows = [0] * n_groups

    def add_rows(self, groups: np.ndarray) -> None:
        """Count one more row for each of `groups`."""
        for group, rows in zip(*np.unique(groups, return_counts=True), strict=True):
            self._rows[self.get_first_group(int(group))] += int(rows)

    def get_first_group(self, group: int) -> int:
        while self._next[group] != group:
            self._next[group] = group = self._next[self._next[group]]
        return group

    def join(self, groups: Iterable[int], max_rows: float) -> bool:
        """Join all of `groups`, or none if they would have more than `max_rows` rows; return whether they are."""
        first_groups = sorted({self.get_first_group(member) for member in groups})
        rows = sum(self._rows[first_group] for first_group in first_groups)
        if len(first_groups) > 1 and rows > max_rows:
            return False
        for member in first_groups:
            self._next[member] = first_groups[0]
        self._rows[first_groups[0]] = rows
        return True
