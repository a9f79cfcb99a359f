"""Batch scoring: the promoted probe's confidences of many answers, with a bounded number of base-model runs.

Cached features cost nothing. Of the other answers, a bounded number is read by the base model, and cached until they
are labelled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from heapq import nsmallest

from torch import Tensor

from abstain.core.contracts import Interaction
from abstain.data.store.key_index import batched
from abstain.llm.features.feature_store import Progress
from abstain.serving.predictor import Predictor

AT_ONCE = 512


@dataclass(frozen=True)
class BatchScores:
    """Confidences by interaction, of those that have one: `cached` of them at no cost, `read` by the base model now.

    `left` answers were not scored.
    """

    confidences: dict[str, float]
    cached: int
    read: int
    left: int


def score_backlog(
    predictor: Predictor,
    interactions: Callable[[], Iterable[Interaction]],
    at_most: int,
    rank: Callable[[str], float],
    apart: Collection[str] = (),
    progress: Progress = lambda done, total: None,
) -> BatchScores:
    """Score the cached ones of `interactions`, and the `at_most` others with the smallest `rank` of their id.

    Those in `apart` are among the others even where they are cached. A caller whose own random sample becomes cached
    passes it here: otherwise sampled rows would have a higher chance of being scored than similar ones.

    `interactions` yields all of them each time it is called, which is twice. In memory are `AT_ONCE` of them, the keys
    of all, and those to be read. An answer that the base model cannot read has no confidence.
    """
    keys = dict(_keys(predictor, interactions()))
    order: list[str] = []

    def cached_states() -> Iterator[Tensor]:
        for key, row in predictor.source.rows.cache(predictor.source.ask).read(keys.values()):
            order.append(key)
            yield row.float()

    scores = predictor.probe.confidence(cached_states())  # which fills `order`
    by_key = dict(zip(order, map(float, scores), strict=True))
    known = {name: by_key[key] for name, key in keys.items() if key in by_key and name not in apart}
    uncached = [name for name in keys if name not in known]
    chosen = set(nsmallest(at_most, uncached, key=rank))
    asked = [row for row in interactions() if row.interaction_id in chosen] if chosen else []
    predictor.source.compute_missing(asked, progress)
    read = {asked[at].interaction_id: row.float() for at, row in predictor.source.read(asked)}
    found = dict(zip(read, map(float, predictor.probe.confidence(read.values())), strict=True))
    return BatchScores(known | found, len(known), len(found), len(uncached) - len(found))


def _keys(predictor: Predictor, interactions: Iterable[Interaction]) -> Iterator[tuple[str, str]]:
    """(interaction_id, key of its features) of every answer that the base model can read."""
    for some in batched(interactions, AT_ONCE):
        for row, key in zip(some, predictor.source.keys(some), strict=True):
            if key:
                yield row.interaction_id, key
