"""Quality of the training table: class balance, label sources, leakage across splits, contradicting labels and people.

Notes:

* Leakage is an error: a group on both sides of the split, or too many hold-out answers that are trained on word for
  word, invalidate every later figure. All else is a warning that qualifies the figures.
* Texts are equal when their words are (`text_digest`): case, punctuation and spaces do not make another answer.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from abstain.config.params import QualityParams
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.reasons import Reason
from abstain.data.validation.checks import Expectation, Severity, expect_between, expect_one_of, percent
from abstain.data.validation.runner import ValidationResult, run_suites

SIDES = {"train": "train", "validation": "validation", "holdout": "the hold-out", "newest": "the hold-out"}
"""The sides that a group may not straddle: the newest window has the hold-out's groups, excluded rows are on none."""

SMALL = 20
"""Splits with fewer answers are shown but not checked."""

_WORDS = re.compile(r"\w+")


def text_digest(row: Interaction) -> int:
    """64 bits that are equal for interactions whose question and answer consist of the same words."""
    words = (
        " ".join(_WORDS.findall(unicodedata.normalize("NFKC", text).casefold())) for text in (row.question, row.answer)
    )
    digest = hashlib.blake2b("\n".join(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def text_digests(rows: Iterable[Interaction]) -> pd.Series:
    """`text_digest` (int64) of each row, by interaction_id."""
    digests = {row.interaction_id: text_digest(row) for row in rows}
    return pd.Series(digests.values(), index=pd.Index(digests.keys(), dtype="str"), dtype="int64")


def validate_training(
    table: pd.DataFrame, digests: pd.Series, left_out: int, contradicting: Mapping[str, Any], params: QualityParams
) -> ValidationResult:
    """Judge a training table.

    Args:
        table: the output of `training_table`; the columns interaction_id, group, split, correct, source,
            reviews_disagree, thumbs_disagree and twin_in_training are used.
        digests: `text_digests` of its interactions, or more.
        left_out: how many near-duplicates of hold-out answers are not in the table.
        contradicting: who contradicts the others, as on the data card (`Contradictions`).
    """
    used = table[table["split"].isin(list(SIDES))].reset_index(drop=True)
    labels = _labels(used, digests)
    splits = _splits(used, labels)
    tables = {"labels": labels, "splits": splits, "people": _people(contradicting)}
    figures = {"splits": _figures(splits)}
    notes = (f"{left_out:,} near-duplicates of hold-out answers are left out of training",) if left_out else ()
    return run_suites(tables, _suites(params), notes=notes, figures=figures)


def _labels(used: pd.DataFrame, digests: pd.Series) -> pd.DataFrame:
    """One row an answer: the sides that its group `straddles`, "" for one; whether its text `leaked` into training."""
    side = used["split"].map(SIDES)
    straddles = pd.Series("", index=used.index, dtype="str")
    by_group = side.groupby(used["group"]).nunique()
    both = used["group"].isin(by_group.index[by_group > 1])
    named = side[both].groupby(used["group"]).agg(lambda sides: " and ".join(sorted(set(sides))))
    straddles[both] = "'" + used["group"][both] + "' in " + used["group"][both].map(named)
    text = used["interaction_id"].map(digests)
    trained_on = text[used["split"].isin(["train", "validation"])]
    leaked = (used["split"] == "holdout") & text.isin(trained_on)
    return pd.DataFrame({"row": "labels/" + used["interaction_id"], "straddles": straddles, "leaked": leaked})


def _splits(used: pd.DataFrame, labels: pd.DataFrame) -> pd.DataFrame:
    """One row a split, and one for all: shares of its answers, nan where there are too few to judge."""
    parts = [("all", pd.Series(True, index=used.index)), *((name, used["split"] == name) for name in SIDES)]
    rows = []
    for name, chosen in parts:
        part, reviewed = used[chosen], used[chosen & (used["source"] == "review")]
        judged = len(part) >= SMALL
        rows.append(
            {
                "row": f"splits/{name}",
                "answers": len(part),
                "correct": int(part["correct"].sum()),
                "reviewed": len(reviewed),
                "correct_share": _share(part["correct"], judged),
                "reviewed_share": _share(part["source"] == "review", judged and name == "holdout"),
                "leaked_share": _share(labels["leaked"][chosen], judged and name == "holdout"),
                "twin_share": _share(reviewed["twin_in_training"], len(reviewed) >= SMALL and name == "holdout"),
                "reviews_disagree_share": _share(
                    reviewed["reviews_disagree"], len(reviewed) >= SMALL and name == "all"
                ),
                "thumbs_disagree_share": _share(reviewed["thumbs_disagree"], len(reviewed) >= SMALL and name == "all"),
            }
        )
    return pd.DataFrame(rows)


def _people(contradicting: Mapping[str, Any]) -> pd.DataFrame:
    """One row a user, reviewer or reviewer's batch that is judged, with what it `contradicts`, "" for nothing."""
    said = [one["message"] for one in contradicting["named"]]
    said += [""] * (contradicting["judged"] - len(said))
    return pd.DataFrame(
        {"row": [f"people/{at}" for at in range(len(said))], "contradicts": pd.Series(said, dtype="str")}
    )


def _suites(params: QualityParams) -> dict[str, tuple[Expectation, ...]]:
    low, experts = params.min_class_share, params.min_reviewed_share

    def low_quality(message: str, field: str = "") -> Reason:
        return Reason(Code.LOW_QUALITY, field, message)

    def at_most(column: str, name: str, message: str, severity: Severity = "warning") -> Expectation:
        bound = getattr(params, name)
        reason = low_quality(f"{message}, {percent(bound)} allowed (quality.{name})")
        return expect_between(column, reason, severity, max_value=bound)

    def expected(column: str, name: str, message: str, **bounds: float) -> Expectation:
        wanted = " to ".join(percent(bound) for bound in bounds.values())
        return expect_between(
            column, low_quality(f"{message}, {wanted} expected (quality.{name})"), "warning", **bounds
        )

    message = "{row}: {percent} of the answers are correct"
    return {
        "labels": (
            expect_one_of(
                "straddles",
                [""],
                low_quality("{value}: a group may be on one side only (split.by, split.seed)", "group"),
            ),
            expect_one_of(
                "leaked", [False], low_quality("{row}: the same question and answer are trained on"), "warning"
            ),
        ),
        "people": (
            expect_one_of(
                "contradicts",
                [""],
                Reason(Code.CONTRADICTS_OTHERS, "", "judgements that contradict the others' beyond chance: {value}"),
                "warning",
            ),
        ),
        "splits": (
            at_most("leaked_share", "max_leaked_share", "{row}: {percent} of the answers are trained on too", "error"),
            at_most(
                "twin_share",
                "max_twin_share",
                "{row}: {percent} of the reviewed answers have a near-duplicate in the training data",
            ),
            expected("correct_share", "min_class_share", message, min_value=low, max_value=1 - low),
            expected(
                "reviewed_share",
                "min_reviewed_share",
                "{row}: {percent} of the labels are by reviewers",
                min_value=experts,
            ),
            at_most(
                "reviews_disagree_share", "max_review_conflicts", "reviews disagree on {percent} of reviewed answers"
            ),
            at_most("thumbs_disagree_share", "max_thumb_conflicts", "thumbs contradict {percent} of reviews"),
        ),
    }


def _share(flags: pd.Series, judged: bool) -> float:
    return float(flags.mean()) if judged else np.nan


def _figures(splits: pd.DataFrame) -> list[dict[str, Any]]:
    """For charts: counts by split."""
    names = splits["row"].str.partition("/")[2]
    counts = zip(names, splits["answers"], splits["correct"], splits["reviewed"], strict=True)
    return [{"split": name, "answers": int(a), "correct": int(b), "reviewed": int(c)} for name, a, b, c in counts]
