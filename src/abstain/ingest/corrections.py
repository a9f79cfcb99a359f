"""What replaced rows touch: labels and answers of the hold-out."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pandas as pd

from abstain.config.params import Params
from abstain.data.labels.training_table import read_training_table
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import select_reviewed

MAX_NAMED = 20
"""The maximum number of answers that a report names."""


def read_labels(store: DataStore, params: Params) -> pd.DataFrame:
    """Read the label and the split of each labelled answer.

    Args:
        store: The data folder.
        params: All parameters.

    Returns:
        By interaction id: columns of the training table.
    """
    table, _ = read_training_table(store, params.labels, params.split, needs_splits=False)
    return table.set_index("interaction_id")


def describe_touched_labels(
    former: pd.DataFrame, current: pd.DataFrame, interaction_ids: Collection[str], answer_ids: Collection[str]
) -> list[str]:
    """Describe the labels and the hold-out answers that replaced rows touch.

    Args:
        former: The labels before (`read_labels`).
        current: The labels now.
        interaction_ids: Interactions of which a row was replaced.
        answer_ids: Those whose own row was replaced.

    Returns:
        Lines of a report.
    """
    touched = [table.loc[table.index.isin(list(interaction_ids)), "correct"] for table in (former, current)]
    labels = pd.concat(touched, axis=1, keys=["former", "current"]).astype(object)
    changed = labels.index[labels["former"].ne(labels["current"])]
    stayed = labels.index.difference(changed).intersection(pd.Index(list(answer_ids)))
    holdout_ids = {
        str(key)
        for table in (former, current)
        for key in select_reviewed(table[table["split"] == "holdout"]).index.intersection(labels.index)
    }
    return [
        f"labels: {len(changed):,} of {len(labels):,} changed{_list_names(changed)}",
        f"answers that keep a label given for their former content: {len(stayed):,}{_list_names(stayed)}",
        f"answers of the hold-out: {len(holdout_ids):,}{_list_names(holdout_ids)}",
    ]


def _list_names(names: Iterable[str]) -> str:
    ordered = sorted(map(str, names))
    more = f" and {len(ordered) - MAX_NAMED:,} more" if len(ordered) > MAX_NAMED else ""
    return f" ({', '.join(ordered[:MAX_NAMED])}{more})" if ordered else ""
