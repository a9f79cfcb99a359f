"""Rows as the tables that labels and splits are made from."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from abstain.config.params import LabelParams, SplitParams
from abstain.core.contracts import Interaction, Review, Thumb
from abstain.core.text import is_refusal
from abstain.data.labels.near_duplicates import find_near_duplicates

FROZEN = datetime(2026, 10, 15, tzinfo=UTC)
LABELS = LabelParams(
    correct_if=("correct", "truthful", "complete"),
    conflicts="latest",
    thumb_weight=0.4,
    max_thumb_weight=0.6,
    thumb_model="agreement",
    min_agreement=30,
    user_shrinkage=20,
    max_user_share=0.05,
    refusals=("[Unanswerable", "I don't know"),
)
BY_GROUP = SplitParams(
    by="group", seed=11, validation=0.25, holdout=0.25, holdout_from=None, holdout_frozen_at=FROZEN, max_component=0.05
)
OPENS = datetime(2026, 9, 15, tzinfo=UTC)
BY_TIME = BY_GROUP.model_copy(update={"by": "time", "holdout_from": OPENS})

INTERACTION = ("interaction_id", "asked_at", "group", "product", "line_of_business", "display", "propensity", "batch")
FEEDBACK = ("interaction_id", "given_at", "thumb", "user")
REVIEW = ("interaction_id", "reviewed_at", "reviewer", "complete", "correct", "truthful", "inclusion_probability")


def interactions(rows: Sequence[Interaction], batch: str = "000001") -> pd.DataFrame:
    own = ({**row.model_dump(), "display": row.display, "propensity": row.propensity} for row in rows)  # also if absent
    fields = (one | {"group": row.split_group, "batch": batch} for one, row in zip(own, rows, strict=True))
    frame = _frame(fields, INTERACTION).astype({"propensity": "float64"})
    frame["refusal"] = [is_refusal(row.answer, LABELS.refusals) for row in rows]
    return frame.join(find_near_duplicates([rows]), on="interaction_id")


def thumbs(rows: Iterable[Thumb]) -> pd.DataFrame:
    return _frame((row.model_dump() for row in rows), FEEDBACK)


def reviews(rows: Iterable[Review], batch: str = "000001") -> pd.DataFrame:
    frame = _frame((row.model_dump() for row in rows), REVIEW).astype({"inclusion_probability": "float64"})
    return frame.assign(batch=batch)


def votes(*rows: tuple[int, int, bool]) -> pd.DataFrame:
    """(row, user, up) each."""
    return pd.DataFrame(rows, columns=["row", "user", "up"]).astype({"row": "int64", "user": "int64", "up": "bool"})


def _frame(rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame([[row[name] for name in columns] for row in rows], columns=list(columns))
