"""The joined training table: one row a labelled interaction, with its split. Pure.

The hold-out is frozen in its labels too: a verdict given after `split.holdout_frozen_at` does not change it.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from abstain.feedback.labels import label_rows
from abstain.feedback.splits import assign_splits, check_splits
from abstain.feedback.store import Dataset
from abstain.params import LabelParams, SplitParams

SPLITS = ("train", "validation", "holdout", "newest")


def training_table(data: Dataset, labels: LabelParams, split: SplitParams) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table, in the order of the interactions, and its summary for the data card.

    Columns: interaction_id, group, split, correct (0/1), weight, source (sme|thumb), product (or null),
    inclusion_probability (or null). Raises `AbstainError` when a split that is needed lacks right or wrong answers.
    """
    splits = dict(
        zip(
            (row.interaction_id for row in data.interactions),
            assign_splits([(row.split_group, row.asked_at) for row in data.interactions], split),
            strict=True,
        )
    )
    held = [row for row in data.interactions if splits[row.interaction_id] == "holdout"]
    free = [row for row in data.interactions if splits[row.interaction_id] != "holdout"]
    frozen = label_rows(held, data.feedback, data.reviews, labels, split.holdout_frozen_at)
    current = label_rows(free, data.feedback, data.reviews, labels)
    label_of = {label.interaction_id: label for label in (*frozen.labels, *current.labels)}
    rows = [
        {
            "interaction_id": row.interaction_id,
            "group": row.split_group,
            "split": splits[row.interaction_id],
            "correct": int(label_of[row.interaction_id].right),
            "weight": label_of[row.interaction_id].weight,
            "source": label_of[row.interaction_id].source,
            "product": row.product,
            "inclusion_probability": label_of[row.interaction_id].inclusion_probability,
        }
        for row in data.interactions
        if row.interaction_id in label_of
    ]
    frame = pd.DataFrame(rows).astype({"product": "string", "inclusion_probability": "float64"})
    check_splits(list(frame["split"]), [bool(c) for c in frame["correct"]])
    counts = {name: frozen.counts()[name] + current.counts()[name] for name in frozen.counts()}
    return frame, {"labels": counts, "splits": [_card(frame[frame["split"] == name], name) for name in SPLITS]}


def _card(frame: pd.DataFrame, split: str) -> dict[str, Any]:
    return {
        "split": split,
        "answers": len(frame),
        "groups": int(frame["group"].nunique()),
        "right": round(float(frame["correct"].mean()), 3) if len(frame) else None,
        "by experts": int((frame["source"] == "sme").sum()),
    }
