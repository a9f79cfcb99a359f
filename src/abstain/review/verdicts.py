"""From a filled review file to reviews, or to what is wrong with a row and how to mend it. Pure.

Two decisions:

* A row is taken or named, by the number that the spreadsheet shows; no row refuses another. A row without any verdict
  is not reviewed yet.
* Where nobody wrote when a row was reviewed, it was at the moment of the import, no earlier: a verdict dated back could
  slip into a hold-out that was frozen before it was given. The same verdict again, from the same file or a copy of it,
  keeps the moment that it has in data/, and so is a duplicate there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError

from abstain.core.contracts import Review
from abstain.review.cells import as_moment, as_yes_or_no, unguard
from abstain.review.sheet import DIGEST, OWN, PROBABILITY, VERDICTS, Sheet, digest, probability

Known = Mapping[str, Sequence[Review]]
AsStored = Callable[[Review], Review]


@dataclass(frozen=True)
class Problem:
    """What is wrong with a row, and the remedy."""

    row: int
    says: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.says}"


@dataclass(frozen=True)
class Verdicts:
    """What a file holds: reviews, rows not reviewed yet, rows with a problem. Every row is one of the three."""

    reviews: tuple[Review, ...]
    blank: int
    problems: tuple[Problem, ...]


def read_verdicts(
    sheet: Sheet,
    now: datetime,
    known: Known,
    reviewer: str | None = None,
    as_stored: AsStored = lambda review: review,
) -> Verdicts:
    """The reviews in `sheet`.

    `known` are the stored reviews by interaction, and `as_stored` makes of a review what ingest would store: redacted,
    its reviewer's pseudonym. `reviewer` is who reviewed the rows that do not name anybody.
    """
    reviews: dict[tuple[str, str], Review] = {}
    problems: list[Problem] = []
    blank = 0
    for number, row in sheet.rows.items():
        if not is_begun(row):
            blank += 1
            continue
        try:
            review, is_dated = _review(row, now, reviewer)
            if (review.interaction_id, review.reviewer) in reviews:
                raise ValueError(f"{review.reviewer} has reviewed this answer in a row above: delete one of the two")
            review = _beside(known.get(review.interaction_id, ()), review, as_stored(review), is_dated)
        except ValueError as problem:
            problems.append(Problem(number, str(problem)))
        else:
            reviews[review.interaction_id, review.reviewer] = review
    return Verdicts(tuple(reviews.values()), blank, tuple(problems))


def is_begun(row: Mapping[str, str]) -> bool:
    """Whether somebody has judged this row, or begun to."""
    return any(row.get(name, "").strip() for name in (*VERDICTS, "ideal_answer"))


def is_as_drawn(row: Mapping[str, str]) -> bool:
    """Whether nothing was changed but the cells that are the reviewer's."""
    return row.get(DIGEST, "").strip() == digest(row)


def _review(row: Mapping[str, str], now: datetime, reviewer: str | None) -> tuple[Review, bool]:
    """The review in `row`, and whether it says when. ValueError that says what is wrong with it, and the remedy."""
    if not is_as_drawn(row):
        raise ValueError("its id, question, answer or probability was changed: copy its verdict into a fresh export")
    verdicts: dict[str, bool] = {}
    for name in VERDICTS:
        try:
            verdict = as_yes_or_no(row.get(name, ""))
        except ValueError as error:
            raise ValueError(f"{name}: {error}: write yes or no") from None
        if verdict is None:
            raise ValueError(f"{name} is empty: write yes or no in {', '.join(VERDICTS)}, or empty all of {_list(OWN)}")
        verdicts[name] = verdict
    own = {name: unguard(row.get(name, "").strip()).strip() for name in ("ideal_answer", "reviewer")}
    by = own["reviewer"] or (reviewer or "").strip()
    if not by:
        raise ValueError("reviewer is empty: write who reviewed it, or name them all at once with --reviewer")
    try:
        moment = as_moment(row.get("reviewed_at", ""))
    except ValueError as error:
        raise ValueError(f"reviewed_at: {error}: write it so, or empty the cell") from None
    try:
        review = Review(
            interaction_id=unguard(row["interaction_id"]),
            reviewed_at=moment or now,
            reviewer=by,
            ideal_answer=own["ideal_answer"] or None,
            inclusion_probability=probability(row[PROBABILITY]),
            **verdicts,
        )
    except ValidationError as error:  # a year that is none, for instance
        problem = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None
    return review, moment is not None


def _beside(known: Sequence[Review], review: Review, stored: Review, is_dated: bool) -> Review:
    """`review`, at the moment at which the same one is known already; `stored` is what ingest makes of it.

    ValueError where it says itself when it was given, and its reviewer is known to have said something else then.
    """
    own = [one for one in known if one.reviewer == stored.reviewer]
    if not is_dated:
        moments = [
            one.reviewed_at for one in own if one.model_copy(update={"reviewed_at": stored.reviewed_at}) == stored
        ]
        return review.model_copy(update={"reviewed_at": max(moments, default=review.reviewed_at)})
    if any(one.reviewed_at == stored.reviewed_at and one != stored for one in own):
        raise ValueError(
            "data/ has another verdict of this reviewer from the same moment: empty reviewed_at to replace that, or "
            "export again"
        )
    return review


def _list(names: Sequence[str]) -> str:
    return f"{names[0]} to {names[-1]}"
