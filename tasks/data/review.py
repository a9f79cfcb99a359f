"""Inputs of reviews from a workspace: confidences of the served scorer, and stored reviews."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import pandas as pd

from abstain.config.params import load_params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.contracts import Review
from abstain.data.labels.training_table import find_uncounted_reviews
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import hash_to_unit_interval
from abstain.ingest.parsing import ParsedRow
from abstain.ingest.privacy.policy import Privacy
from abstain.ingest.privacy.pseudonyms import derive_seal_key
from abstain.knowledge.retrieval.encoder import SentenceEncoder
from abstain.release.registry import load_registry
from abstain.review.candidates import NO_THUMB, ReviewCandidates, stream_interactions
from abstain.review.import_reviews import ParsedReviews, parse_reviews
from abstain.review.question_drift import MAX_COMPARED, measure_question_drift
from abstain.review.workbook import ReviewRow, check_seals
from abstain_tasks.runs.workspace import Workspace

Progress = Callable[[int, int], None]


def add_sampling_priorities(
    workspace: Workspace, window: ReviewCandidates, seed: int, max_inference: int, progress: Progress
) -> tuple[float | None, list[str]]:
    """Add `confidence` and `drift` to the candidates: the served scorer's confidence, and each question's drift.

    Args:
        workspace: The workspace.
        window: The candidates; columns are added to its frame.
        seed: Seed of the permanent random numbers.
        max_inference: The base model reads at most this number of answers without cached features.
        progress: Called with the numbers of answers done and in total.

    Returns:
        The threshold in production, and lines to print. The threshold is None if nothing is in production; then nothing
        is added.
    """
    promoted = load_registry(workspace.path / paths.REGISTRY).production
    if promoted is None:
        return None, ["nothing is in production, so no confidence is known: every row is drawn at random"]
    from abstain.serving.batch_scoring import score_backlog  # imports torch and Prefect, which only this function needs
    from abstain.serving.predictor import Predictor
    from abstain_tasks.release.bundles import fetch_bundle

    predictor = Predictor.open(fetch_bundle(workspace.path, promoted) / paths.RELEASED_ONNX.name, load_settings())
    store, frame = DataStore(workspace.path / paths.DATA), window.frame
    ids = set(frame.index)
    # The random sample must not depend on which rows are scored, nor the other way round: scoring uses its own random
    # numbers, and a sampled, reviewed row is not preferred because its review made it a row of the training data.
    sampled = frame["queued"] & (frame["recorded_probability"] < 1)
    scored = score_backlog(
        predictor,
        lambda: stream_interactions(store, ids),
        max_inference,
        lambda key: hash_to_unit_interval(seed, f"review scores/{key}"),
        set(frame.index[sampled & (frame["thumb"] == NO_THUMB)]),
        progress,
    )
    skipped = f", {scored.skipped:,} not scored (--max-inference)" if scored.skipped else ""
    messages = [
        f"probe {promoted.version}: {scored.cached:,} answers scored from the cache, {scored.computed:,} read by the "
        "base "
        f"model{skipped}"
    ]
    frame["confidence"] = pd.Series(scored.confidences, dtype=float).reindex(frame.index)
    trained_on = _trained_on(workspace) - set(frame.index[sampled])
    if not trained_on:
        messages.append("the training table is missing (run `abstain retrain`), so no row is taken for drift")
    elif max(len(ids), len(trained_on)) > MAX_COMPARED:
        messages.append(f"drift: {MAX_COMPARED:,} questions, drawn at random, stand for the rest")
    frame["drift"] = measure_question_drift(store, ids, trained_on, SentenceEncoder(), seed).reindex(frame.index)
    return predictor.threshold, messages


def check_reviews(
    workspace: Workspace, rows: Sequence[ReviewRow], now: datetime, reviewer: str | None = None
) -> ParsedReviews:
    """Parse the reviews in a review file of this home, and compare them with the stored ones.

    Args:
        workspace: The workspace.
        rows: Rows of the file.
        now: Current time (UTC).
        reviewer: Reviewer of rows that name none.

    Returns:
        The reviews to import, and reasons for rejected rows.
    """
    params, store = load_params(workspace.path / paths.PARAMS), DataStore(workspace.path / paths.DATA)
    privacy, rows = (
        Privacy.from_params(params.privacy, load_settings()),
        check_seals(rows, derive_seal_key(load_settings())),
    )
    ids = {row.cells["interaction_id"] for row in rows}
    stored: dict[str, list[Review]] = {}
    for review in store.iter_rows(Review):
        if review.interaction_id in ids:
            stored.setdefault(review.interaction_id, []).append(review)

    def as_stored(review: Review) -> Review:
        return privacy.apply(ParsedRow("", 0, b"", review=review)).review or review

    uncounted = find_uncounted_reviews(store, params.labels, params.split, now)
    return parse_reviews(rows, now, stored, reviewer, as_stored, uncounted)


def _trained_on(workspace: Workspace) -> set[str]:
    """Read the ids of the answers that the last retrain trained on; empty if its table is missing."""
    table = workspace.path / paths.DATASET
    if not table.is_file():
        return set()
    frame = pd.read_parquet(table, columns=["interaction_id", "split"])
    return set(frame.loc[frame["split"] == "train", "interaction_id"])
