"""Rows of what the base model was asked: computed where the cache lacks them, read where it has them.

Two decisions:

* Requests are a sequence that may make its items when they are looked at: the texts of all answers are never in
  memory, only their keys are.
* They are cut into shards in the order of their texts, so that passes that begin alike are computed together and what
  they share is computed once, and what each shard holds depends on nothing but what is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from abstain.errors import AbstainError
from abstain.features.cache import FeatureCache, Space
from abstain.features.work import SHARD_ROWS, Done, LocalRunner, ShardRunner, ShardWork, engine_for, row_key
from abstain.llm.asks import Ask, Request
from abstain.llm.engine import Engine
from abstain.llm.loading import choose_device, choose_dtype, resolve
from abstain.settings import Settings

ATTEMPTS = 3

Progress = Callable[[int, int], None]
Requests = Sequence[Request | None]
"""None stands for a row that cannot be asked for; it has no key and no result."""


@dataclass(frozen=True)
class RowSource:
    """One base model, as `llm.model` names it, and the cache of what it was asked."""

    model: str
    settings: Settings

    def space(self, ask: Ask) -> Space:
        """The cache space of `ask`. Raises `AbstainError` where the base model is not to be found."""
        return self._work(()).space(ask)

    def cache(self, ask: Ask) -> FeatureCache:
        return FeatureCache(self.settings.features, self.space(ask))

    def engine(self) -> Engine:
        """The base model, loaded once a process."""
        return engine_for(self._work(()), self.settings)

    def missing(self, requests: Requests) -> int:
        """How many different rows of `requests` would need a forward pass."""
        return len(self._lacking(requests))

    def shards(self, requests: Requests) -> Iterator[ShardWork]:
        """What the cache lacks of `requests`, cut into shards."""
        order = self._lacking(requests)
        for at in range(0, len(order), SHARD_ROWS):
            some = (requests[index] for index in order[at : at + SHARD_ROWS])
            yield self._work(tuple(request for request in some if request))

    def fill(
        self,
        requests: Requests,
        progress: Progress = lambda done, total: None,
        runner: ShardRunner | None = None,
    ) -> Done:
        """Compute what the cache lacks of `requests`, and what that cost.

        Shards are written as they are done: a run that is killed repeats those that were under way. The base model is
        not even loaded where nothing is missing.
        """
        total, cost = self.missing(requests), Done(0, 0, 0)
        if total:
            progress(0, total)
            for done in (runner or LocalRunner(self.settings)).run(self.shards(requests)):
                cost += done
                progress(cost.rows, total)
        return cost

    def read(self, requests: Requests) -> Iterator[tuple[int, Tensor]]:
        """`(index, row)` of every request, in the order in which they lie in the cache.

        What is missing, or turns out to be damaged, is computed first.
        """
        places: defaultdict[tuple[Ask, str], list[int]] = defaultdict(list)
        for at, (ask, key) in _keys(requests):
            places[ask, key].append(at)
        for _ in range(ATTEMPTS):
            if not places:
                return
            self.fill(_Part(requests, [at[0] for at in places.values()]))
            for ask in {ask for ask, _ in places}:
                for key, row in self.cache(ask).read([key for of, key in places if of == ask]):
                    for at in places.pop((ask, key)):
                        yield at, row
        if places:
            raise AbstainError(
                f"{len(places)} rows of {self.settings.features} were damaged again after they had been computed anew: "
                "check that disk, or set ABSTAIN_FEATURES to another"
            )

    def _lacking(self, requests: Requests) -> list[int]:
        """Where each missing row is asked for first, in the order of the texts."""
        first: dict[tuple[Ask, str], int] = {}
        for at, asked in _keys(requests):
            first.setdefault(asked, at)
        by_ask: defaultdict[Ask, list[str]] = defaultdict(list)
        for ask, key in first:
            by_ask[ask].append(key)
        missing = [first[ask, key] for ask, keys in by_ask.items() for key in self.cache(ask).missing(keys)]
        return sorted(missing, key=lambda at: _text(requests[at]))

    def _work(self, requests: tuple[Request, ...]) -> ShardWork:
        return ShardWork(
            model=self.model,
            revision=str(resolve(self.model, self.settings)),
            dtype=str(choose_dtype(self.settings, choose_device(self.settings))).removeprefix("torch."),
            batch_tokens=self.settings.batch_tokens,
            requests=requests,
        )


class _Part(Sequence[Request | None]):
    """Some of `requests`, made when they are looked at."""

    def __init__(self, requests: Requests, indices: Sequence[int]) -> None:
        self._requests, self._indices = requests, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, at):  # type: ignore[no-untyped-def]
        return self._requests[self._indices[at]]


def _keys(requests: Requests) -> Iterator[tuple[int, tuple[Ask, str]]]:
    for at, request in enumerate(requests):
        if request:
            yield at, (request.ask, row_key(request))


def _text(request: Request | None) -> tuple[Any, ...]:
    assert request is not None
    return (*(segment.text for segment in request.pass_), repr(request.ask))
