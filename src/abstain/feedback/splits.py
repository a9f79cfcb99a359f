"""Which rows train, tune and judge the probe. Pure.

Three decisions:

* A group goes where a hash of (seed, group) sends it: it never straddles two parts, and never moves as data
  grows, whatever else arrives.
* The hold-out is frozen by date: rows of its groups asked before `holdout_frozen_at` are `holdout`, the same
  rows for every challenger; later ones are `newest`, the window that shows drift. Neither is trained on.
* Too little data is an error here, with its remedy, rather than a meaningless figure later.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

from abstain.errors import AbstainError
from abstain.params import SplitParams

Split = Literal["train", "validation", "holdout", "newest"]

NEEDED: tuple[Split, ...] = ("train", "validation", "holdout")


def uniform(seed: int, group: str) -> float:
    """A number in [0, 1) that depends on `seed` and `group` alone: the top 53 bits of a sha256."""
    digest = hashlib.sha256(f"{seed}:{group}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def assign_splits(rows: Iterable[tuple[str, datetime]], params: SplitParams) -> list[Split]:
    """The split of each (group, asked_at), in order."""
    return [_split(group, asked_at, params) for group, asked_at in rows]


def check_splits(splits: Sequence[Split], right: Sequence[bool], needed: Sequence[Split] = NEEDED) -> None:
    """Raise `AbstainError`, naming split and remedy, unless each needed split has right and wrong answers."""
    if len(splits) != len(right):
        raise ValueError(f"{len(splits)} splits for {len(right)} labels")
    found = Counter(zip(splits, right, strict=True))
    for split in needed:
        rights, wrongs = found[split, True], found[split, False]
        if not rights + wrongs:
            fraction = "" if split == "train" else f", or raise split.{split} in params.yaml"
            frozen = ", or move split.holdout_frozen_at" if split == "holdout" else ""
            raise AbstainError(
                f"no labelled rows in the split '{split}': ingest feedback on more groups{fraction}{frozen}"
            )
        if not rights or not wrongs:
            only, lacking = ("right", "wrong") if rights else ("wrong", "right")
            raise AbstainError(
                f"only {only} answers in the split '{split}' ({rights + wrongs} rows): "
                f"ingest feedback on {lacking} ones, or review more rows of other groups"
            )


def holdout_digest(ids: Sequence[str], labels: Sequence[bool]) -> str:
    """sha256 (hex) over rows and labels, whatever their order: equal digests, the same exam."""
    pairs = sorted((key, bool(label)) for key, label in zip(ids, labels, strict=True))
    return hashlib.sha256(json.dumps(pairs, ensure_ascii=False).encode()).hexdigest()


def _split(group: str, asked_at: datetime, params: SplitParams) -> Split:
    position = uniform(params.seed, group)
    if position < params.holdout:
        return "holdout" if asked_at < params.holdout_frozen_at else "newest"
    return "validation" if position < params.holdout + params.validation else "train"
