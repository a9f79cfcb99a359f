"""A shard of work: rows that are computed together and written together, on this machine or on another.

Notes:

* A shard's content is fixed before it is computed, and each shard is computed by itself. So a row's neighbours, and
  with them the last bits of its numbers, do not depend on the runner: every runner writes the same bytes on one kind of
  hardware.
* A shard carries texts and names, no tensors: it is JSON that any host with the same base model and the
  same cache can work on. Its results are in the cache.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.device import choose_device
from abstain.llm.engine.engine import ENGINE_VERSION
from abstain.llm.engine.generation import GeneratedText
from abstain.llm.engine.loading import find_model, get_model_kind, load_model
from abstain.llm.engine.prompts import Segment
from abstain.llm.engine.requests import (
    NLL,
    ConstrainedGenerate,
    Generate,
    HiddenStates,
    NextTokenProbs,
    Operation,
    Perturb,
    Request,
    cut_to_operation,
)
from abstain.llm.features.cache import CacheNamespace, prompt_key, write_rows
from abstain.llm.features.file_store import FileStore
from abstain.llm.perturbation.engines import CausalEngine, PerturbationEngine

SHARD_ROWS = 64
OPERATION_TYPES: dict[str, Callable[..., Operation]] = {
    kind.__name__: kind for kind in (HiddenStates, NLL, NextTokenProbs, Generate, ConstrainedGenerate, Perturb)
}


@dataclass(frozen=True)
class ShardJob:
    """Requests to the base model `model` (as `llm.model` names it), whose found revision is `revision`, in `dtype`.

    `batch_tokens` is part of it: the size of a forward pass may decide the last bits of a result.
    """

    model: str
    revision: str
    dtype: str
    batch_tokens: int
    requests: tuple[Request, ...]

    def space(self, ask: Operation) -> CacheNamespace:
        """The cache space of the results of `ask`."""
        return CacheNamespace(self.revision, self.dtype, repr(ask), ENGINE_VERSION)

    @property
    def name(self) -> str:
        """Digest of everything in it: equal work, equal name."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:32]

    def to_json(self) -> str:
        asks = list(dict.fromkeys(request.operation for request in self.requests))
        rows = [
            [
                asks.index(request.operation),
                request.name,
                [list(asdict(segment).values()) for segment in request.prompt],
            ]
            for request in self.requests
        ]
        declared = [[type(ask).__name__, asdict(ask)] for ask in asks]
        return json.dumps({**asdict(self), "requests": rows, "asks": declared}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ShardJob:
        content: dict[str, Any] = json.loads(text)
        asks = [
            OPERATION_TYPES[kind](
                **{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
            )
            for kind, fields in content.pop("asks")
        ]
        rows = content.pop("requests")
        requests = tuple(
            Request(tuple(Segment(*segment) for segment in segments), asks[ask], name) for ask, name, segments in rows
        )
        return cls(**content, requests=requests)


@dataclass(frozen=True)
class JobStats:
    """The cost of a finished shard: rows, tokens of their passes, and tokens that were run through the base model."""

    rows: int
    pass_tokens: int
    forward_tokens: int

    def __add__(self, other: JobStats) -> JobStats:
        return JobStats(
            self.rows + other.rows,
            self.pass_tokens + other.pass_tokens,
            self.forward_tokens + other.forward_tokens,
        )


class ShardRunner(Protocol):
    """Computes shards, in this process or in others."""

    def run(self, shards: Iterable[ShardJob]) -> Iterator[JobStats]:
        """Yield what each shard cost once it is in the cache. Raises `AbstainError` where one cannot be computed."""


class LocalRunner:
    """Computes in this process, one shard after the other."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def run(self, shards: Iterable[ShardJob]) -> Iterator[JobStats]:
        for work in shards:
            yield compute_shard(work, self._settings)


def compute_shard(job: ShardJob, settings: Settings) -> JobStats:
    """Compute `work` and write its rows to the cache, a file for each ask."""
    engine = engine_for(job, settings)
    before = engine.stats.pass_tokens, engine.stats.forward_tokens
    requests = {str(at): request for at, request in enumerate(job.requests)}
    rows: defaultdict[Operation, dict[str, Tensor]] = defaultdict(dict)
    for at, result in engine.run(requests):
        row = result if isinstance(result, Tensor) else _steps(result, engine.loaded.tokenizer)
        rows[requests[at].operation][row_key(requests[at])] = row
    store = FileStore(settings.features)
    for ask, found in rows.items():
        write_rows(store, job.space(ask), dict(sorted(found.items())))
    return JobStats(len(requests), engine.stats.pass_tokens - before[0], engine.stats.forward_tokens - before[1])


def _steps(answers: list[GeneratedText], tokenizer: Any) -> Tensor:
    """The one answer of a `Generate`: its tokens and choices, without its states."""
    (answer,) = answers
    return answer.steps(tokenizer.eos_token_id)


def row_key(request: Request) -> str:
    """The key of a request's row in the space of its kind: the text up to the last segment that matters."""
    return prompt_key(cut_to_operation(request.prompt, request.operation))


def engine_for(work: ShardJob, settings: Settings) -> CausalEngine | PerturbationEngine:
    """The engine for the model of `work`, loaded once a process; for a model other than a causal LM, one that can only
    perturb.

    Raises `AbstainError` where this machine has another revision.
    """
    found = find_model(work.model, settings)
    if str(found) != work.revision:
        raise AbstainError(
            Code.VERSION_MISMATCH,
            f"the shard wants {work.revision}, but this machine has {found}: fetch that revision here",
        )
    return _engine(work.model, work.revision, work.dtype, work.batch_tokens, settings)


@lru_cache(maxsize=1)
def _engine(
    model: str, _revision: str, dtype: str, batch_tokens: int, settings: Settings
) -> CausalEngine | PerturbationEngine:
    loaded = load_model(find_model(model, settings), choose_device(settings), getattr(torch, dtype))
    loaded = replace(loaded, checks=settings.home.resolve() / "decoder-checks")
    kind = CausalEngine if get_model_kind(loaded.model.config) == "causal" else PerturbationEngine
    return kind(loaded, batch_tokens)
