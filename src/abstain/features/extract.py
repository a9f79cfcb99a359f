"""From interactions to the probe's input: compute what the cache lacks, read the rest.

Two decisions:

* Interactions are cut into shards in the order of their contexts, so that answers about the same chunks are computed
  together and what they share is computed once.
* A prompt that does not fit the base model's window is refused, or loses its lowest-ranked chunks, as `llm.too_long`
  says, before its key is made: the cache holds what was really read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
from torch import Tensor

from abstain.contracts import Interaction, Question
from abstain.errors import AbstainError
from abstain.features.cache import FeatureCache, Space
from abstain.features.table import write_table
from abstain.features.work import SHARD_ROWS, Done, LocalRunner, ShardRunner, ShardWork, engine_for, row_key
from abstain.llm.asks import Ask, Generate, Request, States
from abstain.llm.engine import Engine
from abstain.llm.layout import Layout, Pass, load_layout
from abstain.llm.loading import choose_device, choose_dtype, resolve
from abstain.llm.window import Window
from abstain.params import LLMParams
from abstain.settings import Settings

ATTEMPTS = 3

Progress = Callable[[int, int], None]


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
    def _layout(self) -> Layout:
        return load_layout(self.params.layout)

    @cached_property
    def _window(self) -> Window:
        return Window(resolve(self.params.model, self.settings))

    @cached_property
    def _reader(self) -> FeatureCache:
        """For a service that asks often: what was there when it first asked is enough."""
        return self.cache()

    def space(self) -> Space:
        """The cache space of these parameters. Raises `AbstainError` where the base model is not to be found."""
        return self._work([]).space(self.ask)

    def cache(self) -> FeatureCache:
        return FeatureCache(self.settings.features, self.space())

    def prepare(self, interaction: Interaction) -> Prepared | Refused:
        """The pass of an answered question (eq. 3 of the probe's paper), cut to the window as `llm.too_long` says."""
        return self._fit(interaction, interaction.answer, self.ask, 0)

    def prepare_question(self, question: Question, ask: Generate) -> Prepared | Refused:
        """The pass of a question that is still to be answered, cut so that the answer fits the window too."""
        return self._fit(question, None, ask, ask.max_new_tokens + 1)

    def _fit(self, asked: Question | Interaction, answer: str | None, ask: Ask, more: int) -> Prepared | Refused:
        texts = [context.text for context in asked.contexts]
        for dropped in range(len(texts) + 1 if self.params.too_long == "drop_chunks" else 1):
            pass_ = self._layout.render(asked.question, texts[: len(texts) - dropped], answer)
            excess = self._window.excess(pass_, more)
            if not excess:
                return Prepared(Request(pass_, ask, f"interaction {asked.interaction_id}"), dropped)
        return Refused(excess)

    def continued(self, prompt: Pass, answer: str) -> Pass:
        """`prompt` with an answer, and what the layout puts after it."""
        whole = self._layout.render("", [], answer)
        return (*prompt, *whole[[segment.name for segment in whole].index("answer") :])

    def keys(self, interactions: Sequence[Interaction]) -> list[str | None]:
        """The cache key of every interaction; None for one that is refused."""
        return [row_key(p.request) if isinstance(p, Prepared) else None for p in map(self.prepare, interactions)]

    def missing(self, interactions: Sequence[Interaction]) -> int:
        """How many different rows of `interactions` would need a forward pass."""
        return len(self.cache().missing(key for key in self.keys(interactions) if key))

    def shards(self, interactions: Sequence[Interaction]) -> Iterator[ShardWork]:
        """What the cache lacks of `interactions`, cut into shards; passes are rendered as they are needed."""
        keys = self.keys(interactions)
        missing = set(self.cache().missing(key for key in keys if key))
        first = {key: at for at, key in reversed(list(enumerate(keys))) if key in missing}
        order = sorted(first.values(), key=lambda at: _place(interactions[at]))
        requests = (p.request for at in order if isinstance(p := self.prepare(interactions[at]), Prepared))
        while some := list(islice(requests, SHARD_ROWS)):
            yield self._work(some)

    def fill(
        self,
        interactions: Sequence[Interaction],
        progress: Progress = lambda done, total: None,
        runner: ShardRunner | None = None,
    ) -> Done:
        """Compute what the cache lacks of `interactions`, and what that cost.

        Shards are written as they are done: a run that is killed repeats those that were under way. The base model is
        not even loaded where nothing is missing.
        """
        total = self.missing(interactions)
        cost = Done(0, 0, 0)
        if total:
            progress(0, total)
            for done in (runner or LocalRunner(self.settings)).run(self.shards(interactions)):
                cost += done
                progress(cost.rows, total)
        return cost

    def read(self, interactions: Sequence[Interaction]) -> Iterator[tuple[int, Tensor]]:
        """`(index, S_in)` of every interaction that is not refused (eq. 5): states of answer and EOS, (L + 1, d).

        In the order in which they lie in the cache; what is missing, or turns out to be damaged, is computed first.
        """
        places: defaultdict[str, list[int]] = defaultdict(list)
        for at, key in enumerate(self.keys(interactions)):
            if key:
                places[key].append(at)
        for _ in range(ATTEMPTS):
            if not places:
                return
            self.fill([interactions[at[0]] for at in places.values()])
            for key, row in self.cache().read(list(places)):
                for at in places.pop(key):
                    yield at, row
        if places:
            raise AbstainError(
                f"{len(places)} rows of {self.settings.features} were damaged again after they had been computed anew: "
                "check that disk, or set ABSTAIN_FEATURES to another"
            )

    def save(self, interactions: Sequence[Interaction], file: Path) -> None:
        """Write the states of `interactions` to `file` (table.py), in order; of a refused one, none."""
        cache = self.cache()
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

    def engine(self) -> Engine:
        """The base model, loaded once a process."""
        work = self._work([])
        return engine_for(work.model, work.revision, work.dtype, self.settings)

    def _work(self, requests: Sequence[Request]) -> ShardWork:
        return ShardWork(
            model=self.params.model,
            revision=str(resolve(self.params.model, self.settings)),
            dtype=str(choose_dtype(self.settings, choose_device(self.settings))).removeprefix("torch."),
            requests=tuple(requests),
        )


def _place(interaction: Interaction) -> tuple[tuple[str, ...], str, str]:
    return tuple(context.text for context in interaction.contexts), interaction.question, interaction.answer
