"""Users and reviewers whose judgements contradict everybody else's: by mistake or on purpose. Columnar and pure.

Notes:

* Two judgements on one answer are compared where at least one is a review: review with review, thumb with review. A
  thumb against a thumb says nothing of who is right.
* A reviewer is judged over all verdicts and over those of each batch; a user over all thumbs. Anonymous thumbs are
  witnesses, and nobody's.
* An answer counts once for a person: by the share of the other judgements on it that are contradicted. The number of
  contradicted answers is tested against a binomial one, whose share is that of everybody else's comparisons, apart for
  two reviews, an up and a down: who is shown hard questions, or rarely likes anything, is not suspect for that.
* Users differ, so a person is named only where the odds of a contradiction are more than `ODDS` times those of the
  others, which are taken at the upper end of their interval. `ALPHA` is the chance to name anybody where nobody is
  above that: Bonferroni's correction over the persons who could be named at all (Tarone 1990).
* Whoever contradicts most significantly is named first, and the comparisons with that person are left out before the
  next: those who were contradicted by a wrong reviewer would be named with them. Two reviewers who were compared with
  nobody else contradict each other alike, and are both named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import betainc, betaincinv, expit, logit

from abstain.core.text import short_name

ALPHA = 0.05
ODDS = 4.0
UPPER = 0.95
"""The end of the interval of the others' share that a person is compared with."""
MAX_FLAGGED = 20
"""The most persons that are named."""
_REVIEWS, _DOWN, _UP = 0, 1, 2
"""What is compared with a review: a review, a thumb down or up."""


