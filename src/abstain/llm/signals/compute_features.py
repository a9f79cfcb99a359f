"""Compute the features of all scorers together, then read each feature from the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.llm.engine.loading import load_tokenizer, read_layer_count, resolve
from abstain.llm.engine.prefix_tree import distinct_tokens
from abstain.llm.engine.requests import Generate, HiddenStates, Request, cut_to_operation
from abstain.llm.engine.tokenization import encode_prompt
from abstain.llm.features.extraction import FeatureSource, PreparedRequest, UnreadableInteraction
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.features.feature_store import ConcatRequests, FeatureStore, Progress, RequestList
from abstain.llm.features.shard_job import JobStats, ShardRunner, row_key
from abstain.llm.signals.base import Answers, Result, Scorer

Asked = tuple[Sequence[Interaction], Sequence[FeatureRequest]]
"""Answers, and the feature requests for each of them."""
ProvidedFeatures = Mapping[FeatureRequest, Tensor]
"""Results of one answer that something else than this base model computed."""
OnComputed = Callable[[str, FeatureSource, str, Tensor], None]
"""Is given the id of an answer and what was computed for it: its source, its key in the cache, and the result."""
COUNTED = 256
"""Answers whose tokens are counted to estimate a scorer's cost."""


def collect_feature_requests(scorers: Iterable[Scorer]) -> tuple[FeatureRequest, ...]:
    """The feature requests of `scorers`, each once."""
    return tuple(dict.fromkeys(reading for scorer in scorers for reading in scorer.readings))


def requests_of(params: LLMParams, settings: Settings, asked: Sequence[Asked]) -> RequestList:
    """All of `asked` as requests, built on access."""
    return ConcatRequests(
        [FeatureSource(params, settings, reading).requests(rows) for rows, readings in asked for reading in readings]
    )


def compute_missing(
    params: LLMParams,
    settings: Settings,
    asked: Sequence[Asked],
    progress: Progress = lambda done, total: None,
    runner: ShardRunner | None = None,
) -> JobStats:
    """`FeatureStore.compute_missing` of all requests in `asked`: passes that begin alike are computed once."""
    return FeatureStore(params.model, settings).compute_missing(requests_of(params, settings, asked), progress, runner)


def read_answers(
    params: LLMParams, settings: Settings, interactions: Sequence[Interaction], readings: Sequence[FeatureRequest]
) -> Answers:
    """`interactions` with the base model's results for each, all in memory; missing ones are computed."""
    compute_missing(params, settings, [(interactions, readings)])
    results: dict[FeatureRequest, list[Result]] = {}
    for reading in readings:
        results[reading] = [None] * len(interactions)
        for at, result in FeatureSource(params, settings, reading).read(interactions):
            results[reading][at] = result
    return Answers(interactions, results)


@dataclass(frozen=True)
class ReadResult:
    """Answers with what was read of each. `unreadable`: why the base model cannot read one, None where it can.

    `forward_tokens`: the tokens that it read for one, as in the function `forward_tokens`; 0 where all was cached.
    """

    answers: Answers
    unreadable: list[UnreadableInteraction | None]
    forward_tokens: list[float]


@dataclass(frozen=True)
class FeatureReader:
    """Reads a few answers at a time for a service: what is not cached is computed, and given to `keep`, if any.

    `sources`: one a feature request, of one base model.
    """

    sources: tuple[FeatureSource, ...]
    keep: OnComputed | None = None

    def read(self, interactions: Sequence[Interaction], given: Sequence[ProvidedFeatures] = ()) -> ReadResult:
        """`interactions` with the base model's results for each.

        `given`: the results that are there already, of each of them; the base model is not asked for these.
        """
        there = given or [{}] * len(interactions)
        prepared = [
            [None if source.wanted in of else source.prepare(one) for one, of in zip(interactions, there, strict=True)]
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
            source.wanted: [
                found[at, row_key(one.request)] if isinstance(one, PreparedRequest) else known.get(source.wanted)
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
                    if self.keep is not None:
                        self.keep(interactions[number].interaction_id, source, key, found[at, key])
        tokens = [_cost(of, [one]) for one, of in zip(interactions, computed, strict=True)]
        return ReadResult(Answers(interactions, results), reasons, tokens)


def forward_tokens(
    params: LLMParams, settings: Settings, interactions: Sequence[Interaction], readings: Sequence[FeatureRequest]
) -> float:
    """Tokens that the base model runs for one answer by itself, in the mean of the first `COUNTED`.

    Shared prefixes of one answer's passes count once. Where no request goes deeper than layer l of n, a token counts as
    l / n: the unit is a token that went through the whole model.
    """
    return _cost([FeatureSource(params, settings, reading) for reading in readings], interactions[:COUNTED])


def _cost(sources: Sequence[FeatureSource], rows: Sequence[Interaction]) -> float:
    if not sources or not rows:
        return 0.0
    ref = resolve(sources[0].params.model, sources[0].settings)
    tokenizer, depth = load_tokenizer(ref), read_layer_count(ref)
    asks = [source.ask for source in sources]
    share = max(ask.layer / depth if isinstance(ask, HiddenStates) else 1.0 for ask in asks)
    return share * sum(_tokens(sources, tokenizer, row) for row in rows) / len(rows)


def _tokens(sources: Sequence[FeatureSource], tokenizer: Any, row: Interaction) -> int:
    passes: list[list[int]] = []
    written = 0
    for source in sources:
        if isinstance(prepared := source.prepare(row), PreparedRequest):
            passes.append(encode_prompt(tokenizer, cut_to_operation(prepared.request.pass_, source.ask)).ids)
            written += source.ask.max_new_tokens if isinstance(source.ask, Generate) else 0
    return distinct_tokens(passes) + written
