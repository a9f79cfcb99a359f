"""Export a review sample, as a review file or for the review queue of the gate's page, and describe it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from openpyxl import Workbook

from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Review, locate_contexts
from abstain.core.errors import AbstainError
from abstain.data.decision_log.queue import SampledAnswer
from abstain.data.store.dataset import DataStore
from abstain.review.candidates import ReviewCandidates
from abstain.review.sampling import STRATA, ReviewDesign
from abstain.review.workbook import fits_in_cell, make_reviewer_cells, make_sampled_cells, make_workbook

REASONS = {"random": "at random", "uncertain": "that the probe is unsure of", "drift": "unlike the training data"}


@dataclass(frozen=True)
class ReviewSample:
    """The work that a design gives to reviewers.

    A larger sample, or one of another window, changes the inclusion probability of answers that were sampled and
    reviewed before. Such a review is exported again with the new probability, a microsecond later, so that it is its
    reviewer's latest.

    Attributes:
        rows: Interaction id -> row of the design.
        interactions: Interaction id -> interaction.
        open_ids: Ids of the answers to review, in order.
        reweighted: Reviews whose weight changes.
        locations: Chunk id -> where the chunk is found, of the chunks that the answers cite.
    """

    rows: Mapping[str, Mapping[Any, Any]]
    interactions: Mapping[str, Interaction]
    open_ids: Sequence[str]
    reweighted: Sequence[Review]
    locations: Mapping[str, str]

    def list_open_answers(self) -> list[SampledAnswer]:
        """List the answers to review, for the review queue.

        Returns:
            The answers with their inclusion probabilities, in the order of `open_ids`.
        """
        return [SampledAnswer(self.interactions[key], float(self.rows[key]["probability"])) for key in self.open_ids]


def collect_sample(design: ReviewDesign, candidates: ReviewCandidates, store: DataStore) -> ReviewSample:
    """Collect the answers to review and the reviews whose weight changes.

    Args:
        design: The sample.
        candidates: The candidates that it was drawn from.
        store: The data store.

    Returns:
        The sample with its texts.

    Raises:
        AbstainError: There is nothing to review and no weight to change.
    """
    rows = {str(key): row for key, row in design.rows.to_dict("index").items()}
    recorded = candidates.frame["recorded_probability"].to_dict()
    open_ids = [key for key, row in rows.items() if not row["reviewed"]]
    reweighted = [
        _update_probability(review, row["probability"])
        for key, row in rows.items()
        if row["reviewed"] and row["probability"] != recorded[key]
        for review in candidates.reviews[key]
        if review.inclusion_probability is not None
    ]
    if not open_ids and not reweighted:
        raise AbstainError(
            Code.NO_ROWS, "every row of this sample is reviewed already: raise -n, or move --since and --until"
        )
    ids = dict.fromkeys([*open_ids, *(review.interaction_id for review in reweighted)])
    interactions = {row.interaction_id: row for row in store.read_interactions(ids)}
    contexts = [context for row in interactions.values() for context in row.contexts]
    locations = locate_contexts(contexts, {chunk.chunk_id: chunk for chunk in store.iter_chunks()})
    return ReviewSample(rows, interactions, open_ids, reweighted, locations)


def make_review_file(sample: ReviewSample, key: bytes) -> Workbook:
    """Make a review file: first the answers to review, then the reviews whose weight changes.

    A review with a text that is longer than a cell is left out, and keeps its weight.

    Args:
        sample: The sample.
        key: Key of the seals.

    Returns:
        The workbook.
    """
    pairs: list[tuple[str, Review | None]] = [(name, None) for name in sample.open_ids]
    pairs += [(review.interaction_id, review) for review in sample.reweighted if _fits_in_cells(review)]
    return make_workbook(
        (
            make_sampled_cells(
                sample.interactions[name],
                sample.locations,
                *(sample.rows[name][column] for column in ("reason", "n_sampled", "n_population")),
            )
            | make_reviewer_cells(review)
            for name, review in pairs
        ),
        key,
    )


def describe_sample(design: ReviewDesign, candidates: ReviewCandidates) -> Iterator[str]:
    """Describe a sample for the terminal.

    Args:
        design: The sample.
        candidates: The candidates that it was drawn from.

    Yields:
        Lines of text.
    """
    counts = design.rows.loc[~design.rows["reviewed"], "reason"].value_counts()
    counts_text = (
        ", ".join(f"{counts[reason]} {text}" for reason, text in REASONS.items() if reason in counts) or "none"
    )
    n_reviewed = int(design.rows["reviewed"].sum())
    yield (
        f"{len(candidates.frame):,} answers asked from {candidates.since:%Y-%m-%d %H:%M} to "
        f"{candidates.until:%Y-%m-%d %H:%M} UTC, {int(candidates.frame['reviewed'].sum()):,} reviewed"
    )
    if candidates.n_excluded:
        yield f"{candidates.n_excluded:,} more are not sampled: a review of them would count nowhere (docs/reviews.md)"
    yield f"to review now: {counts_text}" + (f"; {n_reviewed} sampled ones were reviewed before" if n_reviewed else "")
    displays = candidates.frame["display"].dropna()
    if len(displays):
        withheld = displays.index[displays == "withheld"]
        n_withheld = int(design.rows.index.isin(withheld).sum())
        shortfall = f"; {design.n_missing:,} fewer than --withheld-share asks for, others are sampled instead"
        share = n_withheld / max(len(withheld), 1)
        sampled = f"of the {len(withheld):,} answers withheld from users {n_withheld:,} are sampled ({share:.0%})"
        yield sampled + (shortfall if design.n_missing else "")
    if len(design.strata) < len(STRATA):
        strata = " and ".join(design.strata).replace("_", " ") or "nothing"
        yield (
            f"so few rows are stratified by {strata}: one a stratum of {', '.join(STRATA).replace('_', ' ')} takes more"
        )
    if design.n_extra:
        yield (
            f"{design.n_extra} rows more than -n: a part of this window was sampled more densely before, and the rest "
            "has to catch up; a --since behind that part avoids it"
        )
    sampled_elsewhere = (
        candidates.frame["reviewed"] & ~candidates.frame["queued"] & (candidates.frame["recorded_probability"] < 1)
    )
    if sampled_elsewhere.any():
        yield (
            f"{int(sampled_elsewhere.sum()):,} reviews of this window were sampled by other means, and keep their own "
            "weights"
        )


def _fits_in_cells(review: Review) -> bool:
    return fits_in_cell(review.ideal_answer or "") and fits_in_cell(review.reviewer)


def _update_probability(review: Review, probability: float) -> Review:
    later = review.reviewed_at + timedelta(microseconds=1)
    return review.model_copy(update={"reviewed_at": later, "inclusion_probability": probability})
