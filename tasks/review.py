"""What the review queue asks of a workspace: what the promoted probe makes of a window, and what is reviewed by now."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pandas as pd

from abstain.config.params import load_params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.contracts import Review
from abstain.data.store.dataset import Store
from abstain.data.store.splits import uniform
from abstain.ingest.pipeline.parsing import InputRow
from abstain.ingest.privacy import Privacy
from abstain.knowledge.retrieval.encoder import SentenceEncoder
from abstain.release.registry import load_registry
from abstain.review.drift import COMPARED, drift
from abstain.review.time_window import NO_THUMB, Window, stream_interactions
from tasks.workspace import Workspace

Progress = Callable[[int, int], None]


def prioritise(
    workspace: Workspace, window: Window, seed: int, read_at_most: int, progress: Progress
) -> tuple[float | None, list[str]]:
    """Put the promoted probe's `confidence` of each answer, and each question's `drift`, into the window.

    Returns the probe's threshold, None where none is promoted (and then nothing is put in), and what there is to say.
    """
    promoted = load_registry(workspace.path / paths.REGISTRY).prod
    if promoted is None:
        return None, ["nothing is in production, so nobody knows where it is unsure: every row is drawn at random"]
    from abstain.serving.batch_scoring import score_backlog  # torch and Prefect, which nothing else here needs
    from abstain.serving.predictor import Released
    from tasks.promotion import fetch_release

    scorer = Released.open(fetch_release(workspace.path, promoted) / paths.RELEASED_ONNX.name, load_settings())
    store, frame = Store(workspace.path / paths.DATA), window.frame
    ids = set(frame.index)
    # What is drawn at random must not depend on what is scored, nor the other way round: scores go by numbers of their
    # own, and a row that was drawn and reviewed is not preferred because its review made it a row of the training data.
    drawn = frame["queued"] & (frame["recorded_probability"] < 1)
    scored = score_backlog(
        scorer,
        lambda: stream_interactions(store, ids),
        read_at_most,
        lambda key: uniform(seed, f"review scores/{key}"),
        set(frame.index[drawn & (frame["thumb"] == NO_THUMB)]),
        progress,
    )
    left = f", {scored.left:,} not scored (--read-at-most)" if scored.left else ""
    says = [
        f"probe {promoted.version}: {scored.cached:,} answers scored from the cache, {scored.read:,} read by the base "
        f"model{left}"
    ]
    frame["confidence"] = pd.Series(scored.confidences, dtype=float).reindex(frame.index)
    trained_on = _trained_on(workspace) - set(frame.index[drawn])
    if not trained_on:
        says.append("what was trained on is not here (run `abstain retrain`), so no row is taken for drift")
    elif max(len(ids), len(trained_on)) > COMPARED:
        says.append(f"drift: {COMPARED:,} questions, drawn at random, stand for their like")
    frame["drift"] = drift(store, ids, trained_on, SentenceEncoder(), seed).reindex(frame.index)
    return float(scorer.probe.metadata["threshold"]), says


def known_reviews(
    workspace: Workspace, ids: Collection[str]
) -> tuple[dict[str, list[Review]], Callable[[Review], Review]]:
    """The stored reviews of `ids`, and what makes of a review what ingest would store."""
    privacy = Privacy.open(load_params(workspace.path / paths.PARAMS).privacy, load_settings())
    known: dict[str, list[Review]] = {}
    for row in Store(workspace.path / paths.DATA).rows(Review):
        if row.interaction_id in ids:
            known.setdefault(row.interaction_id, []).append(row)

    def as_stored(review: Review) -> Review:
        return privacy.apply(InputRow("", 0, b"", review=review)).review or review

    return known, as_stored


def _trained_on(workspace: Workspace) -> set[str]:
    """The answers that the last retrain trained on; none where its table is not here."""
    table = workspace.path / paths.DATASET
    if not table.is_file():
        return set()
    frame = pd.read_parquet(table, columns=["interaction_id", "split"])
    return set(frame.loc[frame["split"] == "train", "interaction_id"])
