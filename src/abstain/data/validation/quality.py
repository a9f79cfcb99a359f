"""Quality of the training table: class balance, label sources, leakage across splits, contradicting labels and people.

Notes:

* Leakage is an error: a group on both sides of the split, or too many hold-out answers that are trained on word for
  word, invalidate every later metric. Everything else is a warning that qualifies the metrics.
* Texts are equal if their words are (`compute_text_digest`): case, punctuation and spaces do not make another answer.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from abstain.config.params import QualityParams
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.reasons import Reason
from abstain.data.validation.checks import Expectation, Severity, expect_between, expect_in_set, format_short_percent
from abstain.data.validation.results import SplitLabels
from abstain.data.validation.runner import ValidationResult, run_suites

SIDES = {"train": "train", "validation": "validation", "holdout": "the hold-out", "newest": "the hold-out"}
"""The sides that a group may not straddle.

The newest split has the hold-out's groups; excluded rows are on no side.
"""

MIN_CHECKED_ANSWERS = 20
"""Splits with fewer answers are shown but not checked."""

_WORDS = re.compile(r"\w+")


def compute_text_digest(row: Interaction) -> int:
    """Return 64 bits that are equal for interactions whose question and answer consist of the same words."""
    words = (
        " ".join(_WORDS.findall(unicodedata.normalize("NFKC", text).casefold())) for text in (row.question, row.answer)
    )
    digest = hashlib.blake2b("\n".join(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def compute_text_digests(rows: Iterable[Interaction]) -> pd.Series:
    """Compute `compute_text_digest` of each row.

    Args:
        rows: Interactions.

    Returns:
        int64, by interaction_id.
    """
    digests = {row.interaction_id: compute_text_digest(row) for row in rows}
    return pd.Series(digests.values(), index=pd.Index(digests.keys(), dtype="str"), dtype="int64")


def validate_training(
    table: pd.DataFrame, digests: pd.Series, left_out: int, people: Sequence[str], params: QualityParams
) -> ValidationResult:
    """Check the quality of a training table.

    Args:
        table: Result of `build_training_table`; the columns interaction_id, group, split, correct, source,
            reviews_disagree, thumbs_disagree and duplicate_in_training are used.
        digests: `compute_text_digests` of its interactions, or of more.
        left_out: Number of near-duplicates of hold-out answers that are not in the table.
        people: For each person with enough answers the contradiction of others, or "".
        params: `quality` of params.yaml.

    Returns:
        The result for the tables "labels", "splits" and "people".
    """
    used_rows = table[table["split"].isin(list(SIDES))].reset_index(drop=True)
    labels = _build_label_rows(used_rows, digests)
    splits = _build_split_rows(used_rows, labels)
    tables = {"labels": labels, "splits": splits, "people": _build_person_rows(people)}
    notes = (f"{left_out:,} near-duplicates of hold-out answers are left out of training",) if left_out else ()
    result = run_suites(tables, _build_suites(params), notes=notes)
    counts = splits[["split", "answers", "correct", "reviewed"]].itertuples(index=False)
    return replace(result, splits=tuple(SplitLabels(*row) for row in counts))


def _build_label_rows(used: pd.DataFrame, digests: pd.Series) -> pd.DataFrame:
    """Return a row for each answer.

    `straddles` names the sides of its group, "" for one side; `leaked` is whether its text is trained on.
    """
    side = used["split"].map(SIDES)
    straddles = pd.Series("", index=used.index, dtype="str")
    by_group = side.groupby(used["group"]).nunique()
    is_straddling = used["group"].isin(by_group.index[by_group > 1])
    sides_by_group = side[is_straddling].groupby(used["group"]).agg(lambda sides: " and ".join(sorted(set(sides))))
    straddles[is_straddling] = (
        "'" + used["group"][is_straddling] + "' in " + used["group"][is_straddling].map(sides_by_group)
    )
    text = used["interaction_id"].map(digests)
    trained_on = text[used["split"].isin(["train", "validation"])]
    leaked = (used["split"] == "holdout") & text.isin(trained_on)
    return pd.DataFrame({"row": "labels/" + used["interaction_id"], "straddles": straddles, "leaked": leaked})


def _build_split_rows(used: pd.DataFrame, labels: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each split, and one for all: shares of its answers, nan if there are too few to check."""
    parts = [("all", pd.Series(True, index=used.index)), *((name, used["split"] == name) for name in SIDES)]
    rows = []
    for name, is_in_part in parts:
        part, reviewed = used[is_in_part], used[is_in_part & (used["source"] == "review")]
        rows.append(
            {
                "row": f"splits/{name}",
                "split": name,
                "answers": len(part),
                "correct": int(part["correct"].sum()),
                "reviewed": len(reviewed),
                "correct_share": _compute_share(part["correct"]),
                "reviewed_share": _compute_share(part["source"] == "review", name == "holdout"),
                "leaked_share": _compute_share(labels["leaked"][is_in_part], name == "holdout"),
                "near_duplicate_share": _compute_share(reviewed["duplicate_in_training"], name == "holdout"),
                "reviews_disagree_share": _compute_share(reviewed["reviews_disagree"], name == "all"),
                "thumbs_disagree_share": _compute_share(reviewed["thumbs_disagree"], name == "all"),
            }
        )
    return pd.DataFrame(rows)


