"""Parse the rows of a review file into reviews, or into the problem of a cell and its remedy. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

from pydantic import ValidationError

from abstain.core.contracts import CRITERIA, Review
from abstain.review.workbook import KEY, SHEET, ReviewRow

REMEDIES = {
    **dict.fromkeys(CRITERIA, "write yes or no, or empty the reviewer's cells of this row"),
    "reviewer": "write who reviewed it, or name them all with --reviewer",
    "reviewed_at": "write a moment like 2026-11-21T14:30:00Z, or empty the cell",
}


@dataclass(frozen=True)
class ParsedReviews:
    """The content of a file. Every row is one of three: a review, not reviewed yet, or a problem that names a cell."""

    reviews: tuple[Review, ...]
    n_unreviewed: int
    problems: tuple[str, ...]

    def describe(self, file: Path) -> Iterator[str]:
        """A line for each row of `file` that is not taken, then the counts."""
        yield from (f"not taken: {problem}" for problem in self.problems)
        yield f"{file}: {len(self.reviews)} reviewed, {self.n_unreviewed} not yet, {len(self.problems)} to fix"


def parse_reviews(
    rows: Iterable[ReviewRow],
    now: datetime,
    stored: Mapping[str, Sequence[Review]],
    reviewer: str | None = None,
    as_stored: Callable[[Review], Review] = lambda review: review,
    uncounted: Mapping[str, str] = MappingProxyType({}),
) -> ParsedReviews:
    """The reviews in `rows`; a row with a problem does not affect others.

    Args:
        now: the moment of a new verdict without one. It is no earlier, because a backdated verdict could enter a
            hold-out that was frozen before it was given.
        stored: the reviews in data/, by interaction.
        reviewer: the reviewer of rows that name none.
        as_stored: converts a review to the form that ingest stores: redacted, its reviewer's pseudonym.
        uncounted: the interactions whose verdict would count nowhere, each with the reason; one in data/ may come
            again.
    """
    reviews: dict[tuple[str, str], Review] = {}
    problems: list[str] = []
    blank = 0
    for row in rows:
        if not any(row.cells[name].strip() for name in (*CRITERIA, "ideal_answer")):
            blank += 1
            continue
        try:
            review = _read(row, now, reviewer)
            if (review.interaction_id, review.reviewer) in reviews:
                raise _problem(row, "reviewer", f"is {review.reviewer}, as in a row above", "delete one of the two")
            existing = stored.get(review.interaction_id, ())
            review = _assign_timestamp(row, review, as_stored(review), existing)
            if (why := uncounted.get(review.interaction_id)) and as_stored(review) not in existing:
                raise _problem(row, KEY, f"is of {why}", "this verdict would count nowhere, so leave it out")
        except ValueError as problem:
            problems.append(str(problem))
        else:
            reviews[review.interaction_id, review.reviewer] = review
    return ParsedReviews(tuple(reviews.values()), blank, tuple(problems))


def _read(row: ReviewRow, now: datetime, reviewer: str | None) -> Review:
    """The review in a row. ValueError that names the invalid cell and the remedy."""
    if row.problem:
        raise ValueError(row.problem)
    cells = {name: text.strip() for name, text in row.cells.items()}
    drawn, of = cells["inclusion_probability"].split(" of ")
    own = {
        "reviewer": cells["reviewer"] or reviewer or "",
        "reviewed_at": _moment(cells["reviewed_at"]) if cells["reviewed_at"] else now,
        "ideal_answer": cells["ideal_answer"] or None,
        "inclusion_probability": int(drawn) / int(of),
    }
    try:
        return Review.model_validate({KEY: row.cells[KEY], **{name: cells[name] for name in CRITERIA}, **own})
    except ValidationError as error:
        name = min((str(problem["loc"][0]) for problem in error.errors()), key=list(REMEDIES).index)
        text = " ".join(cells[name].split())[:40]
        raise _problem(row, name, f"is '{text}'" if text else "is empty", REMEDIES[name]) from None


def _moment(text: str) -> str | None:
    """`text` with a time zone, UTC where it names none; None where it is not a moment."""
    match = re.fullmatch(r"[12]\d{3}-\d\d-\d\d[T ]\d\d:\d\d[\d:.]*(Z|[+-]\d\d:?\d\d)?", text)
    return match and (text if match[1] else f"{text}Z")


def _assign_timestamp(row: ReviewRow, review: Review, as_stored: Review, existing: Sequence[Review]) -> Review:
    """`review`, at the moment of the same verdict in data/, if any, so that it is a duplicate there.

    ValueError where the file names the moment, and data/ has another verdict of the same reviewer at that moment.
    """
    own = [other for other in existing if other.reviewer == as_stored.reviewer]
    if not row.cells["reviewed_at"].strip():
        same = [other for other in own if other.model_copy(update={"reviewed_at": as_stored.reviewed_at}) == as_stored]
        moment = max((other.reviewed_at for other in same), default=review.reviewed_at)
        return review.model_copy(update={"reviewed_at": moment})
    if any(other.reviewed_at == as_stored.reviewed_at and other != as_stored for other in own):
        wrong = "is the moment of another verdict of this reviewer in data/"
        raise _problem(row, "reviewed_at", wrong, "empty it to replace that verdict, or export again")
    return review


def _problem(row: ReviewRow, column: str, wrong: str, remedy: str) -> ValueError:
    return ValueError(f"{SHEET}!{row.cell_addresses[column]}: {column} {wrong}: {remedy}")
