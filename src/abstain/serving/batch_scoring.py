"""Batch scoring: the live scorer's confidences of many answers, with a bounded number of base-model runs.

Features that are in the cache cost nothing. Of the other answers, a bounded number is read by the base model, whose
features stay in the cache until the answers are labelled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any

from abstain.core.contracts import Interaction
from abstain.data.store.key_index import iter_batches
from abstain.llm.features.feature_store import OnProgress
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.compute_features import read_features
from abstain.serving.predictor import Predictor

BLOCK_ROWS = 512
"""Number of answers whose cache keys are computed together."""
SCORE_BATCH_ROWS = 64
"""Maximum number of answers whose features are in memory together."""


@dataclass(frozen=True)
class BatchScores:
    """Confidences of many answers.

    Attributes:
        confidences: Confidence by interaction id; answers without a confidence are absent.
        cached: Number of answers that were scored from the feature cache.
        computed: Number of answers that the base model read now.
        skipped: Number of answers that were not scored because of the limit.
    """

    confidences: dict[str, float]
    cached: int
    computed: int
    skipped: int


@dataclass(frozen=True)
class _ReadableAnswer:
    """An answer that the base model can read, reduced to what scoring needs.

    Attributes:
        interaction: The answer without its contexts, and without its texts unless the writer's scores need them.
        keys: Its key in the cache of each of the predictor's sources.
    """

    interaction: Interaction
    keys: tuple[str, ...]


def score_backlog(
    predictor: Predictor,
    interactions: Callable[[], Iterable[Interaction]],
    max_inference: int,
    rank: Callable[[str], float],
    sampled_ids: Collection[str] = (),
    on_progress: OnProgress = lambda done, total: None,
) -> BatchScores:
    """Score all answers whose features are cached, and a bounded number of others.

    In memory are `BLOCK_ROWS` interactions, all interactions without their contexts, and those that the base model
    reads. An answer that the base model cannot read has no confidence. If the scorer runs a model to score, no answer
    counts as cached: its texts are needed.

    Args:
        predictor: Scorer and feature sources of the version.
        interactions: Returns all interactions; it is called twice.
        max_inference: Maximum number of answers that the base model reads. The ones with the smallest `rank` are
            chosen.
        rank: Maps an interaction id to its rank.
        sampled_ids: Ids that count as uncached even if they are cached. A caller whose own random sample becomes cached
            passes it here: otherwise sampled rows would have a higher chance of being scored than similar ones.
        on_progress: Called with the number of finished and of all features.

    Returns:
        The confidences and how many answers were cached, computed and skipped.
    """
    readable_by_id = {answer.interaction.interaction_id: answer for answer in _iter_readable(predictor, interactions())}
    reusable = (
        []
        if predictor.scorer.running
        else [answer for interaction_id, answer in readable_by_id.items() if interaction_id not in sampled_ids]
    )
    cached = dict(_iter_cached_scores(predictor, reusable))
    uncached = [interaction_id for interaction_id in readable_by_id if interaction_id not in cached]
    chosen_ids = set(nsmallest(max_inference, uncached, key=rank))
    selected = [row for row in interactions() if row.interaction_id in chosen_ids] if chosen_ids else []
    predictor.compute_missing(selected, on_progress)
    computed: dict[str, float] = {}
    for rows in iter_batches(selected, SCORE_BATCH_ROWS):
        source = predictor.source
        computed |= _score(predictor, read_features(source.params, source.settings, rows, predictor.scorer.requires))
    confidences = {interaction_id: score for interaction_id, score in (cached | computed).items() if score == score}
    return BatchScores(confidences, len(cached), len(computed), len(uncached) - len(computed))


def _iter_readable(predictor: Predictor, interactions: Iterable[Interaction]) -> Iterator[_ReadableAnswer]:
    """Yield the answers that the base model can read."""
    cleared_fields: dict[str, Any] = {"contexts": ()}
    if predictor.scorer.writer is None:
        cleared_fields |= {"question": "", "answer": "", "token_log_probs": None}
    for rows in iter_batches(interactions, BLOCK_ROWS):
        keys_by_source = [source.build_keys(rows) for source in predictor.reader.sources]
        for index, row in enumerate(rows):
            keys = [source_keys[index] for source_keys in keys_by_source]
            present_keys = tuple(key for key in keys if key)
            if len(present_keys) == len(keys):
                yield _ReadableAnswer(row.model_copy(update=cleared_fields), present_keys)


def _iter_cached_scores(predictor: Predictor, rows: list[_ReadableAnswer]) -> Iterator[tuple[str, float]]:
    """Yield (interaction_id, confidence) of the `rows` whose features are all cached.

    Rows are read in the order of the first source's cache, so that a shard is read once.
    """
    caches = [source.store.open_cache(source.operation) for source in predictor.reader.sources]
    for index, cache in enumerate(caches):
        missing = set(cache.find_missing(row.keys[index] for row in rows))
        rows = [row for row in rows if row.keys[index] not in missing]
    if not caches:
        for batch in iter_batches(rows, BLOCK_ROWS):
            yield from _score(predictor, FeatureBatch([row.interaction for row in batch], {})).items()
        return
    by_key: defaultdict[str, list[_ReadableAnswer]] = defaultdict(list)
    for row in rows:
        by_key[row.keys[0]].append(row)
    for entries in iter_batches(caches[0].read(by_key), SCORE_BATCH_ROWS):
        batch = [row for key, _ in entries for row in by_key[key]]
        results_by_source = [
            dict(entries),
            *(dict(cache.read(row.keys[index] for row in batch)) for index, cache in enumerate(caches[1:], 1)),
        ]
        complete_rows = [
            row
            for row in batch
            if all(key in results for key, results in zip(row.keys, results_by_source, strict=True))
        ]  # none damaged
        features = {
            source.feature_request: [results_by_source[index][row.keys[index]] for row in complete_rows]
            for index, source in enumerate(predictor.reader.sources)
        }
        yield from _score(predictor, FeatureBatch([row.interaction for row in complete_rows], features)).items()


def _score(predictor: Predictor, batch: FeatureBatch) -> dict[str, float]:
    """Return confidences by interaction id; nan if there is none."""
    scores = predictor.scorer.score(batch).tolist()
    return {interaction.interaction_id: score for interaction, score in zip(batch.interactions, scores, strict=True)}
