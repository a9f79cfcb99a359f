"""Users and reviewers who contradict everybody else, by mistake or on purpose. Columnar and pure.

Notes:

* Two labels of one answer are compared if at least one is by a review: review with review, thumb with review. A thumb
  against a thumb does not show who is right.
* A reviewer is tested over all reviews and over those of each batch, a user over all thumbs. Anonymous thumbs are
  compared with reviews, but belong to no tested person.
* An answer counts once for a person: by the share of the other labels of it that contradict the person's. The number of
  contradicted answers has a binomial test. Its probability is the share in all comparisons without this person,
  separately for two reviews, an up and a down. So a person who is shown hard questions, or rarely likes anything, is
  not suspect for that.
* Users differ, so a person is flagged only if the odds of a contradiction are more than `ODDS` times those of the
  others, which are taken at the upper end of their interval. `ALPHA` is the probability to flag anybody if nobody is
  above that: Bonferroni's correction over the persons who could be flagged at all (Tarone 1990).
* The person with the most significant contradictions is flagged first, and the comparisons with that person are removed
  before the next test. Otherwise those who were contradicted by a wrong reviewer would be flagged as well. Two
  reviewers who were compared only with each other contradict each other equally, and both are flagged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import Field, PlainSerializer
from scipy.special import betainc, betaincinv, expit, logit

from abstain.core.text import shorten_name

ALPHA = 0.05
ODDS = 4.0
UPPER = 0.95
"""Probability at the upper end of the interval of the others' share."""
MAX_FLAGGED = 20
"""Maximum number of flagged persons."""
_REVIEWS, _DOWN, _UP = 0, 1, 2
"""What a review is compared with: a review, a thumb down or a thumb up."""

_Tenths = Annotated[float, PlainSerializer(lambda value: round(value, 1))]


@dataclass(frozen=True)
class Contradiction:
    """A person whose labels contradict those of others.

    Attributes:
        person: "reviewer" or "user", and the shortened name.
        batch: The reviewer's batch, or None for all labels.
        answers: Number of the person's answers that others have labelled as well.
        contradicted: Number of these that others contradict, averaged over the labels of the others.
        expected: Number that would be contradicted for others in the person's place.
        p_value: P-value of the binomial test.
        message: Message with these numbers.
    """

    person: str
    batch: str | None
    answers: int
    contradicted: _Tenths
    expected: _Tenths
    p_value: Annotated[float, PlainSerializer(lambda value: float(f"{value:.2g}"))]
    message: str


@dataclass(frozen=True)
class Contradictions:
    """The persons who contradict others beyond chance.

    Attributes:
        n_tested: Number of persons, and of reviewers' batches, with enough answers to be flagged.
        flagged: The contradictions, most significant first.
    """

    n_tested: Annotated[int, Field(alias="tested")]
    flagged: Annotated[tuple[Contradiction, ...], Field(alias="named")]

    @property
    def messages(self) -> list[str]:
        """The message of each tested person; "" for one who contradicts nobody."""
        messages = [contradiction.message for contradiction in self.flagged]
        return messages + [""] * (self.n_tested - len(messages))


def find_contradictions(reviews: pd.DataFrame, thumbs: pd.DataFrame, users: Sequence[str]) -> Contradictions:
    """Find the users and reviewers who contradict others beyond chance.

    Args:
        reviews: Columns row, reviewer, label, batch: one review for each reviewer and answer.
        thumbs: Columns row, user (0 for anonymous), up.
        users: Names of users 1, 2, ...

    Returns:
        At most `MAX_FLAGGED` contradictions, or a few more with equal p-values.
    """
    pairs, units = _build_pairs(reviews.reset_index(drop=True), thumbs, users)
    flagged: list[Contradiction] = []
    n_tested = 0
    while len(pairs) and len(flagged) < MAX_FLAGGED:
        tests = _test_units(pairs, len(units))
        p_threshold = _compute_p_threshold(tests["min_p_value"].to_numpy())
        n_tested = n_tested or int((tests["min_p_value"] <= p_threshold).sum())
        flagged_units = tests.index[tests["p_value"] <= p_threshold]
        flagged_units = flagged_units[tests.loc[flagged_units, "p_value"] == tests.loc[flagged_units, "p_value"].min()]
        if not len(flagged_units):
            break
        for unit, answers, contradicted, expected, p_value, _ in tests.loc[flagged_units].itertuples():
            person, batch = units[unit]
            message = (
                f"{person}{f' in batch {batch}' if batch else ''}: {contradicted:.0f} of {answers:,.0f} answers are "
                f"judged the other way by others; {expected:.0f} would be as usual"
            )
            flagged.append(Contradiction(person, batch, int(answers), contradicted, expected, p_value, message))
        pairs = pairs[~pairs["pair"].isin(pairs.loc[pairs["unit"].isin(flagged_units), "pair"])]
    return Contradictions(n_tested, tuple(flagged))