def _build_person_rows(people: Sequence[str]) -> pd.DataFrame:
    """Return a row for each tested user, reviewer or reviewer's batch, with the message of the contradiction or ""."""
    rows = [f"people/{number}" for number in range(len(people))]
    return pd.DataFrame({"row": rows, "contradicts": pd.Series(people, dtype="str")})


def _build_suites(params: QualityParams) -> dict[str, tuple[Expectation, ...]]:
    min_class_share, min_reviewed_share = params.min_class_share, params.min_reviewed_share

    def make_reason(message: str, field: str = "") -> Reason:
        return Reason(Code.LOW_QUALITY, field, message)

    def expect_at_most(column: str, name: str, message: str, severity: Severity = "warning") -> Expectation:
        bound = getattr(params, name)
        reason = make_reason(f"{message}, {format_short_percent(bound)} allowed (quality.{name})")
        return expect_between(column, reason, severity, max_value=bound)

    def expect_within(column: str, name: str, message: str, **bounds: float) -> Expectation:
        limits = " to ".join(format_short_percent(bound) for bound in bounds.values())
        return expect_between(
            column, make_reason(f"{message}, {limits} expected (quality.{name})"), "warning", **bounds
        )

    message = "{row}: {percent} of the answers are correct"
    return {
        "labels": (
            expect_in_set(
                "straddles",
                [""],
                make_reason("{value}: a group may be on one side only (split.by, split.seed)", "group"),
            ),
            expect_in_set(
                "leaked", [False], make_reason("{row}: the same question and answer are trained on"), "warning"
            ),
        ),
        "people": (
            expect_in_set(
                "contradicts",
                [""],
                Reason(Code.CONTRADICTS_OTHERS, "", "judgements that contradict the others' beyond chance: {value}"),
                "warning",
            ),
        ),
        "splits": (
            expect_at_most(
                "leaked_share", "max_leaked_share", "{row}: {percent} of the answers are trained on too", "error"
            ),
            expect_at_most(
                "near_duplicate_share",
                "max_near_duplicate_share",
                "{row}: {percent} of the reviewed answers have a near-duplicate in the training data",
            ),
            expect_within(
                "correct_share", "min_class_share", message, min_value=min_class_share, max_value=1 - min_class_share
            ),
            expect_within(
                "reviewed_share",
                "min_reviewed_share",
                "{row}: {percent} of the labels are by reviewers",
                min_value=min_reviewed_share,
            ),
            expect_at_most(
                "reviews_disagree_share", "max_review_conflicts", "reviews disagree on {percent} of reviewed answers"
            ),
            expect_at_most("thumbs_disagree_share", "max_thumb_conflicts", "thumbs contradict {percent} of reviews"),
        ),
    }


def _compute_share(flags: pd.Series, is_checked: bool = True) -> float:
    return float(flags.mean()) if is_checked and len(flags) >= MIN_CHECKED_ANSWERS else np.nan
