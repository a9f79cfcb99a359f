"""Parse the rows of a review file into reviews, or into problems that name a cell and a remedy. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

from pydantic import ValidationError

from abstain.core.contracts import CRITERIA, Review
from abstain.review.workbook import ID_COLUMN, SHEET, ReviewRow

REMEDIES = {
    **dict.fromkeys(CRITERIA, "write yes or no, or empty the reviewer's cells of this row"),
    "reviewer": "write who reviewed it, or name them all with --reviewer",
    "reviewed_at": "write a moment like 2026-11-21T14:30:00Z, or empty the cell",
}


@dataclass(frozen=True)
class ParsedReviews:
    """The content of a review file. Every row is one of three: a review, not reviewed yet, or a problem.

    Attributes:
        reviews: The reviews.
        n_unreviewed: Number of rows that are not reviewed yet.
        problems: Messages that name a cell and a remedy.
    """

    reviews: tuple[Review, ...]
    n_unreviewed: int
    problems: tuple[str, ...]

    def describe(self, file: Path) -> Iterator[str]:
        """Describe the result for the terminal.

        Args:
            file: The review file.

        Yields:
            A line for each row that is not taken, then the counts.
        """
        yield from (f"not taken: {problem}" for problem in self.problems)
        yield f"{file}: {len(self.reviews)} reviewed, {self.n_unreviewed} not yet, {len(self.problems)} to fix"


def parse_reviews(
    rows: Iterable[ReviewRow],
    now: datetime,
    stored: Mapping[str, Sequence[Review]],
    reviewer: str | None = None,
    normalize: Callable[[Review], Review] = lambda review: review,
    excluded: Mapping[str, str] = MappingProxyType({}),
) -> ParsedReviews:
    """Parse the rows of a review file; a row with a problem does not affect others.

    Args:
        rows: The rows.
        now: Time of a new review without one. It is no earlier, because a backdated review could enter a hold-out that
            was frozen before it was given.
        stored: Interaction id -> the reviews in data/.
        reviewer: The reviewer of rows that name none.
        normalize: Converts a review to the form that ingest stores: redacted, with the reviewer's pseudonym.
        excluded: Interaction id -> the reason for which a review of it would count nowhere; a review that is in data/
            already may be imported again.

    Returns:
        The reviews, the number of unreviewed rows, and the problems.
    """
    reviews: dict[tuple[str, str], Review] = {}
    problems: list[str] = []
    n_unreviewed = 0
    for row in rows:
        if not any(row.cells[name].strip() for name in (*CRITERIA, "ideal_answer")):
            n_unreviewed += 1
            continue
        try:
            review = _parse_row(row, now, reviewer)
            if (review.interaction_id, review.reviewer) in reviews:
                raise _make_error(row, "reviewer", f"is {review.reviewer}, as in a row above", "delete one of the two")
            existing = stored.get(review.interaction_id, ())
            review = _assign_timestamp(row, review, normalize(review), existing)
            if (reason := excluded.get(review.interaction_id)) and normalize(review) not in existing:
                raise _make_error(row, ID_COLUMN, f"is of {reason}", "this review would count nowhere, so leave it out")
        except ValueError as problem:
            problems.append(str(problem))
        else:
            reviews[review.interaction_id, review.reviewer] = review
    return ParsedReviews(tuple(reviews.values()), n_unreviewed, tuple(problems))


def _parse_row(row: ReviewRow, now: datetime, reviewer: str | None) -> Review:
    """Parse the review in a row; raise ValueError with the invalid cell and the remedy."""
    if row.problem:
        raise ValueError(row.problem)
    cells = {name: text.strip() for name, text in row.cells.items()}
    n_sampled, n_population = cells["inclusion_probability"].split(" of ")
    values = {
        "reviewer": cells["reviewer"] or reviewer or "",
        "reviewed_at": _parse_timestamp(cells["reviewed_at"]) if cells["reviewed_at"] else now,
        "ideal_answer": cells["ideal_answer"] or None,
        "inclusion_probability": int(n_sampled) / int(n_population),
    }
    try:
        return Review.model_validate(
            {ID_COLUMN: row.cells[ID_COLUMN], **{name: cells[name] for name in CRITERIA}, **values}
        )
    except ValidationError as error:
        name = min((str(problem["loc"][0]) for problem in error.errors()), key=list(REMEDIES).index)
        text = " ".join(cells[name].split())[:40]
        raise _make_error(row, name, f"is '{text}'" if text else "is empty", REMEDIES[name]) from None


def _parse_timestamp(text: str) -> str | None:
    """Return `text` with a time zone, UTC if it names none; None if it is no timestamp."""
    match = re.fullmatch(r"[12]\d{3}-\d\d-\d\d[T ]\d\d:\d\d[\d:.]*(Z|[+-]\d\d:?\d\d)?", text)
    return match and (text if match[1] else f"{text}Z")


def _assign_timestamp(row: ReviewRow, review: Review, normalized: Review, existing: Sequence[Review]) -> Review:
    """Give the review the time of the same review in data/, if any, so that it is a duplicate there.

    Raises:
        ValueError: The file names the time, and data/ has another review of the same reviewer at that time.
    """
    reviewer_reviews = [
        existing_review for existing_review in existing if existing_review.reviewer == normalized.reviewer
    ]
    if not row.cells["reviewed_at"].strip():
        duplicates = [
            existing_review
            for existing_review in reviewer_reviews
            if existing_review.model_copy(update={"reviewed_at": normalized.reviewed_at}) == normalized
        ]
        reviewed_at = max((existing_review.reviewed_at for existing_review in duplicates), default=review.reviewed_at)
        return review.model_copy(update={"reviewed_at": reviewed_at})
    if any(
        existing_review.reviewed_at == normalized.reviewed_at and existing_review != normalized
        for existing_review in reviewer_reviews
    ):
        defect = "is the moment of another review of this reviewer in data/"
        raise _make_error(row, "reviewed_at", defect, "empty it to replace that review, or export again")
    return review


def _make_error(row: ReviewRow, column: str, defect: str, remedy: str) -> ValueError:
    return ValueError(f"{SHEET}!{row.cell_addresses[column]}: {column} {defect}: {remedy}")
