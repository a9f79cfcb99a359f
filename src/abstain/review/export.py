"""From a drawn sample to the review file."""

from __future__ import annotations

from datetime import timedelta

from abstain.core.contracts import Review
from abstain.data.store.dataset import Store
from abstain.review.sampling import Design
from abstain.review.sheet import COLUMNS, Sheet, new_row
from abstain.review.time_window import Window


def make_sheet(design: Design, window: Window, store: Store, delimiter: str = ",") -> Sheet:
    """The file of `design`: first what is to be reviewed, then what was, where it weighs something else now.

    A larger sample, or one of another window, gives rows that were drawn and reviewed before another probability. Such
    a review stands in the file again, filled in, a microsecond later: imported, it is its reviewer's last word.
    """
    drawn = design.rows.to_dict("index")
    recorded = window.frame["recorded_probability"].to_dict()
    open_rows = [str(key) for key, row in drawn.items() if not row["reviewed"]]
    moved = [str(key) for key, row in drawn.items() if row["reviewed"] and row["probability"] != recorded[key]]
    interactions = {row.interaction_id: row for row in store.interactions([*open_rows, *moved])}
    pairs: list[tuple[str, Review | None]] = [(key, None) for key in open_rows]
    pairs += [(key, _again(review)) for key in moved for review in window.reviews[key] if review.inclusion_probability]
    rows = [
        new_row(interactions[key], drawn[key]["why"], drawn[key]["drawn"], drawn[key]["of"], review)
        for key, review in pairs
    ]
    return Sheet(COLUMNS, dict(enumerate(rows, start=2)), delimiter)


def _again(review: Review) -> Review:
    return review.model_copy(update={"reviewed_at": review.reviewed_at + timedelta(microseconds=1)})
