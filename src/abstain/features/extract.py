"""From interactions to the probe's input, and from chunks of the knowledge base to what depends on them alone.

A prompt that does not fit the base model's window is refused, or loses its lowest-ranked chunks, as `llm.too_long`
says, before its key is made: the cache holds what was really read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from torch import Tensor

from abstain.contracts import Interaction, Question
from abstain.features.cache import FeatureCache, Space
from abstain.features.rows import Progress, RowSource
from abstain.features.table import write_table
from abstain.features.work import Done, ShardRunner, ShardWork, row_key
from abstain.llm.asks import NLL, Ask, Generate, Request, States
from abstain.llm.engine import Engine
from abstain.llm.layout import Layout, Pass, Segment, load_layout
from abstain.llm.loading import resolve
from abstain.llm.window import Window
from abstain.params import LLMParams
from abstain.settings import Settings


@dataclass(frozen=True)
class Prepared:
    """What is asked of the base model about one interaction; `dropped` of its chunks did not fit."""

    request: Request
    dropped: int = 0


@dataclass(frozen=True)
class Refused:
    """An interaction that the base model cannot read, and why."""

    reason: str


@dataclass(frozen=True)
class FeatureSource:
    """What the probe listens to, resolved on this machine: the ask, where its results are kept, how to run it."""

    params: LLMParams
    settings: Settings

    @cached_property
    def ask(self) -> States:
        return States(self.params.layer, self.params.site)

    @cached_property
    def rows(self) -> RowSource:
        return RowSource(self.params.model, self.settings)

    @cached_property
    def _layout(self) -> Layout:
        return load_layout(self.params.layout)

    @cached_property
    def _window(self) -> Window:
        return Window(resolve(self.params.model, self.settings))

    @cached_property
    def _reader(self) -> FeatureCache:
        """For a service that asks often: what was there when it first asked is enough."""
        return self.rows.cache(self.ask)

    def space(self) -> Space:
        """The cache space of these parameters. Raises `AbstainError` where the base model is not to be found."""
        return self.rows.space(self.ask)

    def engine(self) -> Engine:
        """The base model, loaded once a process."""
        return self.rows.engine()

    def prepare(self, interaction: Interaction) -> Prepared | Refused:
        """The pass of an answered question (eq. 3 of the probe's paper), cut to the window as `llm.too_long` says."""
        return self._fit(interaction, interaction.answer, self.ask, 0)

    def prepare_question(self, question: Question, ask: Generate) -> Prepared | Refused:
        """The pass of a question that is still to be answered, cut so that the answer fits the window too."""
        return self._fit(question, None, ask, ask.max_new_tokens + 1)

    def continued(self, prompt: Pass, answer: str) -> Pass:
        """`prompt` with an answer, and what the layout puts after it."""
        whole = self._layout.render("", [], answer)
        return (*prompt, *whole[[segment.name for segment in whole].index("answer") :])

    def keys(self, interactions: Sequence[Interaction]) -> list[str | None]:
        """The cache key of every interaction; None for one that is refused."""
        prepared = map(self.prepare, interactions)
        return [row_key(p.request) if isinstance(p, Prepared) else None for p in prepared]

    def missing(self, interactions: Sequence[Interaction]) -> int:
        """How many different rows of `interactions` would need a forward pass."""
        return self.rows.missing(_Asked(self, interactions))

    def shards(self, interactions: Sequence[Interaction]) -> Iterator[ShardWork]:
        """What the cache lacks of `interactions`, cut into shards."""
        return self.rows.shards(_Asked(self, interactions))

    def fill(
        self,
        interactions: Sequence[Interaction],
        progress: Progress = lambda done, total: None,
        runner: ShardRunner | None = None,
    ) -> Done:
        """Compute what the cache lacks of `interactions`, and what that cost: as `RowSource.fill`."""
        return self.rows.fill(_Asked(self, interactions), progress, runner)

    def read(self, interactions: Sequence[Interaction]) -> Iterator[tuple[int, Tensor]]:
        """`(index, S_in)` of every interaction that is not refused (eq. 5): states of answer and EOS, (L + 1, d)."""
        return self.rows.read(_Asked(self, interactions))

    def save(self, interactions: Sequence[Interaction], file: Path) -> None:
        """Write the states of `interactions` to `file` (table.py), in order; of a refused one, none."""
        cache = self.rows.cache(self.ask)
        kind = cache.width_dtype()
        assert kind is not None, "fill first"
        lengths = np.zeros(len(interactions), np.int64)
        known = [(at, key) for at, key in enumerate(self.keys(interactions)) if key]
        lengths[[at for at, _ in known]] = cache.lengths(key for _, key in known)
        write_table(file, lengths.tolist(), *kind, self.read(interactions), self.space().model)

    def states(self, interactions: Sequence[Interaction]) -> list[Tensor | Refused]:
        """S_in of every interaction, in order, for a few of them: what is computed is not kept in the cache."""
        prepared = [self.prepare(interaction) for interaction in interactions]
        requests = {row_key(p.request): p.request for p in prepared if isinstance(p, Prepared)}
        rows = dict(self._reader.read(list(requests)))
        if lacking := {key: request for key, request in requests.items() if key not in rows}:
            rows |= {key: row for key, row in self.engine().run(lacking) if isinstance(row, Tensor)}
        return [rows[row_key(p.request)] if isinstance(p, Prepared) else p for p in prepared]

    def _fit(self, asked: Question | Interaction, answer: str | None, ask: Ask, more: int) -> Prepared | Refused:
        texts = [context.text for context in asked.contexts]
        for dropped in range(len(texts) + 1 if self.params.too_long == "drop_chunks" else 1):
            pass_ = self._layout.render(asked.question, texts[: len(texts) - dropped], answer)
            excess = self._window.excess(pass_, more)
            if not excess:
                return Prepared(Request(pass_, ask, f"interaction {asked.interaction_id}"), dropped)
        return Refused(excess)


class _Asked:
    """The requests of interactions, made when they are looked at; None for a refused one."""

    def __init__(self, source: FeatureSource, interactions: Sequence[Interaction]) -> None:
        self._source, self._interactions = source, interactions

    def __len__(self) -> int:
        return len(self._interactions)

    def __getitem__(self, at: int, /) -> Request | None:
        prepared = self._source.prepare(self._interactions[at])
        return prepared.request if isinstance(prepared, Prepared) else None


def chunk_nll(texts: Sequence[str]) -> list[Request]:
    """What depends on a chunk alone: NLL and entropy of its tokens, read by themselves.

    No layout is in such a pass, so its row is found by the chunk's text, in whatever context and for whatever
    question the chunk was retrieved: `RowSource(model, settings).read(chunk_nll(texts))` computes a chunk once.
    """
    return [Request((Segment("chunk", text),), NLL(("chunk",)), f"chunk {text[:40]!r}") for text in texts]
