"""Results of requests to the base model: read from the cache, and computed where they are missing.

Notes:

* Requests may be built on access: only the keys of all answers are in memory, never all passes.
* Shards are cut in an order that puts passes with a common prefix together, so that the prefix is computed once; a
  shard's content depends only on which rows are missing.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.device import choose_device, choose_dtype
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.loading import find_model, load_tokenizer
from abstain.llm.engine.prefix_tree import distinct_tokens
from abstain.llm.engine.requests import ConstrainedGenerate, Generate, Operation, Request, get_prompt_segments
from abstain.llm.engine.tokenization import encode_prompt
from abstain.llm.features.cache import CacheNamespace, FeatureCache
from abstain.llm.features.shard_job import SHARD_ROWS, JobStats, LocalRunner, ShardJob, ShardRunner, engine_for, row_key

ATTEMPTS = 3

OnProgress = Callable[[int, int], None]
COUNTED_SHARDS = 32
BLOCK = 128
"""Characters of a pass by which common prefixes are found when passes are put in order."""


class RequestList(Protocol):
    """Requests by index; None for a row that cannot be requested, which has no key and no result."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: int, /) -> Request | None: ...


@dataclass(frozen=True)
class FeatureStore:
    """One base model, as `llm.model` names it, and the cache of its results."""

    model: str
    settings: Settings

    def get_namespace(self, ask: Operation) -> CacheNamespace:
        """The cache space of `ask`. Raises `AbstainError` where the base model is not found."""
        return self._work(()).space(ask)

    def cache(self, ask: Operation) -> FeatureCache:
        return FeatureCache(self.settings.features, self.get_namespace(ask))

    def engine(self) -> Engine:
        """The base model, loaded once a process. Raises `AbstainError` for one that can only perturb contexts."""
        engine = engine_for(self._work(()), self.settings)
        if not isinstance(engine, Engine):
            raise AbstainError(
                Code.MODEL_UNSUITABLE, f"{self.model} is no causal language model, as a base model is: change llm.model"
            )
        return engine

    def compute_uncached(self, requests: RequestList) -> None:
        """Compute `requests` without reading or writing the cache, as a service does for one-off answers."""
        asked = (requests[at] for at in range(len(requests)))
        numbered = {str(at): request for at, request in enumerate(filter(None, asked))}
        for _ in engine_for(self._work(()), self.settings).run(numbered):
            pass

    def missing(self, requests: RequestList) -> int:
        """The number of distinct rows of `requests` that would need a forward pass."""
        return len(self._uncached(requests))

    def missing_tokens(self, requests: RequestList) -> int:
        """The tokens that the missing rows of `requests` would have the base model read; no model is loaded.

        What passes of one shard have in common is read once. Of many shards, about `COUNTED_SHARDS` stand for all.
        """
        uncached = self._uncached(requests)
        step = max(1, len({beginning for beginning, _ in uncached}) // (SHARD_ROWS * COUNTED_SHARDS))
        tokens = shards = counted = 0
        for shards, shard in enumerate(self._cut(requests, uncached), 1):
            if (shards - 1) % step == 0:
                tokens += _tokens_of(shard, load_tokenizer(find_model(self.model, self.settings)))
                counted += 1
        return round(tokens * shards / max(counted, 1))

    def shards(self, requests: RequestList) -> Iterator[ShardJob]:
        """The missing rows of `requests`, cut into shards."""
        return self._cut(requests, self._uncached(requests))

    def compute_missing(
        self,
        requests: RequestList,
        progress: OnProgress = lambda done, total: None,
        runner: ShardRunner | None = None,
    ) -> JobStats:
        """Compute the missing rows of `requests`; the result is what that cost.

        Shards are written as they are done: after a kill, only unfinished ones are repeated. The base model is not
        loaded where nothing is missing.
        """
        uncached, cost = self._uncached(requests), JobStats(0, 0, 0)
        if uncached:
            progress(0, len(uncached))
            for done in (runner or LocalRunner(self.settings)).run(self._cut(requests, uncached)):
                cost += done
                progress(cost.rows, len(uncached))
        return cost

    def read(self, requests: RequestList) -> Iterator[tuple[int, Tensor]]:
        """`(index, row)` of every request, in the order in which they lie in the cache.

        Missing and damaged rows are computed first.
        """
        places: defaultdict[tuple[Operation, str], list[int]] = defaultdict(list)
        for at, (ask, key) in _keys(requests):
            places[ask, key].append(at)
        for _ in range(ATTEMPTS):
            if not places:
                return
            self.compute_missing(_RequestSubset(requests, [at[0] for at in places.values()]))
            for ask in {ask for ask, _ in places}:
                for key, row in self.cache(ask).read([key for of, key in places if of == ask]):
                    for at in places.pop((ask, key)):
                        yield at, row
        if places:
            raise AbstainError(
                Code.BAD_ARTIFACT,
                f"{len(places)} rows of {self.settings.features} were damaged again after they had been computed anew: "
                "check that disk, or set ABSTAIN_FEATURES to another",
            )

    def _uncached(self, requests: RequestList) -> list[tuple[bytes, int]]:
        """(beginning of the pass, index of the first request) for each missing row, in the order of beginnings."""
        first: dict[tuple[Operation, str], int] = {}
        for at, asked in _keys(requests):
            first.setdefault(asked, at)
        by_ask: defaultdict[Operation, list[str]] = defaultdict(list)
        for ask, key in first:
            by_ask[ask].append(key)
        missing = [first[ask, key] for ask, keys in by_ask.items() for key in self.cache(ask).missing(keys)]
        return sorted((_prefix_digest(requests[at]), at) for at in missing)

    def _cut(self, requests: RequestList, uncached: Sequence[tuple[bytes, int]]) -> Iterator[ShardJob]:
        """Shards of `SHARD_ROWS` passes, or up to twice that where it would part some that have most in common.

        All requests about one pass are in one shard, however many they are.
        """
        shard: list[int] = []
        passes, last = 0, b""
        for beginning, index in uncached:
            if beginning != last:
                full = passes >= SHARD_ROWS and not _share_prefix(last, beginning)
                if full or passes == 2 * SHARD_ROWS:
                    yield self._shard(requests, shard)
                    shard, passes = [], 0
                passes, last = passes + 1, beginning
            shard.append(index)
        if shard:
            yield self._shard(requests, shard)

    def _shard(self, requests: RequestList, indices: Sequence[int]) -> ShardJob:
        return self._work(tuple(request for at in indices if (request := requests[at])))

    def _work(self, requests: tuple[Request, ...]) -> ShardJob:
        return ShardJob(
            model=self.model,
            revision=str(find_model(self.model, self.settings)),
            dtype=str(choose_dtype(self.settings, choose_device(self.settings))).removeprefix("torch."),
            batch_tokens=self.settings.batch_tokens,
            requests=requests,
        )


class ConcatRequests:
    """The requests of several parts, one after the other: computed together, they share common prefixes."""

    def __init__(self, parts: Sequence[RequestList]) -> None:
        self._parts = [part for part in parts if len(part)]
        self._ends = list(itertools.accumulate(map(len, self._parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, at: int, /) -> Request | None:
        which = bisect.bisect_right(self._ends, range(len(self))[at])
        return self._parts[which][at - self._ends[which]]


class _RequestSubset:
    """Some of `requests`, built on access."""

    def __init__(self, requests: RequestList, indices: Sequence[int]) -> None:
        self._requests, self._indices = requests, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, at: int, /) -> Request | None:
        return self._requests[self._indices[at]]


def _tokens_of(shard: ShardJob, tokenizer: Any) -> int:
    passes = {get_prompt_segments(request) for request in shard.requests}
    written = sum(one.operation.max_new_tokens for one in shard.requests if isinstance(one.operation, Generate))
    written += sum(
        one.operation.beams * one.operation.max_new_tokens
        for one in shard.requests
        if isinstance(one.operation, ConstrainedGenerate)
    )
    return distinct_tokens([encode_prompt(tokenizer, pass_).ids for pass_ in passes]) + written


def _keys(requests: RequestList) -> Iterator[tuple[int, tuple[Operation, str]]]:
    for at in range(len(requests)):
        if request := requests[at]:
            yield at, (request.operation, row_key(request))


def _prefix_digest(request: Request | None) -> bytes:
    """Two bytes for each block of the text so far: texts with a common prefix are sorted together, in little memory."""
    assert request is not None
    text = "\0".join(segment.text for segment in request.prompt).encode()
    digest, marks = hashlib.sha256(), bytearray()
    for at in range(0, len(text), BLOCK):
        digest.update(text[at : at + BLOCK])
        marks += digest.digest()[:2]
    return bytes(marks)


def _share_prefix(one: bytes, other: bytes) -> bool:
    """Whether two beginnings have more than half in common."""
    half = 2 * (min(len(one), len(other)) // 4 + 1)
    return one[:half] == other[:half]
