"""From interactions to the input of the probe, and from chunks of the knowledge base to context-free features.

A prompt that exceeds the context length of the base model makes the interaction unreadable, or loses its lowest-ranked
chunks (`llm.too_long`). This happens before its key is made, so the cache holds results for the prompt that was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path

import numpy as np
from torch import Tensor

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction, Question
from abstain.data.store.state_table import write_table
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.loading import ModelRef, find_model, load_tokenizer, read_layer_count, require_layer
from abstain.llm.engine.prompts import PromptSegments, Segment
from abstain.llm.engine.requests import NLL, Generate, HiddenStates, Operation, Request, make_probe_operation
from abstain.llm.engine.tokenization import (
    ContextLimit,
    EncodedPrompt,
    encode_prompt,
    load_model_layout,
    warn_about_layout,
)
from abstain.llm.features.cache import CacheNamespace, FeatureCache
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.features.feature_store import FeatureStore, OnProgress
from abstain.llm.features.shard_job import JobStats, ShardJob, ShardRunner, row_key

NOTHING_FITS = "no answer fits the base model's context length: take a model that reads more, or retrieve less"


@dataclass(frozen=True)
class PreparedRequest:
    """Request for one interaction.

    Attributes:
        request: The prompt and the operation on it.
        dropped_chunks: Number of chunks that did not fit into the context length.
    """

    request: Request
    dropped_chunks: int = 0


@dataclass(frozen=True)
class UnreadableInteraction:
    """An interaction that the base model cannot read, with the reason."""

    reason: str


@dataclass(frozen=True)
class FeatureSource:
    """One feature of answered questions on this machine: its cache and its computation.

    Attributes:
        params: Base model, prompt layout and layer.
        settings: Settings of this machine.
        request: The feature; None for the input of the probe, the states of `make_probe_operation(params)`.
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
    def _context_window(self) -> ContextLimit:
        return _load_context_window(self._ref)

    @cached_property
    def cache(self) -> FeatureCache:
        """The cache, for a service that reads often: the shards listed at its first read are enough."""
        return self.store.open_cache(self.operation)

    def get_namespace(self) -> CacheNamespace:
        """Return the cache namespace of this feature.

        Raises:
            AbstainError: The base model is not found.
        """
        return self.store.get_namespace(self.operation)

    def load_engine(self) -> Engine:
        """Return the base model, loaded once per process."""
        warn_about_layout(self._ref, self.params.layout)
        return self.store.load_engine()

    def prepare(self, interaction: Interaction) -> PreparedRequest | UnreadableInteraction:
        """Build the request for an answered question (eq. 3 of the probe's paper), cut by `llm.too_long`.

        Args:
            interaction: The answered question.

        Returns:
            The request, or the reason why the base model cannot read the interaction.
        """
        return self._fit(self.feature_request, interaction, interaction.answer)

    def encode(self, interaction: Interaction) -> EncodedPrompt | UnreadableInteraction:
        """Return the prompt of an interaction as the token ids that the base model reads.

        Args:
            interaction: The answered question.

        Returns:
            The encoded prompt, or the reason why the base model cannot read the interaction.
        """
        prepared = self.prepare(interaction)
        if isinstance(prepared, UnreadableInteraction):
            return prepared
        return encode_prompt(load_tokenizer(self._ref), prepared.request.prompt)

    def prepare_question(self, question: Question, operation: Generate) -> PreparedRequest | UnreadableInteraction:
        """Build the request for an unanswered question, cut so that the answer fits too.

        Args:
            question: The question with its contexts.
            operation: Generation of the answer.

        Returns:
            The request, or the reason why the base model cannot read the question.
        """
        return self._fit(FeatureRequest(operation), question, None)

    def append_answer(self, prompt: PromptSegments, answer: str) -> PromptSegments:
        """Append an answer, and the text of the layout that follows it.

        Args:
            prompt: Prompt of a question without an answer.
            answer: Text of the answer.

        Returns:
            The extended prompt.
        """
        rendered = load_model_layout(self._ref, self.params.layout).render("", [], answer)
        return (*prompt, *rendered[[segment.name for segment in rendered].index("answer") :])

    def build_requests(self, interactions: Sequence[Interaction]) -> _LazyRequests:
        """Return the requests for `interactions`, built on access.

        Args:
            interactions: Answered questions.

        Returns:
            One request per interaction; None for one that the base model cannot read.

        Raises:
            AbstainError: The base model has no such layer. The check comes here, before the first shard is computed.
        """
        if isinstance(self.operation, HiddenStates):
            require_layer(self.operation.layer, self._ref, read_layer_count(self._ref))
        return _LazyRequests(self, interactions)

    def build_keys(self, interactions: Sequence[Interaction]) -> list[str | None]:
        """Return the cache key of each interaction; None for one that the base model cannot read."""
        prepared = map(self.prepare, interactions)
        return [row_key(result.request) if isinstance(result, PreparedRequest) else None for result in prepared]

    def count_missing(self, interactions: Sequence[Interaction]) -> int:
        """Return the number of distinct rows of `interactions` that need a forward pass."""
        return self.store.count_missing(self.build_requests(interactions))

    def iter_shards(self, interactions: Sequence[Interaction]) -> Iterator[ShardJob]:
        """Return the missing rows of `interactions`, cut into shards."""
        return self.store.iter_shards(self.build_requests(interactions))

    def compute_missing(
        self,
        interactions: Sequence[Interaction],
        on_progress: OnProgress = lambda done, total: None,
        runner: ShardRunner | None = None,
    ) -> JobStats:
        """Compute the rows of the interactions that are not in the cache.

        Args:
            interactions: Answered questions.
            on_progress: Called with (computed rows, missing rows).
            runner: Where shards are computed; None computes them in this process.

        Returns:
            The cost, as from `FeatureStore.compute_missing`.
        """
        return self.store.compute_missing(self.build_requests(interactions), on_progress, runner)

    def read(self, interactions: Sequence[Interaction]) -> Iterator[tuple[int, Tensor]]:
        """Yield the result of each readable interaction; missing ones are computed first.

        Args:
            interactions: Answered questions.

        Yields:
            Index and result. Without a `request`, the result is S_in of the probe's paper (eq. 5), `(L + 1, d)`, or
            `(L, d)` if the probe reads no EOS.
        """
        return self.store.read(self.build_requests(interactions))

    def save(self, interactions: Sequence[Interaction], file: Path) -> None:
        """Write the states of interactions to a file, in order.

        Args:
            interactions: Answered questions whose states are cached; one that the base model cannot read gets an empty
                row.
            file: File of state_table.py.
        """
        cache = self.store.open_cache(self.operation)
        width_and_dtype = cache.get_width_and_dtype()
        assert width_and_dtype is not None, "fill first"
        lengths = np.zeros(len(interactions), np.int64)
        readable = [(i, key) for i, key in enumerate(self.build_keys(interactions)) if key]
        lengths[[index for index, _ in readable]] = cache.get_lengths(key for _, key in readable)
        write_table(file, lengths.tolist(), *width_and_dtype, self.read(interactions), self.get_namespace().model)

    def _fit(
        self, feature_request: FeatureRequest, question: Question | Interaction, answer: str | None
    ) -> PreparedRequest | UnreadableInteraction:
        texts = feature_request.select_contexts(question)
        load = partial(load_model_layout, self._ref)
        for dropped_chunks in range(len(texts) + 1 if self.params.too_long == "drop_chunks" else 1):
            prompt = feature_request.render(
                self.params.layout, question.question, texts[: len(texts) - dropped_chunks], answer, load
            )
            overflow = self._context_window.describe_overflow(prompt, feature_request.reserved_tokens)
            if not overflow:
                return PreparedRequest(
                    Request(prompt, feature_request.operation, f"interaction {question.interaction_id}"), dropped_chunks
                )
        return UnreadableInteraction(overflow)


class _LazyRequests:
    """Requests for interactions, built on access; None for one that the base model cannot read."""

    def __init__(self, source: FeatureSource, interactions: Sequence[Interaction]) -> None:
        self._source, self._interactions = source, interactions

    def __len__(self) -> int:
        return len(self._interactions)

    def __getitem__(self, index: int, /) -> Request | None:
        prepared = self._source.prepare(self._interactions[index])
        return prepared.request if isinstance(prepared, PreparedRequest) else None


@lru_cache(maxsize=4)
def _load_context_window(ref: ModelRef) -> ContextLimit:
    return ContextLimit(ref)  # its tokenizer is loaded once for all readings


def make_chunk_nll_requests(texts: Sequence[str]) -> list[Request]:
    """Return requests for context-free features of chunks: NLL and entropy of the tokens of a chunk, read by itself.

    Such a prompt has no layout, so the key of a row is the text of the chunk, independent of the question for which it
    was
    retrieved: `FeatureStore(model, settings).read(make_chunk_nll_requests(texts))` computes a chunk once.

    Args:
        texts: Texts of the chunks.

    Returns:
        One request per chunk.
    """
    return [Request((Segment("chunk", text),), NLL(("chunk",)), f"chunk {text[:40]!r}") for text in texts]
