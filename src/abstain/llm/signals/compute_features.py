"""Compute the features of all scorers together, then read each feature from the cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.llm.engine.loading import find_model, load_tokenizer, read_layer_count
from abstain.llm.engine.requests import HiddenStates
from abstain.llm.engine.tokenization import warn_about_layout
from abstain.llm.features.extraction import FeatureSource, PreparedRequest, UnreadableInteraction
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.features.feature_store import ConcatRequests, FeatureStore, OnProgress, RequestList, count_tokens
from abstain.llm.features.shard_job import JobStats, ShardRunner, row_key
from abstain.llm.signals.base import Feature, FeatureBatch, Scorer

FeatureWork = tuple[Sequence[Interaction], Sequence[FeatureRequest]]
"""Answers, and the feature requests about each of them."""
ProvidedFeatures = Mapping[FeatureRequest, Tensor]
"""Features of one answer that were not computed by this base model here."""
OnComputed = Callable[[str, FeatureSource, str, Tensor], None]
"""Called with the id of an answer and its newly computed feature: source, key in the cache, and result."""
COST_SAMPLE_SIZE = 256
"""Answers whose tokens are counted to estimate a scorer's cost."""


def collect_feature_requests(scorers: Iterable[Scorer]) -> tuple[FeatureRequest, ...]:
    """Return the feature requests of `scorers`, each once."""
    return tuple(dict.fromkeys(request for scorer in scorers for request in scorer.requires))


def expand_requests(params: LLMParams, settings: Settings, work: Sequence[FeatureWork]) -> RequestList:
    """Expand feature work into single requests, built on access.

    Args:
        params: Base model and prompt layout.
        settings: Settings of this machine.
        work: Answers and the feature requests about them.

    Returns:
        All requests, in order.
    """
    return ConcatRequests(
        [
            FeatureSource(params, settings, request).build_requests(rows)
            for rows, requests in work
            for request in requests
        ]
    )


def compute_missing(
    params: LLMParams,
    settings: Settings,
    work: Sequence[FeatureWork],
    on_progress: OnProgress = lambda done, total: None,
    runner: ShardRunner | None = None,
) -> JobStats:
    """Compute the features that are not in the cache; prompts with a common prefix share its computation.

    Args:
        params: Base model and prompt layout.
        settings: Settings of this machine.
        work: Answers and the feature requests about them.
        on_progress: Called with (computed rows, missing rows).
        runner: Where shards are computed; None computes them in this process.

    Returns:
        The cost, as from `FeatureStore.compute_missing`.
    """
    stats = FeatureStore(params.model, settings).compute_missing(
        expand_requests(params, settings, work), on_progress, runner
    )
    if stats.rows:
        warn_about_layout(find_model(params.model, settings), params.layout)
    return stats


def read_features(
    params: LLMParams,
    settings: Settings,
    interactions: Sequence[Interaction],
    feature_requests: Sequence[FeatureRequest],
) -> FeatureBatch:
    """Read the features of interactions into memory; missing ones are computed.

    Args:
        params: Base model and prompt layout.
        settings: Settings of this machine.
        interactions: Answered questions.
        feature_requests: Features to read.

    Returns:
        The interactions with their features.
    """
    compute_missing(params, settings, [(interactions, feature_requests)])
    features: dict[FeatureRequest, list[Feature]] = {}
    for request in feature_requests:
        features[request] = [None] * len(interactions)
        for index, result in FeatureSource(params, settings, request).read(interactions):
            features[request][index] = result
    return FeatureBatch(interactions, features)


@dataclass(frozen=True)
class ReadResult:
    """Result of `FeatureReader.read`.

    Attributes:
        batch: The answers with their features.
        unreadable: Per answer, the reason why the base model cannot read it; None if it can.
        forward_tokens: Per answer, the tokens that the base model read, as `estimate_forward_tokens` counts them; 0 if
            all features were cached or provided.
    """

    batch: FeatureBatch
    unreadable: list[UnreadableInteraction | None]
    forward_tokens: list[float]


