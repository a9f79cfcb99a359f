"""Splits: the rows for training, validation and hold-out, by group or by time (`split.by`). Pure.

Notes:

* A group never straddles training and evaluation. By group, a hash of (seed, group) assigns the split, which never
  changes as data grows; of the hold-out's groups the questions from `holdout_from` on are the hold-out, and those
  before it are `excluded`. By time, the hold-out are the questions asked in [`holdout_from`, `holdout_frozen_at`), and
  earlier rows of a group with questions then or later are `excluded`: used neither for training nor for evaluation.
* The hold-out is frozen by date, with the same rows for every challenger; questions from `holdout_frozen_at` on are
  `newest`, the window that shows drift (by group: only in the hold-out's groups). Neither is trained on. The date is
  null until the first promotion with a guarantee, which writes it: until then no question is too new for the hold-out.
* Too little data is an error here, with its remedy, rather than a meaningless figure later.
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
"""With fewer reviews that were drawn with known probabilities, the others count, too."""


def hash_to_unit_interval(seed: int, group: str) -> float:
    """A number in [0, 1) that depends on `seed` and `group` alone: the top 53 bits of a sha256."""
    digest = hashlib.sha256(f"{seed}:{group}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def assign_splits(groups: pd.Series, asked_at: pd.Series, params: SplitParams) -> pd.Series:
    """The split of each row, as text, with the index of `groups`.

    Args:
        groups: the group of each row, by name.
        asked_at: timestamps in UTC, aligned with `groups`.
    """
    codes, names = pd.factorize(groups)
    position = np.array([hash_to_unit_interval(params.seed, name) for name in names], float)
    frozen = is_asked_since(asked_at, params.holdout_frozen_at)
    if params.by == "group":
        held, drawn = position < params.holdout, position < params.holdout + params.validation
        late = (
            np.ones(len(codes), bool) if params.holdout_from is None else is_asked_since(asked_at, params.holdout_from)
        )
        of_held = np.where(frozen, "newest", np.where(late, "holdout", "excluded"))
        split = np.where(held[codes], of_held, _train_or(drawn[codes]))
    else:
        late = (asked_at >= params.holdout_from).to_numpy(bool)
        held = np.zeros(len(names), bool)
        held[codes[late]] = True
        early = np.where(held[codes], "excluded", _train_or((position < params.validation)[codes]))
        split = np.where(late, np.where(frozen, "newest", "holdout"), early)
    return pd.Series(split, index=groups.index, dtype="str")


def is_asked_since(moments: pd.Series, frozen_at: datetime | None) -> np.ndarray:
    """Which of `moments` (UTC) are not before the date on which the hold-out froze: none where it has not frozen."""
    return np.zeros(len(moments), bool) if frozen_at is None else (moments >= frozen_at).to_numpy(bool)


def check_splits(splits: Sequence[str] | pd.Series, correct: Sequence[bool] | pd.Series, by: str = "group") -> None:
    """Raise `AbstainError`, naming split and remedy, unless each needed split has correct and incorrect answers."""
    if len(splits) != len(correct):
        raise ValueError(f"{len(splits)} splits for {len(correct)} labels")
    labelled = pd.DataFrame({"split": pd.Series(splits, dtype="str"), "correct": pd.Series(correct, dtype=bool)})
    found = labelled.value_counts().to_dict()
    for split in REQUIRED_SPLITS:
        correct_count, incorrect_count = found.get((split, True), 0), found.get((split, False), 0)
        if not correct_count + incorrect_count:
            raise AbstainError(Code.TOO_FEW_LABELS, f"no labelled rows in the split '{split}': {_remedy(split, by)}")
        if not correct_count or not incorrect_count:
            only, absent = ("correct", "incorrect") if correct_count else ("incorrect", "correct")
            raise AbstainError(
                Code.TOO_FEW_LABELS,
                f"only {only} answers in the split '{split}' ({correct_count + incorrect_count} rows): "
                f"ingest feedback on {absent} ones, or review more rows of other groups",
            )


def holdout_digest(ids: Sequence[str], labels: Sequence[bool]) -> str:
    """sha256 (hex) over rows and labels, independent of their order: equal digests mean the same hold-out."""
    pairs = sorted((key, bool(label)) for key, label in zip(ids, labels, strict=True))
    return hashlib.sha256(json.dumps(pairs, ensure_ascii=False).encode()).hexdigest()


def _train_or(validates: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(validates, "validation", "train"))


def _remedy(split: Split, by: str) -> str:
    if by == "group":
        fraction = "" if split == "train" else f", or raise split.{split} in params.yaml"
        frozen = ", or move split.holdout_frozen_at" if split == "holdout" else ""
        return f"ingest feedback on more groups{fraction}{frozen}"
    if split == "holdout":
        return "ingest feedback on questions asked from split.holdout_from to split.holdout_frozen_at, or move these"
    fraction = ", raise split.validation" if split == "validation" else ""
    return f"too few groups have all questions before split.holdout_from: move that{fraction}, or split by group"


def select_reviewed(frame: pd.DataFrame) -> pd.DataFrame:
    """The reviewed rows of the training table: thumbs indicate usefulness, not correctness, and cannot test it."""
    return frame[frame["source"] == "review"]


def split_by_sampling(rows: pd.DataFrame, sampled_only: bool = True) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The reviewed `rows` that count, and those apart from them.

    Where at least `MIN_SAMPLED` were `drawn` with known probabilities, these stand for all answers, and reviews that
    chose themselves say nothing more of these. With fewer, all count, and stand for answers like them. They do so, too,
    where they are to check a guarantee that is not `sampled_only` answers.
    """
    drawn = rows["drawn"]
    if not sampled_only or drawn.sum() < MIN_SAMPLED:
        return rows, rows.iloc[:0]
    return rows[drawn], rows[~drawn]


def select_reviewed_holdout(frame: pd.DataFrame, rows: Sequence[Row]) -> list[Row]:
    """The reviewed hold-out rows among `rows`, one per row of the training table."""
    return [rows[at] for at in np.flatnonzero((frame["split"] == "holdout") & (frame["source"] == "review")).tolist()]
