"""From interactions to the probe's input, and from chunks of the knowledge base to what depends on them alone.

A prompt that does not fit the base model's window is refused, or loses its lowest-ranked chunks, as `llm.too_long`
says, before its key is made: the cache holds what was really read.
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
from abstain.llm.engine.loading import ModelRef, read_depth, require_layer, resolve
from abstain.llm.engine.prompts import Pass, Segment, load_layout
from abstain.llm.engine.requests import NLL, Ask, Generate, HiddenStates, Request
from abstain.llm.engine.tokenization import ContextWindow
from abstain.llm.features.cache import CacheNamespace, FeatureCache
from abstain.llm.features.compute import FeatureStore, Progress
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.features.shard_job import JobStats, ShardJob, ShardRunner, row_key


@dataclass(frozen=True)
class Prepared:
    """What is asked of the base model about one interaction; `dropped` of its chunks did not fit."""

    request: Request
    dropped: int = 0


@dataclass(frozen=True)
class UnreadableRow:
    """An interaction that the base model cannot read, and why."""

    reason: str


@dataclass(frozen=True)
class FeatureSource:
    """One reading of answered questions on this machine: where its results are kept, how to run it.

    Without a `reading` of its own, what the probe listens to: the states of answer and EOS at `params.layer`.
    """

    params: LLMParams
    settings: Settings
    reading: FeatureRequest | None = None

    @cached_property
    def _reading(self) -> FeatureRequest:
        return self.reading or FeatureRequest(HiddenStates(self.params.layer, self.params.site))

    @property
    def ask(self) -> Ask:
        return self._reading.ask

    @cached_property
    def rows(self) -> FeatureStore:
        return FeatureStore(self.params.model, self.settings)

    @cached_property
    def _ref(self) -> ModelRef:
        return resolve(self.params.model, self.settings)

    @cached_property
    def _window(self) -> ContextWindow:
        return _window(self._ref)

    @cached_property
    def _reader(self) -> FeatureCache:
        """For a service that asks often: what was there when it first asked is enough."""
        return self.rows.cache(self.ask)

    def space(self) -> CacheNamespace:
        """The cache space of these parameters. Raises `AbstainError` where the base model is not to be found."""
        return self.rows.space(self.ask)

    def engine(self) -> Engine:
        """The base model, loaded once a process."""
        return self.rows.engine()

    def prepare(self, interaction: Interaction) -> Prepared | UnreadableRow:
        """The pass of an answered question (eq. 3 of the probe's paper), cut to the window as `llm.too_long` says."""
        return self._fit(self._reading, interaction, interaction.answer)

    def prepare_question(self, question: Question, ask: Generate) -> Prepared | UnreadableRow:
        """The pass of a question that is still to be answered, cut so that the answer fits the window too."""
        return self._fit(FeatureRequest(ask), question, None)

    def continued(self, prompt: Pass, answer: str) -> Pass:
        """`prompt` with an answer, and what the layout puts after it."""
        whole = load_layout(self.params.layout).render("", [], answer)
        return (*prompt, *whole[[segment.name for segment in whole].index("answer") :])

    def requests(self, interactions: Sequence[Interaction]) -> _Asked:
        """What is asked about `interactions`, made when it is looked at.

        Raises `AbstainError` where the base model has no such layer: here, and not when the first shard gets there.
        """
        if isinstance(self.ask, HiddenStates):
            require_layer(self.ask.layer, self._ref, read_depth(self._ref))
        return _Asked(self, interactions)

    def keys(self, interactions: Sequence[Interaction]) -> list[str | None]:
        """The cache key of every interaction; None for one that is refused."""
        prepared = map(self.prepare, interactions)
        return [row_key(p.request) if isinstance(p, Prepared) else None for p in prepared]

    def missing(self, interactions: Sequence[Interaction]) -> int:
        """How many different rows of `interactions` would need a forward pass."""
        return self.rows.missing(self.requests(interactions))

    def shards(self, interactions: Sequence[Interaction]) -> Iterator[ShardJob]:
        """What the cache lacks of `interactions`, cut into shards."""
        return self.rows.shards(self.requests(interactions))

    def compute_missing(
        self,
        interactions: Sequence[Interaction],
        progress: Progress = lambda done, total: None,
        runner: ShardRunner | None = None,
    ) -> JobStats:
        """Compute what the cache lacks of `interactions`, and what that cost: as `FeatureStore.compute_missing`."""
        return self.rows.compute_missing(self.requests(interactions), progress, runner)

    def read(self, interactions: Sequence[Interaction]) -> Iterator[tuple[int, Tensor]]:
        """`(index, result)` of every interaction that is not refused; without a reading of its own that is S_in of the
        probe's paper (eq. 5): the states of answer and EOS, (L + 1, d)."""
        return self.rows.read(self.requests(interactions))

    def save(self, interactions: Sequence[Interaction], file: Path) -> None:
        """Write the states of `interactions` to `file` (table.py), in order; of a refused one, none."""
        cache = self.rows.cache(self.ask)
        kind = cache.width_dtype()
        assert kind is not None, "fill first"
        lengths = np.zeros(len(interactions), np.int64)
        known = [(at, key) for at, key in enumerate(self.keys(interactions)) if key]
        lengths[[at for at, _ in known]] = cache.lengths(key for _, key in known)
        write_table(file, lengths.tolist(), *kind, self.read(interactions), self.space().model)

    def states(self, interactions: Sequence[Interaction]) -> list[Tensor | UnreadableRow]:
        """S_in of every interaction, in order, for a few of them: what is computed is not kept in the cache."""
        prepared = [self.prepare(interaction) for interaction in interactions]
        requests = {row_key(p.request): p.request for p in prepared if isinstance(p, Prepared)}
        rows = dict(self._reader.read(list(requests)))
        if lacking := {key: request for key, request in requests.items() if key not in rows}:
            rows |= {key: row for key, row in self.engine().run(lacking) if isinstance(row, Tensor)}
        return [rows[row_key(p.request)] if isinstance(p, Prepared) else p for p in prepared]

    def _fit(
        self, reading: FeatureRequest, asked: Question | Interaction, answer: str | None
    ) -> Prepared | UnreadableRow:
        texts = reading.contexts(asked)
        for dropped in range(len(texts) + 1 if self.params.too_long == "drop_chunks" else 1):
            pass_ = reading.render(self.params.layout, asked.question, texts[: len(texts) - dropped], answer)
            excess = self._window.excess(pass_, reading.generated)
            if not excess:
                return Prepared(Request(pass_, reading.ask, f"interaction {asked.interaction_id}"), dropped)
        return UnreadableRow(excess)


class _Asked:
    """The requests of interactions, made when they are looked at; None for a refused one."""

    def __init__(self, source: FeatureSource, interactions: Sequence[Interaction]) -> None:
        self._source, self._interactions = source, interactions

    def __len__(self) -> int:
        return len(self._interactions)

    def __getitem__(self, at: int, /) -> Request | None:
        prepared = self._source.prepare(self._interactions[at])
        return prepared.request if isinstance(prepared, Prepared) else None


@lru_cache(maxsize=4)
def _window(ref: ModelRef) -> ContextWindow:
    return ContextWindow(ref)  # its tokenizer is loaded once for all readings


def chunk_nll(texts: Sequence[str]) -> list[Request]:
    """What depends on a chunk alone: NLL and entropy of its tokens, read by themselves.

    No layout is in such a pass, so its row is found by the chunk's text, in whatever context and for whatever
    question the chunk was retrieved: `FeatureStore(model, settings).read(chunk_nll(texts))` computes a chunk once.
    """
    return [Request((Segment("chunk", text),), NLL(("chunk",)), f"chunk {text[:40]!r}") for text in texts]
