"""From interactions to the probe's input, and from chunks of the knowledge base to context-free features.

A prompt that does not fit the base model's window is refused, or loses its lowest-ranked chunks (`llm.too_long`),
before its key is made: the cache holds results for the prompt that was really read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from torch import Tensor

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction, Question
from abstain.data.store.state_table import write_table
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.loading import ModelRef, find_model, load_tokenizer, read_layer_count, require_layer
from abstain.llm.engine.prompts import PromptSegments, Segment, load_layout
from abstain.llm.engine.requests import NLL, Generate, HiddenStates, Operation, Request, make_probe_operation
from abstain.llm.engine.tokenization import ContextWindow, EncodedPrompt, encode_prompt
from abstain.llm.features.cache import CacheNamespace, FeatureCache
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.features.feature_store import FeatureStore, OnProgress
from abstain.llm.features.shard_job import JobStats, ShardJob, ShardRunner, row_key

NOTHING_FITS = "no answer fits the base model's window: take a model that reads more, or retrieve less"


@dataclass(frozen=True)
class PreparedRequest:
    """The request for one interaction; `dropped` of its chunks did not fit."""

    request: Request
    dropped_chunks: int = 0


@dataclass(frozen=True)
class UnreadableInteraction:
    """An interaction that the base model cannot read, and why."""

    reason: str


@dataclass(frozen=True)
class FeatureSource:
    """One feature of answered questions on this machine: its cache and how to compute it.

    Without a `reading`, the probe's input: the states of `make_probe_operation(params)`.
    """

    params: LLMParams
    settings: Settings
    request: FeatureRequest | None = None

    @cached_property
    def feature_request(self) -> FeatureRequest:
        return self.request or FeatureRequest(make_probe_operation(self.params))

    @property
    def operation(self) -> Operation:
        return self.feature_request.operation

    @cached_property
    def store(self) -> FeatureStore:
        return FeatureStore(self.params.model, self.settings)

    @cached_property
    def _ref(self) -> ModelRef:
        return find_model(self.params.model, self.settings)

    @cached_property
    def _window(self) -> ContextWindow:
        return _window(self._ref)

    @cached_property
    def cache(self) -> FeatureCache:
        """The cache, for a service that reads often: the shards listed at its first read are enough."""
        return self.store.cache(self.operation)

    def get_namespace(self) -> CacheNamespace:
        """The cache space of these parameters. Raises `AbstainError` where the base model is not found."""
        return self.store.get_namespace(self.operation)

    def engine(self) -> Engine:
        """The base model, loaded once a process."""
        return self.store.engine()

    def prepare(self, interaction: Interaction) -> PreparedRequest | UnreadableInteraction:
        """The pass of an answered question (eq. 3 of the probe's paper), cut to the window by `llm.too_long`."""
        return self._fit(self.feature_request, interaction, interaction.answer)

    def encode(self, interaction: Interaction) -> EncodedPrompt | UnreadableInteraction:
        """That pass as the token ids that the base model reads."""
        prepared = self.prepare(interaction)
        if isinstance(prepared, UnreadableInteraction):
            return prepared
        return encode_prompt(load_tokenizer(self._ref), prepared.request.prompt)

    def prepare_question(self, question: Question, ask: Generate) -> PreparedRequest | UnreadableInteraction:
        """The pass of an unanswered question, cut so that the answer fits the window too."""
        return self._fit(FeatureRequest(ask), question, None)

    def append_answer(self, prompt: PromptSegments, answer: str) -> PromptSegments:
        """`prompt` with an answer and the layout's text after it."""
        whole = load_layout(self.params.layout).render("", [], answer)
        return (*prompt, *whole[[segment.name for segment in whole].index("answer") :])

    def requests(self, interactions: Sequence[Interaction]) -> _LazyRequests:
        """The requests for `interactions`, built on access.

        Raises `AbstainError` where the base model has no such layer: here, before the first shard is computed.
        """
        if isinstance(self.operation, HiddenStates):
            require_layer(self.operation.layer, self._ref, read_layer_count(self._ref))
        return _LazyRequests(self, interactions)

    def keys(self, interactions: Sequence[Interaction]) -> list[str | None]:
        """The cache key of every interaction; None for one that is refused."""
        prepared = map(self.prepare, interactions)
        return [row_key(p.request) if isinstance(p, PreparedRequest) else None for p in prepared]

    def missing(self, interactions: Sequence[Interaction]) -> int:
        """The number of distinct rows of `interactions` that would need a forward pass."""
        return self.store.missing(self.requests(interactions))

    def shards(self, interactions: Sequence[Interaction]) -> Iterator[ShardJob]:
        """The missing rows of `interactions`, cut into shards."""
        return self.store.shards(self.requests(interactions))

    def compute_missing(
        self,
        interactions: Sequence[Interaction],
        progress: OnProgress = lambda done, total: None,
        runner: ShardRunner | None = None,
    ) -> JobStats:
        """Compute the missing rows of `interactions`; the result is as of `FeatureStore.compute_missing`."""
        return self.store.compute_missing(self.requests(interactions), progress, runner)

    def read(self, interactions: Sequence[Interaction]) -> Iterator[tuple[int, Tensor]]:
        """`(index, result)` of every interaction that is not refused; without a `reading`, the result is S_in of the
        probe's paper (eq. 5), (L + 1, d), or (L, d) where the probe reads no EOS."""
        return self.store.read(self.requests(interactions))

    def save(self, interactions: Sequence[Interaction], file: Path) -> None:
        """Write the states of `interactions` to `file` (table.py), in order; of a refused one, none."""
        cache = self.store.cache(self.operation)
        kind = cache.width_dtype()
        assert kind is not None, "fill first"
        lengths = np.zeros(len(interactions), np.int64)
        known = [(at, key) for at, key in enumerate(self.keys(interactions)) if key]
        lengths[[at for at, _ in known]] = cache.lengths(key for _, key in known)
        write_table(file, lengths.tolist(), *kind, self.read(interactions), self.get_namespace().model)

    def _fit(
        self, reading: FeatureRequest, asked: Question | Interaction, answer: str | None
    ) -> PreparedRequest | UnreadableInteraction:
        texts = reading.contexts(asked)
        for dropped in range(len(texts) + 1 if self.params.too_long == "drop_chunks" else 1):
            pass_ = reading.render(self.params.layout, asked.question, texts[: len(texts) - dropped], answer)
            excess = self._window.describe_overflow(pass_, reading.reserved_tokens)
            if not excess:
                return PreparedRequest(
                    Request(pass_, reading.operation, f"interaction {asked.interaction_id}"), dropped
                )
        return UnreadableInteraction(excess)


class _LazyRequests:
    """The requests of interactions, built on access; None for a refused one."""

    def __init__(self, source: FeatureSource, interactions: Sequence[Interaction]) -> None:
        self._source, self._interactions = source, interactions

    def __len__(self) -> int:
        return len(self._interactions)

    def __getitem__(self, at: int, /) -> Request | None:
        prepared = self._source.prepare(self._interactions[at])
        return prepared.request if isinstance(prepared, PreparedRequest) else None


@lru_cache(maxsize=4)
def _window(ref: ModelRef) -> ContextWindow:
    return ContextWindow(ref)  # its tokenizer is loaded once for all readings


def make_chunk_nll_requests(texts: Sequence[str]) -> list[Request]:
    """Context-free features of chunks: NLL and entropy of a chunk's tokens, read by themselves.

    Such a pass has no layout, so a row's key is the chunk's text, independent of the context and question for which
    the chunk was retrieved: `FeatureStore(model, settings).read(chunk_nll(texts))` computes a chunk once.
    """
    return [Request((Segment("chunk", text),), NLL(("chunk",)), f"chunk {text[:40]!r}") for text in texts]
