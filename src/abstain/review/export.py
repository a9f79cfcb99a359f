"""Export a review sample, as a review file or for the review queue of the gate's page, and describe it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from openpyxl import Workbook

from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Review
from abstain.core.errors import AbstainError
from abstain.data.decision_log.queue import DrawnAnswer
from abstain.data.store.dataset import DataStore
from abstain.review.candidates import ReviewCandidates
from abstain.review.sampling import STRATA, ReviewDesign
from abstain.review.workbook import fits_in_cell, make_workbook, reviewer_cells, sampled_cells

REASONS = {"random": "at random", "uncertain": "that the probe is unsure of", "drift": "unlike the training data"}


@dataclass(frozen=True)
class ReviewSample:
    """What a design asks of reviewers: its `rows`, the answers of them that are `open`, in order, and `moved`, the
    reviews whose weight it has changed.

    A larger sample, or one of another window, changes the inclusion probability of answers that were sampled and
    reviewed before. Such a review comes again with the new one, a microsecond later, so that it is its reviewer's last.
    """

    rows: Mapping[str, Mapping[Any, Any]]
    interactions: Mapping[str, Interaction]
    open: Sequence[str]
    moved: Sequence[Review]

    def drawn_answers(self) -> list[DrawnAnswer]:
        """The open answers, for the review queue."""
        return [DrawnAnswer(self.interactions[key], float(self.rows[key]["probability"])) for key in self.open]


def collect_sample(design: ReviewDesign, window: ReviewCandidates, store: DataStore) -> ReviewSample:
    """What `design` asks of reviewers. Raises `AbstainError` where that is nothing."""
    rows = {str(key): row for key, row in design.rows.to_dict("index").items()}
    recorded = window.frame["recorded_probability"].to_dict()
    open_rows = [key for key, row in rows.items() if not row["reviewed"]]
    moved = [
        _without_probability(review, row["probability"])
        for key, row in rows.items()
        if row["reviewed"] and row["probability"] != recorded[key]
        for review in window.reviews[key]
        if review.inclusion_probability is not None
    ]
    if not open_rows and not moved:
        raise AbstainError(
            Code.NO_ROWS, "every row of this sample is reviewed already: raise -n, or move --since and --until"
        )
    ids = dict.fromkeys([*open_rows, *(review.interaction_id for review in moved)])
    return ReviewSample(rows, {row.interaction_id: row for row in store.interactions(ids)}, open_rows, moved)


def make_review_file(sample: ReviewSample, key: bytes) -> Workbook:
    """The review file of `sample`, sealed with `key`: first the open answers, then the reviews whose weight changed.

    A review with a text that is longer than a cell is not in it, and keeps its weight.
    """
    pairs: list[tuple[str, Review | None]] = [(name, None) for name in sample.open]
    pairs += [(review.interaction_id, review) for review in sample.moved if _fits(review)]
    return make_workbook(
        (
            sampled_cells(sample.interactions[name], *(sample.rows[name][column] for column in ("why", "drawn", "of")))
            | reviewer_cells(review)
            for name, review in pairs
        ),
        key,
    )


def describe_sample(design: ReviewDesign, window: ReviewCandidates) -> Iterator[str]:
    """Lines that describe the sample."""
    counts = design.rows.loc[~design.rows["reviewed"], "why"].value_counts()
    drawn = ", ".join(f"{counts[why]} {text}" for why, text in REASONS.items() if why in counts) or "none"
    before = int(design.rows["reviewed"].sum())
    yield (
        f"{len(window.frame):,} answers asked from {window.since:%Y-%m-%d %H:%M} to {window.until:%Y-%m-%d %H:%M} UTC, "
        f"{int(window.frame['reviewed'].sum()):,} reviewed"
    )
    if window.left_out:
        yield f"{window.left_out:,} more are not drawn: a verdict on them would count nowhere (docs/reviews.md)"
    yield f"to review now: {drawn}" + (f"; {before} drawn ones were reviewed before" if before else "")
    decided = window.frame["decision"].dropna()
    if len(decided):
        withheld = decided.index[decided == "withheld"]
        own = int(design.rows.index.isin(withheld).sum())
        fewer = (
            f"; {design.n_missing:,} fewer than --withheld-share asks for, others are drawn instead"
            if design.n_missing
            else ""
        )
        part = own / max(len(withheld), 1)
        yield f"of the {len(withheld):,} answers withheld from users {own:,} are drawn ({part:.0%}){fewer}"
    if len(design.strata) < len(STRATA):
        by = " and ".join(design.strata).replace("_", " ") or "nothing"
        yield f"so few rows are stratified by {by}: one a stratum of {', '.join(STRATA).replace('_', ' ')} takes more"
    if design.n_extra:
        yield (
            f"{design.n_extra} rows more than -n: a part of this window was sampled more densely before, and the rest "
            "has to catch up; a --since behind that part avoids it"
        )
    foreign = window.frame["reviewed"] & ~window.frame["queued"] & (window.frame["recorded_probability"] < 1)
    if foreign.any():
        yield f"{int(foreign.sum()):,} reviews of this window were sampled by other means, and keep their own weights"


def _fits(review: Review) -> bool:
    return fits_in_cell(review.ideal_answer or "") and fits_in_cell(review.reviewer)


def _without_probability(review: Review, probability: float) -> Review:
    later = review.reviewed_at + timedelta(microseconds=1)
    return review.model_copy(update={"reviewed_at": later, "inclusion_probability": probability})