@dataclass(frozen=True)
class FeatureReader:
    """Reads the features of a few answers at a time, for a service.

    Attributes:
        sources: One source per feature request, all of one base model.
        on_computed: Called for each feature that was not cached; None for no call.
    """

    sources: tuple[FeatureSource, ...]
    on_computed: OnComputed | None = None

    def read(self, interactions: Sequence[Interaction], provided: Sequence[ProvidedFeatures] = ()) -> ReadResult:
        """Read the features of a few answers: from the cache, else from the base model.

        Args:
            interactions: Answers to read.
            provided: One mapping per interaction with features that the caller already has; they are not computed
                again.

        Returns:
            The feature batch, the reason for each unreadable answer (else None), and the forward tokens per answer.
        """
        provided_features = provided or [{}] * len(interactions)
        prepared = {  # by index of the source and index of the answer
            (i, n): source.prepare(interaction)
            for i, source in enumerate(self.sources)
            for n, (interaction, features) in enumerate(zip(interactions, provided_features, strict=True))
            if source.feature_request not in features
        }
        requests = {place: item.request for place, item in prepared.items() if isinstance(item, PreparedRequest)}
        keys = {place: row_key(request) for place, request in requests.items()}
        rows: dict[tuple[int, str], Tensor] = {}  # by index of the source and key
        for i, source in enumerate(self.sources):
            cached = source.cache.read([key for (source_index, _), key in keys.items() if source_index == i])
            rows |= {(i, key): row for key, row in cached}
        uncached = {f"{i}/{key}": requests[i, n] for (i, n), key in keys.items() if (i, key) not in rows}
        if uncached:
            engine = self.sources[0].load_engine()
            for name, row in engine.run(uncached):
                source_index, _, key = name.partition("/")
                rows |= {(int(source_index), key): row} if isinstance(row, Tensor) else {}
        features_by_request = {
            source.feature_request: [
                rows[i, keys[i, n]] if (i, n) in keys else features.get(source.feature_request)
                for n, features in enumerate(provided_features)
            ]
            for i, source in enumerate(self.sources)
        }
        unreadable: list[UnreadableInteraction | None] = [None] * len(interactions)
        for (_, n), item in prepared.items():
            unreadable[n] = item if isinstance(item, UnreadableInteraction) else unreadable[n]
        computed_sources: list[list[FeatureSource]] = [[] for _ in interactions]
        for (i, n), key in keys.items():
            if f"{i}/{key}" in uncached:
                computed_sources[n].append(self.sources[i])
                if self.on_computed is not None:
                    self.on_computed(interactions[n].interaction_id, self.sources[i], key, rows[i, key])
        forward_tokens = [
            _estimate_cost(sources, [interaction])
            for interaction, sources in zip(interactions, computed_sources, strict=True)
        ]
        return ReadResult(FeatureBatch(interactions, features_by_request), unreadable, forward_tokens)


def estimate_forward_tokens(
    params: LLMParams,
    settings: Settings,
    interactions: Sequence[Interaction],
    feature_requests: Collection[FeatureRequest],
) -> float:
    """Estimate the tokens that the base model runs for one answer by itself.

    Common prefixes of the prompts of one answer count once. If no request goes deeper than layer l of n, a token counts
    as l / n: the unit is a token that goes through the whole model.

    Args:
        params: Base model and prompt layout.
        settings: Settings of this machine.
        interactions: Answered questions, of which the first `COST_SAMPLE_SIZE` are counted.
        feature_requests: Features that are read.

    Returns:
        The mean number of tokens.
    """
    return _estimate_cost(
        [FeatureSource(params, settings, request) for request in feature_requests], interactions[:COST_SAMPLE_SIZE]
    )


def _estimate_cost(sources: Sequence[FeatureSource], rows: Sequence[Interaction]) -> float:
    if not sources or not rows:
        return 0.0
    ref = find_model(sources[0].params.model, sources[0].settings)
    tokenizer, depth = load_tokenizer(ref), read_layer_count(ref)
    operations = [source.operation for source in sources]
    share = max(operation.layer / depth if isinstance(operation, HiddenStates) else 1.0 for operation in operations)
    tokens = 0
    for row in rows:
        prepared = [item for source in sources if isinstance(item := source.prepare(row), PreparedRequest)]
        tokens += count_tokens([item.request for item in prepared], tokenizer)
    return share * tokens / len(rows)
