"""Export a review sample as a review file, with a description."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from openpyxl import Workbook

from abstain.core.codes import Code
from abstain.core.contracts import Review
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import DataStore
from abstain.review.sampling import STRATA, Design
from abstain.review.time_window import TimeWindow
from abstain.review.workbook import fits, make_workbook, reviewer_cells, sampled_cells

REASONS = {"random": "at random", "uncertain": "that the probe is unsure of", "drift": "unlike the training data"}


def export_sample(design: Design, window: TimeWindow, store: DataStore, key: bytes) -> Workbook:
    """The file of `design`, sealed with `key`: first the rows to review, then reviewed ones whose weight has changed.

    A larger sample, or one of another window, changes the inclusion probability of rows that were sampled and reviewed
    before. Such a review is in the file again, filled in, a microsecond later: imported, it is its reviewer's latest.
    One whose ideal answer is longer than a cell keeps its weight.

    Raises `AbstainError` where there is neither.
    """
    sampled = design.rows.to_dict("index")
    recorded = window.frame["recorded_probability"].to_dict()
    open_rows = [str(key) for key, row in sampled.items() if not row["reviewed"]]
    moved = [str(key) for key, row in sampled.items() if row["reviewed"] and row["probability"] != recorded[key]]
    interactions = {row.interaction_id: row for row in store.interactions([*open_rows, *moved])}
    pairs: list[tuple[str, Review | None]] = [(key, None) for key in open_rows]
    pairs += [(key, _again(review)) for key in moved for review in window.reviews[key] if _comes_back(review)]
    if not pairs:
        raise AbstainError(
            Code.NO_ROWS, "every row of this sample is reviewed already: raise -n, or move --since and --until"
        )
    return make_workbook(
        (
            sampled_cells(interactions[name], sampled[name]["why"], sampled[name]["drawn"], sampled[name]["of"])
            | reviewer_cells(review)
            for name, review in pairs
        ),
        key,
    )


def describe_sample(design: Design, window: TimeWindow) -> Iterator[str]:
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
            f"; {design.short:,} fewer than --withheld-share asks for, others are drawn instead" if design.short else ""
        )
        part = own / max(len(withheld), 1)
        yield f"of the {len(withheld):,} answers withheld from users {own:,} are drawn ({part:.0%}){fewer}"
    if len(design.strata) < len(STRATA):
        by = " and ".join(design.strata).replace("_", " ") or "nothing"
        yield f"so few rows are stratified by {by}: one a stratum of {', '.join(STRATA).replace('_', ' ')} takes more"
    if design.overflow:
        yield (
            f"{design.overflow} rows more than -n: a part of this window was sampled more densely before, and the rest "
            "has to catch up; a --since behind that part avoids it"
        )
    foreign = window.frame["reviewed"] & ~window.frame["queued"] & (window.frame["recorded_probability"] < 1)
    if foreign.any():
        yield f"{int(foreign.sum()):,} reviews of this window were sampled by other means, and keep their own weights"


def _comes_back(review: Review) -> bool:
    return review.inclusion_probability is not None and fits(review.ideal_answer or "") and fits(review.reviewer)


def _again(review: Review) -> Review:
    return review.model_copy(update={"reviewed_at": review.reviewed_at + timedelta(microseconds=1)})
