"""Compute the features of all scorers together, then read each feature from the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.llm.engine.loading import find_model, load_tokenizer, read_layer_count
from abstain.llm.engine.prefix_tree import distinct_tokens
from abstain.llm.engine.requests import Generate, HiddenStates, Request, cut_to_operation
from abstain.llm.engine.tokenization import encode_prompt
from abstain.llm.features.extraction import FeatureSource, PreparedRequest, UnreadableInteraction
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.features.feature_store import ConcatRequests, FeatureStore, OnProgress, RequestList
from abstain.llm.features.shard_job import JobStats, ShardRunner, row_key
from abstain.llm.signals.base import Feature, FeatureBatch, Scorer

FeatureWork = tuple[Sequence[Interaction], Sequence[FeatureRequest]]
"""Answers, and the feature requests for each of them."""
ProvidedFeatures = Mapping[FeatureRequest, Tensor]
"""Results of one answer that something else than this base model computed."""
OnComputed = Callable[[str, FeatureSource, str, Tensor], None]
"""Is given the id of an answer and what was computed for it: its source, its key in the cache, and the result."""
COST_SAMPLE_SIZE = 256
"""Answers whose tokens are counted to estimate a scorer's cost."""


def collect_feature_requests(scorers: Iterable[Scorer]) -> tuple[FeatureRequest, ...]:
    """The feature requests of `scorers`, each once."""
    return tuple(dict.fromkeys(reading for scorer in scorers for reading in scorer.requires))


def expand_requests(params: LLMParams, settings: Settings, work: Sequence[FeatureWork]) -> RequestList:
    """All of `work` as requests, built on access."""
    return ConcatRequests(
        [FeatureSource(params, settings, reading).requests(rows) for rows, readings in work for reading in readings]
    )


def compute_missing(
    params: LLMParams,
    settings: Settings,
    work: Sequence[FeatureWork],
    progress: OnProgress = lambda done, total: None,
    runner: ShardRunner | None = None,
) -> JobStats:
    """`FeatureStore.compute_missing` of all requests in `work`: passes that begin alike are computed once."""
    return FeatureStore(params.model, settings).compute_missing(
        expand_requests(params, settings, work), progress, runner
    )


def read_features(
    params: LLMParams,
    settings: Settings,
    interactions: Sequence[Interaction],
    feature_requests: Sequence[FeatureRequest],
) -> FeatureBatch:
    """`interactions` with the base model's results for each, all in memory; missing ones are computed."""
    compute_missing(params, settings, [(interactions, feature_requests)])
    results: dict[FeatureRequest, list[Feature]] = {}
    for reading in feature_requests:
        results[reading] = [None] * len(interactions)
        for at, result in FeatureSource(params, settings, reading).read(interactions):
            results[reading][at] = result
    return FeatureBatch(interactions, results)


@dataclass(frozen=True)
class ReadResult:
    """Answers with what was read of each. `unreadable`: why the base model cannot read one, None where it can.

    `forward_tokens`: the tokens that it read for one, as in the function `forward_tokens`; 0 where all was cached.
    """

    batch: FeatureBatch
    unreadable: list[UnreadableInteraction | None]
    forward_tokens: list[float]


@dataclass(frozen=True)
class FeatureReader:
    """Reads a few answers at a time for a service: what is not cached is computed, and given to `on_computed`, if any.

    `sources`: one a feature request, of one base model.
    """

    sources: tuple[FeatureSource, ...]
    on_computed: OnComputed | None = None

    def read(self, interactions: Sequence[Interaction], provided: Sequence[ProvidedFeatures] = ()) -> ReadResult:
        """`interactions` with the base model's results for each.

        `provided`: the results that are there already, of each of them; the base model is not asked for these.
        """
        there = provided or [{}] * len(interactions)
        prepared = [
            [
                None if source.feature_request in of else source.prepare(one)
                for one, of in zip(interactions, there, strict=True)
            ]
            for source in self.sources
        ]
        found: dict[tuple[int, str], Tensor] = {}
        uncached: dict[str, Request] = {}
        for at, (source, of) in enumerate(zip(self.sources, prepared, strict=True)):
            requests = {row_key(one.request): one.request for one in of if isinstance(one, PreparedRequest)}
            found |= {(at, key): row for key, row in source.cache.read(list(requests))}
            uncached |= {f"{at}/{key}": request for key, request in requests.items() if (at, key) not in found}
        if uncached:
            engine = self.sources[0].engine()
            for name, row in engine.run(uncached):
                of_source, _, key = name.partition("/")
                found |= {(int(of_source), key): row} if isinstance(row, Tensor) else {}
        results = {
            source.feature_request: [
                found[at, row_key(one.request)]
                if isinstance(one, PreparedRequest)
                else known.get(source.feature_request)
                for one, known in zip(of, there, strict=True)
            ]
            for at, (source, of) in enumerate(zip(self.sources, prepared, strict=True))
        }
        reasons: list[UnreadableInteraction | None] = [None] * len(interactions)
        for of in prepared:
            reasons = [
                one if isinstance(one, UnreadableInteraction) else why for one, why in zip(of, reasons, strict=True)
            ]
        computed: list[list[FeatureSource]] = [[] for _ in interactions]
        for at, (source, of) in enumerate(zip(self.sources, prepared, strict=True)):
            for number, one in enumerate(of):
                if isinstance(one, PreparedRequest) and f"{at}/{(key := row_key(one.request))}" in uncached:
                    computed[number].append(source)
                    if self.on_computed is not None:
                        self.on_computed(interactions[number].interaction_id, source, key, found[at, key])
        tokens = [_cost(of, [one]) for one, of in zip(interactions, computed, strict=True)]
        return ReadResult(FeatureBatch(interactions, results), reasons, tokens)


def estimate_forward_tokens(
    params: LLMParams, settings: Settings, interactions: Sequence[Interaction], readings: Sequence[FeatureRequest]
) -> float:
    """Tokens that the base model runs for one answer by itself, in the mean of the first `COST_SAMPLE_SIZE`.

    Shared prefixes of one answer's passes count once. Where no request goes deeper than layer l of n, a token counts as
    l / n: the unit is a token that went through the whole model.
    """
    return _cost([FeatureSource(params, settings, reading) for reading in readings], interactions[:COST_SAMPLE_SIZE])


def _cost(sources: Sequence[FeatureSource], rows: Sequence[Interaction]) -> float:
    if not sources or not rows:
        return 0.0
    ref = find_model(sources[0].params.model, sources[0].settings)
    tokenizer, depth = load_tokenizer(ref), read_layer_count(ref)
    asks = [source.operation for source in sources]
    share = max(ask.layer / depth if isinstance(ask, HiddenStates) else 1.0 for ask in asks)
    return share * sum(_tokens(sources, tokenizer, row) for row in rows) / len(rows)


def _tokens(sources: Sequence[FeatureSource], tokenizer: Any, row: Interaction) -> int:
    passes: list[list[int]] = []
    written = 0
    for source in sources:
        if isinstance(prepared := source.prepare(row), PreparedRequest):
            passes.append(encode_prompt(tokenizer, cut_to_operation(prepared.request.prompt, source.operation)).ids)
            written += source.operation.max_new_tokens if isinstance(source.operation, Generate) else 0
    return distinct_tokens(passes) + written