@dataclass(frozen=True)
class Contradiction:
    """A person, in one `batch` or (None) over all, whose judgements are not like the others'.

    `contradicted` of `answers` are contradicted by others, on average over their judgements; the `expected` number is
    that of others in the person's place.
    """

    person: str
    batch: str | None
    answers: int
    contradicted: float
    expected: float
    p_value: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON, rounded, with its `message`."""
        numbers = {name: round(getattr(self, name), 1) for name in ("contradicted", "expected")}
        return {**asdict(self), **numbers, "p_value": float(f"{self.p_value:.2g}"), "message": str(self)}

    def __str__(self) -> str:
        batch = f" in batch {self.batch}" if self.batch else ""
        return (
            f"{self.person}{batch}: {self.contradicted:.0f} of {self.answers:,} answers are judged the other way by "
            f"others; {self.expected:.0f} would be as usual"
        )


@dataclass(frozen=True)
class Contradictions:
    """Those who contradict the others beyond chance, the clearest first, of `judged`: the persons, and their batches,
    with answers enough to be named."""

    n_tested: int
    flagged: tuple[Contradiction, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"judged": self.n_tested, "named": [one.to_dict() for one in self.flagged]}


def find_contradictions(verdicts: pd.DataFrame, votes: pd.DataFrame, users: Sequence[str]) -> Contradictions:
    """Who contradicts the others beyond chance, at most `MAX_FLAGGED`.

    Args:
        verdicts: row, reviewer, label, batch: one verdict a reviewer and answer.
        votes: row, user (0: anonymous), up.
        users: the names of users 1, 2 ...
    """
    pairs, units = _pairs(verdicts.reset_index(drop=True), votes, users)
    named: list[Contradiction] = []
    judged = 0
    while len(pairs) and len(named) < MAX_FLAGGED:
        tested = _test(pairs, len(units))
        significant = _significant(tested["least"].to_numpy())
        judged = judged or int((tested["least"] <= significant).sum())
        worst = tested.index[tested["p_value"] <= significant]
        worst = worst[tested.loc[worst, "p_value"] == tested.loc[worst, "p_value"].min()]
        if not len(worst):
            break
        for unit, answers, contradicted, expected, p_value, _ in tested.loc[worst].itertuples():
            person, batch = units[unit]
            named.append(Contradiction(person, batch, int(answers), contradicted, expected, p_value))
        pairs = pairs[~pairs["pair"].isin(pairs.loc[pairs["unit"].isin(worst), "pair"])]
    return Contradictions(judged, tuple(named))


def _pairs(
    verdicts: pd.DataFrame, votes: pd.DataFrame, users: Sequence[str]
) -> tuple[pd.DataFrame, list[tuple[str, str | None]]]:
    """Each comparison once for every unit that it is of (pair, row, kind, differs, unit), and the units by number: the
    person, and the batch or None."""
    reviewer, names = pd.factorize(verdicts["reviewer"], sort=True)
    batch, batches = pd.factorize(verdicts["batch"], sort=True)
    several = (verdicts.groupby("reviewer")["batch"].transform("nunique") > 1).to_numpy(bool)
    whole, part = reviewer, np.where(several, len(names) + reviewer * len(batches) + batch, -1)
    first_user = len(names) * (1 + len(batches))
    given = verdicts.assign(whole=whole, part=part)[["row", "label", "whole", "part"]]
    thumbs = votes.assign(
        whole=np.where(votes["user"] > 0, first_user + votes["user"] - 1, -1), part=-1, label=votes["up"]
    )[["row", "label", "whole", "part"]]
    both = given.merge(given, on="row", suffixes=("", "_other"))
    both = both[both["whole"] < both["whole_other"]].assign(kind=_REVIEWS)
    mixed = given.merge(thumbs, on="row", suffixes=("", "_other"))
    mixed["kind"] = np.where(mixed["label_other"], _UP, _DOWN)
    compared = pd.concat([both, mixed], ignore_index=True)
    compared["differs"] = (compared["label"] != compared["label_other"]).astype(float)
    compared["pair"] = compared.index
    sides = [
        compared[["pair", "row", "kind", "differs"]].assign(unit=compared[side])
        for side in ("whole", "part", "whole_other", "part_other")
    ]
    reviewers = [f"reviewer {short_name(name)}" for name in names]
    units: list[tuple[str, str | None]] = [(name, None) for name in reviewers]
    units += [(name, str(one)) for name in reviewers for one in batches]
    units += [(f"user {short_name(name)}", None) for name in users]
    long = pd.concat(sides, ignore_index=True)
    return long[long["unit"] >= 0], units


def _test(pairs: pd.DataFrame, units: int) -> pd.DataFrame:
    """By unit: answers, contradicted, expected, p_value, and the least p-value of so many answers."""
    unit, kind, differs = (pairs[name].to_numpy() for name in ("unit", "kind", "differs"))
    once = ~pairs["pair"].duplicated().to_numpy()
    cell, cells = unit * 3 + kind, units * 3
    number, contradicted = (np.bincount(cell, of, cells).reshape(-1, 3) for of in (None, differs))
    all_number, all_contradicted = (np.bincount(kind[once], of, 3) for of in (None, differs[once]))
    n, c = all_number - number, all_contradicted - contradicted
    usual = (c + 0.5) / (n + 1)
    most = expit(logit(betaincinv(c + 0.5, n - c + 0.5, UPPER)) + np.log(ODDS))
    part = 1 / pairs.groupby(["unit", "row"])["pair"].transform("size").to_numpy()  # an answer counts once
    weight = np.bincount(cell, part, cells).reshape(-1, 3)
    answers, hits = weight.sum(axis=1), np.bincount(unit, part * differs, units)
    there = np.flatnonzero(answers > 0.5)
    answers, hits, weight = np.round(answers[there]), hits[there], weight[there]
    share = (weight * most[there]).sum(axis=1) / answers
    return pd.DataFrame(
        {
            "answers": answers,
            "contradicted": hits,
            "expected": (weight * usual[there]).sum(axis=1),
            "p_value": np.where(hits > 0, betainc(np.maximum(hits, 1e-9), answers - hits + 1, share), 1.0),
            "least": share**answers,
        },
        index=there,
    )


def _significant(least: np.ndarray) -> float:
    """The p-value from which a person is named: `ALPHA` over the number of those who could be named at it."""
    ascending = np.sort(least)
    count = np.arange(1, len(least) + 1)
    possible = np.searchsorted(ascending, ALPHA / count, side="right")
    return float(ALPHA / count[np.argmax(possible <= count)])
