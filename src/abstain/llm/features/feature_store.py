"""Results of requests to the base model: read from the cache, and computed if they are missing.

Notes:

* Requests may be built on access: only the keys of all answers are in memory, never all prompts.
* Shards are cut in an order that puts prompts with a common prefix together, so the prefix is computed once. The
  content of a shard depends only on which rows are missing.
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
from abstain.llm.engine.prefix_tree import count_distinct_tokens
from abstain.llm.engine.requests import ConstrainedGenerate, Generate, Operation, Request, get_prompt_segments
from abstain.llm.engine.tokenization import encode_prompt
from abstain.llm.features.cache import CacheNamespace, FeatureCache
from abstain.llm.features.shard_job import (
    SHARD_ROWS,
    JobStats,
    LocalRunner,
    ShardJob,
    ShardRunner,
    load_job_engine,
    row_key,
)

ATTEMPTS = 3

OnProgress = Callable[[int, int], None]
COUNTED_SHARDS = 32
BLOCK = 128
"""Block length, in characters, of the digests by which prompts are sorted so that common prefixes meet."""


class RequestList(Protocol):
    """Requests by index; None for a row that cannot be requested, which has no key and no result."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Request | None: ...


@dataclass(frozen=True)
class FeatureStore:
    """A base model and the cache of its results.

    Attributes:
        model: The base model, named as in `llm.model`.
        settings: Settings of this machine.
    """

    model: str
    settings: Settings

    def get_namespace(self, operation: Operation) -> CacheNamespace:
        """Return the cache namespace of an operation.

        Args:
            operation: Computation of the base model.

        Returns:
            The namespace.

        Raises:
            AbstainError: The base model is not found.
        """
        return self._make_job(()).get_namespace(operation)

    def open_cache(self, operation: Operation) -> FeatureCache:
        """Open the cache of the results of `operation`."""
        return FeatureCache(self.settings.features, self.get_namespace(operation))

    def load_engine(self) -> Engine:
        """Return the base model, loaded once per process.

        Raises:
            AbstainError: The model can only perturb contexts.
        """
        engine = load_job_engine(self._make_job(()), self.settings)
        if not isinstance(engine, Engine):
            raise AbstainError(
                Code.MODEL_UNSUITABLE, f"{self.model} is no causal language model, as a base model is: change llm.model"
            )
        return engine

    def compute_uncached(self, requests: RequestList) -> None:
        """Compute `requests` without reading or writing the cache, as a service does for one-off answers."""
        possible_requests = (requests[index] for index in range(len(requests)))
        requests_by_name = {str(i): request for i, request in enumerate(filter(None, possible_requests))}
        for _ in load_job_engine(self._make_job(()), self.settings).run(requests_by_name):
            pass

    def count_missing(self, requests: RequestList) -> int:
        """Return the number of distinct rows of `requests` that need a forward pass."""
        return len(self._find_uncached(requests))

    def count_missing_tokens(self, requests: RequestList) -> int:
        """Estimate the tokens that the base model would read for the missing rows; no model is loaded.

        Common prefixes of the prompts of one shard count once. If there are many shards, about `COUNTED_SHARDS` of them
        stand for all.

        Args:
            requests: Requests by index; None entries are skipped.

        Returns:
            The number of tokens.
        """
        uncached = self._find_uncached(requests)
        step = max(1, len({prefix for prefix, _ in uncached}) // (SHARD_ROWS * COUNTED_SHARDS))
        tokens = n_shards = n_counted = 0
        for n_shards, shard in enumerate(self._cut_shards(requests, uncached), 1):
            if (n_shards - 1) % step == 0:
                tokens += count_tokens(shard.requests, load_tokenizer(find_model(self.model, self.settings)))
                n_counted += 1
        return round(tokens * n_shards / max(n_counted, 1))

    def iter_shards(self, requests: RequestList) -> Iterator[ShardJob]:
        """Return the missing rows of `requests`, cut into shards."""
        return self._cut_shards(requests, self._find_uncached(requests))

    def compute_missing(
        self,
        requests: RequestList,
        on_progress: OnProgress = lambda done, total: None,
        runner: ShardRunner | None = None,
    ) -> JobStats:
        """Compute all requests that are not in the cache and write them to it.

        Shards are written as they finish, so an interrupted run only repeats unfinished shards. The base model is not
        loaded if nothing is missing.

        Args:
            requests: Requests by index; None entries are skipped.
            on_progress: Called with (computed rows, missing rows).
            runner: Where shards are computed; None computes them in this process.

        Returns:
            Rows, prompt tokens and forward tokens that were computed.
        """
        uncached, stats = self._find_uncached(requests), JobStats(0, 0, 0)
        if uncached:
            on_progress(0, len(uncached))
            for shard_stats in (runner or LocalRunner(self.settings)).run(self._cut_shards(requests, uncached)):
                stats += shard_stats
                on_progress(stats.rows, len(uncached))
        return stats

    def read(self, requests: RequestList) -> Iterator[tuple[int, Tensor]]:
        """Yield the result of each request; missing and damaged rows are computed first.

        Args:
            requests: Requests by index; None entries are skipped.

        Yields:
            Index of the request and its row, in the order of the rows in the cache.

        Raises:
            AbstainError: Rows were damaged again after they had been computed anew.
        """
        indices_by_row: defaultdict[tuple[Operation, str], list[int]] = defaultdict(list)
        for index, (operation, key) in _iter_row_ids(requests):
            indices_by_row[operation, key].append(index)
        for _ in range(ATTEMPTS):
            if not indices_by_row:
                return
            self.compute_missing(_RequestSubset(requests, [indices[0] for indices in indices_by_row.values()]))
            for operation in {operation for operation, _ in indices_by_row}:
                keys = [key for row_operation, key in indices_by_row if row_operation == operation]
                for key, row in self.open_cache(operation).read(keys):
                    for index in indices_by_row.pop((operation, key)):
                        yield index, row
        if indices_by_row:
            raise AbstainError(
                Code.BAD_ARTIFACT,
                f"{len(indices_by_row)} rows of {self.settings.features} were damaged again after they had been "
                "computed anew: "
                "check that disk, or set ABSTAIN_FEATURES to another",
            )

    def _find_uncached(self, requests: RequestList) -> list[tuple[bytes, int]]:
        """Return (prefix digest, index of the first request) of each missing row, sorted by digest."""
        first_index: dict[tuple[Operation, str], int] = {}
        for index, row_id in _iter_row_ids(requests):
            first_index.setdefault(row_id, index)
        keys_by_operation: defaultdict[Operation, list[str]] = defaultdict(list)
        for operation, key in first_index:
            keys_by_operation[operation].append(key)
        missing = [
            first_index[operation, key]
            for operation, keys in keys_by_operation.items()
            for key in self.open_cache(operation).find_missing(keys)
        ]
        return sorted((_digest_prefix(requests[i]), i) for i in missing)

    def _cut_shards(self, requests: RequestList, uncached: Sequence[tuple[bytes, int]]) -> Iterator[ShardJob]:
        """Yield shards of `SHARD_ROWS` prompts, or up to twice as many to keep prompts with a common prefix together.

        All requests about one prompt are in one shard, whatever their number.
        """
        indices: list[int] = []
        n_prompts, previous_prefix = 0, b""
        for prefix, index in uncached:
            if prefix != previous_prefix:
                is_full = n_prompts >= SHARD_ROWS and not _has_common_prefix(previous_prefix, prefix)
                if is_full or n_prompts == 2 * SHARD_ROWS:
                    yield self._make_shard_job(requests, indices)
                    indices, n_prompts = [], 0
                n_prompts, previous_prefix = n_prompts + 1, prefix
            indices.append(index)
        if indices:
            yield self._make_shard_job(requests, indices)

    def _make_shard_job(self, requests: RequestList, indices: Sequence[int]) -> ShardJob:
        return self._make_job(tuple(request for index in indices if (request := requests[index])))

    def _make_job(self, requests: tuple[Request, ...]) -> ShardJob:
        return ShardJob(
            model=self.model,
            revision=str(find_model(self.model, self.settings)),
            dtype=str(choose_dtype(self.settings, choose_device(self.settings))).removeprefix("torch."),
            batch_tokens=self.settings.batch_tokens,
            requests=requests,
        )


class ConcatRequests:
    """Concatenation of request lists: computed together, they share common prefixes.

    Args:
        request_lists: The lists, in order.
    """

    def __init__(self, request_lists: Sequence[RequestList]) -> None:
        self._request_lists = [requests for requests in request_lists if len(requests)]
        self._ends = list(itertools.accumulate(map(len, self._request_lists)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int, /) -> Request | None:
        list_index = bisect.bisect_right(self._ends, range(len(self))[index])
        return self._request_lists[list_index][index - self._ends[list_index]]


class _RequestSubset:
    """Some of `requests`, built on access."""

    def __init__(self, requests: RequestList, indices: Sequence[int]) -> None:
        self._requests, self._indices = requests, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int, /) -> Request | None:
        return self._requests[self._indices[index]]


def count_tokens(requests: Sequence[Request], tokenizer: Any) -> int:
    """Return the tokens that are read and generated for `requests` together; common prefixes count once."""
    prompts = {get_prompt_segments(request) for request in requests}
    generated_tokens = 0
    for operation in (request.operation for request in requests):
        if isinstance(operation, Generate | ConstrainedGenerate):
            beams = operation.beams if isinstance(operation, ConstrainedGenerate) else 1
            generated_tokens += beams * operation.max_new_tokens
    return count_distinct_tokens([encode_prompt(tokenizer, prompt).ids for prompt in prompts]) + generated_tokens


def _iter_row_ids(requests: RequestList) -> Iterator[tuple[int, tuple[Operation, str]]]:
    for index in range(len(requests)):
        if request := requests[index]:
            yield index, (request.operation, row_key(request))


def _digest_prefix(request: Request | None) -> bytes:
    """Return two bytes per block of the text so far, by which texts with a common prefix are sorted together.

    This takes little memory.
    """
    assert request is not None
    text = "\0".join(segment.text for segment in request.prompt).encode()
    digest, digests = hashlib.sha256(), bytearray()
    for start in range(0, len(text), BLOCK):
        digest.update(text[start : start + BLOCK])
        digests += digest.digest()[:2]
    return bytes(digests)


def _has_common_prefix(first: bytes, second: bytes) -> bool:
    """Return whether two prefix digests share more than half of the shorter one."""
    half = 2 * (min(len(first), len(second)) // 4 + 1)
    return first[:half] == second[:half]
