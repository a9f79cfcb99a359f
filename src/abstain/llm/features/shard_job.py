"""Shard of work: rows that are computed together and written together, on this machine or on another.

Notes:

* The content of a shard is fixed before it is computed, and each shard is computed by itself. So the neighbours of a
  row, and with them the last bits of its numbers, do not depend on the runner: every runner writes the same bytes on
  one kind of hardware.
* A shard carries texts and names, no tensors. It is JSON that any host with the same base model and the same cache can
  process. Its results are in the cache.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, astuple, dataclass, replace
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
    """Requests to a base model that are computed as one shard.

    Attributes:
        model: The base model, named as in `llm.model`.
        revision: Its revision on the machine that made the job, as name@revision.
        dtype: Data type of the computation.
        batch_tokens: Most tokens in one forward pass; part of the job, because the size of a forward pass may decide
            the last bits of a result.
        requests: The requests.
    """

    model: str
    revision: str
    dtype: str
    batch_tokens: int
    requests: tuple[Request, ...]

    def get_namespace(self, operation: Operation) -> CacheNamespace:
        """Return the cache namespace of the results of `operation`."""
        return CacheNamespace(self.revision, self.dtype, repr(operation), ENGINE_VERSION)

    @property
    def name(self) -> str:
        """Digest of the whole job: equal work gives an equal name."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:32]

    def to_json(self) -> str:
        """Return the job as JSON."""
        operations = list(dict.fromkeys(request.operation for request in self.requests))
        rows = [
            [
                operations.index(request.operation),
                request.name,
                [list(asdict(segment).values()) for segment in request.prompt],
            ]
            for request in self.requests
        ]
        declared = [[type(operation).__name__, asdict(operation)] for operation in operations]
        return json.dumps({**asdict(self), "requests": rows, "operations": declared}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ShardJob:
        """Build the job from the `text` of `to_json`."""
        content: dict[str, Any] = json.loads(text)
        operations = [
            OPERATION_TYPES[kind](
                **{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
            )
            for kind, fields in content.pop("operations")
        ]
        rows = content.pop("requests")
        requests = tuple(
            Request(tuple(Segment(*segment) for segment in segments), operations[index], name)
            for index, name, segments in rows
        )
        return cls(**content, requests=requests)


@dataclass(frozen=True)
class JobStats:
    """Cost of a finished shard.

    Attributes:
        rows: Number of rows.
        pass_tokens: Number of tokens of their prompts.
        forward_tokens: Number of tokens that went through the base model.
    """

    rows: int
    pass_tokens: int
    forward_tokens: int

    def __add__(self, other: JobStats) -> JobStats:
        return JobStats(*(sum(pair) for pair in zip(astuple(self), astuple(other), strict=True)))


class ShardRunner(Protocol):
    """Computes shards, in this process or in others."""

    def run(self, jobs: Iterable[ShardJob]) -> Iterator[JobStats]:
        """Compute shards and write their rows to the cache.

        Args:
            jobs: The shards.

        Yields:
            The cost of each shard, once it is in the cache.

        Raises:
            AbstainError: A shard cannot be computed.
        """


@dataclass(frozen=True)
class LocalRunner:
    """Computes shards in this process, one after the other.

    Args:
        settings: Settings of this machine.
    """

    settings: Settings

    def run(self, jobs: Iterable[ShardJob]) -> Iterator[JobStats]:
        """Compute each shard of `jobs` and yield its cost."""
        return (compute_shard(job, self.settings) for job in jobs)


def compute_shard(job: ShardJob, settings: Settings) -> JobStats:
    """Compute a shard and write its rows to the cache, one file per operation.

    Args:
        job: The shard.
        settings: Settings of this machine.

    Returns:
        The cost.
    """
    engine = load_job_engine(job, settings)
    start_tokens = engine.stats.pass_tokens, engine.stats.forward_tokens
    requests = {str(index): request for index, request in enumerate(job.requests)}
    rows_by_operation: defaultdict[Operation, dict[str, Tensor]] = defaultdict(dict)
    for name, result in engine.run(requests):
        row = result if isinstance(result, Tensor) else _get_steps(result, engine.loaded.tokenizer)
        rows_by_operation[requests[name].operation][row_key(requests[name])] = row
    store = FileStore(settings.features)
    for operation, rows_by_key in rows_by_operation.items():
        write_rows(store, job.get_namespace(operation), dict(sorted(rows_by_key.items())))
    return JobStats(
        len(requests), engine.stats.pass_tokens - start_tokens[0], engine.stats.forward_tokens - start_tokens[1]
    )


def _get_steps(answers: list[GeneratedText], tokenizer: Any) -> Tensor:
    """Return the single answer of a `Generate`: its tokens and choices, without its states."""
    (answer,) = answers
    return answer.to_cache_row(tokenizer.eos_token_id)


def row_key(request: Request) -> str:
    """Return the key of the row of a request in its namespace: the text up to the last segment that matters."""
    return prompt_key(cut_to_operation(request.prompt, request.operation))


def load_job_engine(job: ShardJob, settings: Settings) -> CausalEngine | PerturbationEngine:
    """Return the engine for the model of a job, loaded once per process.

    Args:
        job: The shard.
        settings: Settings of this machine.

    Returns:
        The engine; for a model other than a causal LM, one that can only perturb.

    Raises:
        AbstainError: This machine has another revision of the model.
    """
    model_ref = find_model(job.model, settings)
    if str(model_ref) != job.revision:
        raise AbstainError(
            Code.VERSION_MISMATCH,
            f"the shard wants {job.revision}, but this machine has {model_ref}: fetch that revision here",
        )
    return _load_engine(job.model, job.revision, job.dtype, job.batch_tokens, settings)


@lru_cache(maxsize=1)
def _load_engine(
    model: str, _revision: str, dtype: str, batch_tokens: int, settings: Settings
) -> CausalEngine | PerturbationEngine:
    loaded = load_model(find_model(model, settings), choose_device(settings), getattr(torch, dtype))
    loaded = replace(loaded, self_check_folder=settings.home.resolve() / "decoder-checks")
    engine_type = CausalEngine if get_model_kind(loaded.model.config) == "causal" else PerturbationEngine
    return engine_type(loaded, batch_tokens)
