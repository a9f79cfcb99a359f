"""Splits: the rows for training, validation and hold-out, by group or by time (`split.by`). Pure.

Notes:

* A group never straddles training and evaluation. By group, a hash of (seed, group) assigns the split, which never
  changes as data grows; in the hold-out's groups the questions from `holdout_from` on are the hold-out, and earlier
  ones are `excluded`. By time, the hold-out consists of the questions asked in [`holdout_from`, `holdout_frozen_at`),
  and earlier rows of a group with questions then or later are `excluded`: used neither for training nor for evaluation.
* The hold-out is frozen by date, with the same rows for every candidate. Questions from `holdout_frozen_at` on are the
  `newest` split, which shows drift (by group: only in the hold-out's groups). Neither is trained on. The date is null
  until the first promotion with a guarantee, which writes it; until then no question is too new for the hold-out.
* Too little data is an error here, with its remedy, rather than a meaningless metric later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, TypeVar

import numpy as np
import pandas as pd

from abstain.config.params import SplitParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError

Row = TypeVar("Row")
Split = Literal["train", "validation", "holdout", "newest", "excluded"]

REQUIRED_SPLITS: tuple[Split, ...] = ("train", "validation", "holdout")
MIN_SAMPLED = 100
"""If fewer reviews were sampled with known probabilities, self-selected reviews count as well."""


def hash_to_unit_interval(seed: int, group: str) -> float:
    """Hash the name of a group to a number in [0, 1), which depends only on it and `seed`: 53 bits of a SHA-256."""
    digest = hashlib.sha256(f"{seed}:{group}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def assign_splits(groups: pd.Series, asked_at: pd.Series, params: SplitParams) -> pd.Series:
    """Assign a split to each row.

    Args:
        groups: Group of each row, by name.
        asked_at: Timestamps in UTC, aligned with `groups`.
        params: `split` of params.yaml.

    Returns:
        Name of the split, with the index of `groups`.
    """
    codes, names = pd.factorize(groups)
    position = np.array([hash_to_unit_interval(params.seed, name) for name in names], float)
    frozen = is_asked_since(asked_at, params.holdout_frozen_at)
    if params.by == "group":
        is_holdout, is_validation = position < params.holdout, position < params.holdout + params.validation
        is_late = (
            np.ones(len(codes), bool) if params.holdout_from is None else is_asked_since(asked_at, params.holdout_from)
        )
        holdout_split = np.where(frozen, "newest", np.where(is_late, "holdout", "excluded"))
        split = np.where(is_holdout[codes], holdout_split, _choose_train_or_validation(is_validation[codes]))
    else:
        is_late = (asked_at >= params.holdout_from).to_numpy(bool)
        is_holdout = np.zeros(len(names), bool)
        is_holdout[codes[is_late]] = True
        early_split = np.where(
            is_holdout[codes], "excluded", _choose_train_or_validation((position < params.validation)[codes])
        )
        split = np.where(is_late, np.where(frozen, "newest", "holdout"), early_split)
    return pd.Series(split, index=groups.index, dtype="str")


def is_asked_since(asked_at: pd.Series, since: datetime | None) -> np.ndarray:
    """Mark the rows (bool) that are not before `since`, such as the freezing of the hold-out; None marks no row."""
    return np.zeros(len(asked_at), bool) if since is None else (asked_at >= since).to_numpy(bool)


def check_splits(table: pd.DataFrame, by: str) -> None:
    """Check that each required split has correct and incorrect answers.

    Args:
        table: Columns split and correct of the labelled rows.
        by: `split.by` of params.yaml, for the remedy.

    Raises:
        AbstainError: A split lacks one kind; the message names split and remedy.
    """
    counts = table[["split", "correct"]].value_counts().to_dict()
    for split in REQUIRED_SPLITS:
        correct_count, incorrect_count = counts.get((split, 1), 0), counts.get((split, 0), 0)
        if not correct_count + incorrect_count:
            raise AbstainError(
                Code.TOO_FEW_LABELS, f"no labelled rows in the split '{split}': {_suggest_remedy(split, by)}"
            )
        if not correct_count or not incorrect_count:
            only, absent = ("correct", "incorrect") if correct_count else ("incorrect", "correct")
            raise AbstainError(
                Code.TOO_FEW_LABELS,
                f"only {only} answers in the split '{split}' ({correct_count + incorrect_count} rows): "
                f"ingest feedback on {absent} ones, or review more rows of other groups",
            )


def compute_holdout_digest(ids: Sequence[str], labels: Sequence[bool]) -> str:
    """Compute a SHA-256 (hex) over the hold-out's interaction ids and labels, independent of their order."""
    pairs = sorted((key, bool(label)) for key, label in zip(ids, labels, strict=True))
    return hashlib.sha256(json.dumps(pairs, ensure_ascii=False).encode()).hexdigest()


def _choose_train_or_validation(is_validation: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(is_validation, "validation", "train"))


def _suggest_remedy(split: Split, by: str) -> str:
    # pragma: no mutate block, its words are no decision
    if by == "group":
        fraction = "" if split == "train" else f", or raise split.{split} in params.yaml"
        frozen = ", or move split.holdout_frozen_at" if split == "holdout" else ""
        return f"ingest feedback on more groups{fraction}{frozen}"
    if split == "holdout":
        return "ingest feedback on questions asked from split.holdout_from to split.holdout_frozen_at, or move these"
    fraction = ", raise split.validation" if split == "validation" else ""
    return f"too few groups have all questions before split.holdout_from: move that{fraction}, or split by group"


def select_reviewed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the reviewed rows of the training table: thumbs indicate usefulness, and cannot test correctness."""
    return frame[frame["source"] == "review"]


def split_by_sampling(rows: pd.DataFrame, sampled_only: bool = True) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Divide reviewed rows into those that count and those that do not.

    If at least `MIN_SAMPLED` rows were sampled with known probabilities, these represent all answers, and self-selected
    reviews add nothing to that. With fewer, all rows count, and represent answers like them. They also count if they
    are to check a guarantee that is not limited to sampled answers.

    Args:
        rows: Reviewed rows with the column `sampled`, whether they were sampled.
        sampled_only: Whether the guarantee is limited to sampled answers.

    Returns:
        The rows that count, and the others.
    """
    is_sampled = rows["sampled"]
    if not sampled_only or is_sampled.sum() < MIN_SAMPLED:
        return rows, rows.iloc[:0]
    return rows[is_sampled], rows[~is_sampled]


def select_reviewed_holdout(frame: pd.DataFrame, rows: Sequence[Row]) -> list[Row]:
    """Select from `rows`, one object for each row of the training table, those of the reviewed hold-out."""
    is_selected = (frame["split"] == "holdout") & (frame["source"] == "review")
    return [row for row, selected in zip(rows, is_selected, strict=True) if selected]
