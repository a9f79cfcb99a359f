"""Batch scoring: the live scorer's confidences of many answers, with a bounded number of base-model runs.

Cached features cost nothing. Of the other answers, a bounded number is read by the base model, and cached until they
are labelled.
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
SCORED_AT_ONCE = 64
"""Answers whose results are in memory together."""


@dataclass(frozen=True)
class BatchScores:
    """Confidences by interaction, of those that have one.

    `cached` were scored at no cost, `read` by the base model now, and `skipped` not at all.
    """

    confidences: dict[str, float]
    cached: int
    computed: int
    skipped: int


@dataclass(frozen=True)
class _Readable:
    """An answer without its contexts, and without its texts unless the writer's scores need them; and its key in the
    cache of each of the predictor's sources."""

    interaction: Interaction
    keys: tuple[str, ...]


def score_backlog(
    predictor: Predictor,
    interactions: Callable[[], Iterable[Interaction]],
    max_inference: int,
    rank: Callable[[str], float],
    sampled_ids: Collection[str] = (),
    progress: OnProgress = lambda done, total: None,
) -> BatchScores:
    """Score the cached ones of `interactions`, and the `max_inference` others with the smallest `rank` of their id.

    Those in `sampled_ids` are among the others even where they are cached. A caller whose own random sample becomes
    cached passes it here: otherwise sampled rows would have a higher chance of being scored than similar ones.

    `interactions` yields all of them each time it is called, which is twice. In memory are `BLOCK_ROWS` of them, all
    without their contexts, and those to be read. An answer that the base model cannot read has no confidence.
    """
    readable = {one.interaction.interaction_id: one for one in _readable(predictor, interactions())}
    cached = dict(_cached(predictor, [one for name, one in readable.items() if name not in sampled_ids]))
    uncached = [name for name in readable if name not in cached]
    chosen = set(nsmallest(max_inference, uncached, key=rank))
    asked = [row for row in interactions() if row.interaction_id in chosen] if chosen else []
    predictor.compute_missing(asked, progress)
    found: dict[str, float] = {}
    for some in iter_batches(asked, SCORED_AT_ONCE):
        source = predictor.source
        found |= _scores(predictor, read_features(source.params, source.settings, some, predictor.scorer.requires))
    known = {name: score for name, score in (cached | found).items() if score == score}
    return BatchScores(known, len(cached), len(found), len(uncached) - len(found))


def _readable(predictor: Predictor, interactions: Iterable[Interaction]) -> Iterator[_Readable]:
    """The answers that the base model can read."""
    dropped: dict[str, Any] = {"contexts": ()}
    if predictor.scorer.writer is None:
        dropped |= {"question": "", "answer": "", "token_log_probs": None}
    for some in iter_batches(interactions, BLOCK_ROWS):
        of_sources = [source.keys(some) for source in predictor.reader.sources]
        for at, row in enumerate(some):
            keys = [keys[at] for keys in of_sources]
            known = tuple(key for key in keys if key)
            if len(known) == len(keys):
                yield _Readable(row.model_copy(update=dropped), known)


def _cached(predictor: Predictor, rows: list[_Readable]) -> Iterator[tuple[str, float]]:
    """(interaction_id, confidence) of `rows` all of whose results are cached.

    They are read in the order in which the first source's cache gives them: a shard is read once.
    """
    caches = [source.store.cache(source.operation) for source in predictor.reader.sources]
    for at, cache in enumerate(caches):
        missing = set(cache.missing(row.keys[at] for row in rows))
        rows = [row for row in rows if row.keys[at] not in missing]
    if not caches:
        for some in iter_batches(rows, BLOCK_ROWS):
            yield from _scores(predictor, FeatureBatch([row.interaction for row in some], {})).items()
        return
    by_key: defaultdict[str, list[_Readable]] = defaultdict(list)
    for row in rows:
        by_key[row.keys[0]].append(row)
    for read in iter_batches(caches[0].read(by_key), SCORED_AT_ONCE):
        some = [row for key, _ in read for row in by_key[key]]
        found = [
            dict(read),
            *(dict(cache.read(row.keys[at] for row in some)) for at, cache in enumerate(caches[1:], 1)),
        ]
        whole = [row for row in some if all(key in of for key, of in zip(row.keys, found, strict=True))]  # none damaged
        results = {
            source.feature_request: [found[at][row.keys[at]] for row in whole]
            for at, source in enumerate(predictor.reader.sources)
        }
        yield from _scores(predictor, FeatureBatch([row.interaction for row in whole], results)).items()


def _scores(predictor: Predictor, answers: FeatureBatch) -> dict[str, float]:
    """Confidences by interaction; nan where there is none."""
    scores = predictor.scorer.score(answers).tolist()
    return {one.interaction_id: score for one, score in zip(answers.interactions, scores, strict=True)}