def _build_pairs(
    reviews: pd.DataFrame, thumbs: pd.DataFrame, users: Sequence[str]
) -> tuple[pd.DataFrame, list[tuple[str, str | None]]]:
    """Compare the labels of each answer in pairs, for each unit: a person, or a reviewer's batch.

    Returns:
        Columns pair, row, kind, differs, unit: each comparison once for every unit that takes part in it. And the units
        by number, as (person, batch or None).
    """
    reviewer, names = pd.factorize(reviews["reviewer"], sort=True)
    batch, batches = pd.factorize(reviews["batch"], sort=True)
    has_several_batches = (reviews.groupby("reviewer")["batch"].transform("nunique") > 1).to_numpy(bool)
    whole, part = reviewer, np.where(has_several_batches, len(names) + reviewer * len(batches) + batch, -1)
    first_user = len(names) * (1 + len(batches))
    review_labels = reviews.assign(whole=whole, part=part)[["row", "label", "whole", "part"]]
    thumb_labels = thumbs.assign(
        whole=np.where(thumbs["user"] > 0, first_user + thumbs["user"] - 1, -1), part=-1, label=thumbs["up"]
    )[["row", "label", "whole", "part"]]
    review_pairs = review_labels.merge(review_labels, on="row", suffixes=("", "_other"))
    review_pairs = review_pairs[review_pairs["whole"] < review_pairs["whole_other"]].assign(kind=_REVIEWS)
    thumb_pairs = review_labels.merge(thumb_labels, on="row", suffixes=("", "_other"))
    thumb_pairs["kind"] = np.where(thumb_pairs["label_other"], _UP, _DOWN)
    comparisons = pd.concat([review_pairs, thumb_pairs], ignore_index=True)
    comparisons["differs"] = (comparisons["label"] != comparisons["label_other"]).astype(float)
    comparisons["pair"] = comparisons.index
    sides = [
        comparisons[["pair", "row", "kind", "differs"]].assign(unit=comparisons[side])
        for side in ("whole", "part", "whole_other", "part_other")
    ]
    reviewers = [f"reviewer {shorten_name(name)}" for name in names]
    units: list[tuple[str, str | None]] = [(name, None) for name in reviewers]
    units += [(name, str(batch_name)) for name in reviewers for batch_name in batches]
    units += [(f"user {shorten_name(name)}", None) for name in users]
    unit_comparisons = pd.concat(sides, ignore_index=True)
    return unit_comparisons[unit_comparisons["unit"] >= 0], units


def _test_units(pairs: pd.DataFrame, n_units: int) -> pd.DataFrame:
    """Test each unit.

    In the comparisons of a kind without this unit, n is the number of pairs and c the number of contradictions.

    Returns:
        By unit: answers, contradicted, expected, p_value, and min_p_value, the p-value if all answers were
        contradicted.
    """
    unit, kind, differs = (pairs[name].to_numpy() for name in ("unit", "kind", "differs"))
    is_first = ~pairs["pair"].duplicated().to_numpy()
    cell, cells = unit * 3 + kind, n_units * 3
    number, contradicted = (np.bincount(cell, weights, cells).reshape(-1, 3) for weights in (None, differs))
    all_number, all_contradicted = (np.bincount(kind[is_first], weights, 3) for weights in (None, differs[is_first]))
    n, c = all_number - number, all_contradicted - contradicted
    expected_share = (c + 0.5) / (n + 1)
    max_share = expit(logit(betaincinv(c + 0.5, n - c + 0.5, UPPER)) + np.log(ODDS))
    part = 1 / pairs.groupby(["unit", "row"])["pair"].transform("size").to_numpy()  # an answer counts once
    weight = np.bincount(cell, part, cells).reshape(-1, 3)
    answers, hits = weight.sum(axis=1), np.bincount(unit, part * differs, n_units)
    present = np.flatnonzero(answers > 0.5)
    answers, hits, weight = np.round(answers[present]), hits[present], weight[present]
    share = (weight * max_share[present]).sum(axis=1) / answers
    return pd.DataFrame(
        {
            "answers": answers,
            "contradicted": hits,
            "expected": (weight * expected_share[present]).sum(axis=1),
            "p_value": np.where(hits > 0, betainc(np.maximum(hits, 1e-9), answers - hits + 1, share), 1.0),
            "min_p_value": share**answers,
        },
        index=present,
    )


def _compute_p_threshold(min_p_values: np.ndarray) -> float:
    """Return the p-value up to which a unit is flagged: `ALPHA` over the number of units that could reach it."""
    ascending = np.sort(min_p_values)
    counts = np.arange(1, len(min_p_values) + 1)
    possible = np.searchsorted(ascending, ALPHA / counts, side="right")
    return float(ALPHA / counts[np.argmax(possible <= counts)])
