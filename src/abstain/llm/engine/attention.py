"""Attention over a packed prefix tree: prompts share one forward pass without padding (docs/decisions/071)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from abstain.llm.engine.prefix_tree import Node

NAME = "abstain_packed"
QUERY_BLOCK = {"cpu": 128, "cuda": 1024}
"""Queries whose scores are one matrix: small enough for a CPU's cache, large enough to keep a GPU busy."""

KeysValues = list[tuple[Tensor, Tensor]]
"""Layer by layer, keys and values of one run, each (key/value heads, tokens, head width)."""


class _KeysCaptured(Exception):
    """Raised to leave a block once its keys and values are known."""


class PackedBatch:
    """The runs of one forward pass, in the order in which their tokens stand in the packed row.

    `kept` holds keys and values of runs of earlier forward passes; those of `keep` are added to it.
    """

    def __init__(self, runs: Sequence[Node], kept: dict[Node, KeysValues], keep: set[Node]) -> None:
        self.runs = runs
        self.offsets: dict[Node, int] = {}
        self.tokens = 0
        for run in runs:
            self.offsets[run] = self.tokens
            self.tokens += len(run)
        self._kept = kept
        self._keep = keep
        self._queries = {run: (0, len(run)) for run in runs}
        self._keys_only = False
        self._seen: tuple[Tensor, Tensor] | None = None
        self._masks: dict[tuple[int, int, int], Tensor] = {}

    @contextmanager
    def keys_only(self) -> Iterator[None]:
        """In the block, attention stops at the keys and values, and remembers them for the block's second call."""
        self._keys_only = True
        try:
            yield
        except _KeysCaptured:
            pass
        finally:
            self._keys_only = False

    def restrict_queries(self, queries: Mapping[Node, tuple[int, int]]) -> None:
        """From now on the queries are tokens first..last of each run; the keys are the remembered ones."""
        self._queries = {run: queries.get(run, (0, 0)) for run in self.runs}

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """Attention of `q` (heads, queries, width) over `k`, `v` (key/value heads, tokens, width): shaped like `q`."""
        if self._seen is None:
            for run in self.runs:
                if run in self._keep:
                    here = slice(self.offsets[run], self.offsets[run] + len(run))
                    self._kept.setdefault(run, []).append((k[:, here].clone(), v[:, here].clone()))
            if self._keys_only:
                self._seen = k, v
                raise _KeysCaptured
        else:
            k, v = self._seen
        out = q.new_empty(q.shape[1], q.shape[0], v.shape[2]).transpose(0, 1)
        at = 0
        for run in self.runs:
            first, last = self._queries[run]
            if first < last:
                here = slice(at, at + last - first)
                keys, values = self._of_path(run, layer, k, v)
                self._one(q[:, here], keys, values, run.start + first, scale, window, softcap, out[:, here])
                at = here.stop
        return out

    def _of_path(self, run: Node, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens of a pass up to the end of `run`."""
        parts = []
        for node in run.path:
            if node in self.offsets:
                here = slice(self.offsets[node], self.offsets[node] + len(node))
                parts.append((k[:, here], v[:, here]))
            else:
                parts.append(self._kept[node][layer])
        if len(parts) == 1:
            return parts[0]
        return torch.cat([part[0] for part in parts], 1), torch.cat([part[1] for part in parts], 1)

    def _one(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        start: int,
        scale: float,
        window: int | None,
        softcap: float | None,
        out: Tensor,
    ) -> None:
        """Write to `out` the attention of queries at positions `start`... over the keys of positions 0..."""
        plain = q.device.type == "cpu" or softcap is not None
        block = QUERY_BLOCK.get(q.device.type, 128) if plain or window else q.shape[1]
        for at in range(0, q.shape[1], block):
            part = q[:, at : at + block]
            first, last = start + at, start + at + part.shape[1]
            low = max(0, first - window + 1) if window else 0
            keys, values = k[:, low:last], v[:, low:last]
            here = slice(at, at + part.shape[1])
            if plain:
                out[:, here] = _by_products(part, keys, values, self._mask(first, last, low, window, q), scale, softcap)
                continue
            from torch.nn.attention.bias import causal_lower_right  # brings torch's compiler along: seconds

            mask: Any = causal_lower_right(last - first, last - low)
            if window and last - low > window:
                mask = self._mask(first, last, low, window, q)
            rows = scaled_dot_product_attention(
                part[None], keys[None], values[None], attn_mask=mask, scale=scale, enable_gqa=len(q) != len(k)
            )
            out[:, here] = rows[0]

    def _mask(self, first: int, last: int, low: int, window: int | None, like: Tensor) -> Tensor:
        """0 or -inf, added to the scores of queries first..last over the last of keys low..last.

        Without a window, keys before the first query are seen by all, so the mask is that of the others alone.
        """
        banded = window if window and last - low > window else 0
        low = low if banded else first
        key = (last - first, first - low, banded)
        if key not in self._masks:
            queries = torch.arange(first, last, device=like.device)[:, None]
            keys = torch.arange(low, last, device=like.device)[None, :]
            hidden = keys > queries
            if banded:
                hidden |= keys <= queries - banded
            self._masks[key] = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(
                hidden, float("-inf")
            )
        return self._masks[key]


def _by_products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, softcap: float | None) -> Tensor:
    """softmax(q k' scale + mask) v; the query heads that share a key/value head are rows of one product."""
    heads, queries, _ = q.shape
    groups, keys, _ = k.shape
    scores = torch.bmm((q * scale).reshape(groups, -1, q.shape[2]), k.transpose(1, 2))
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    by_query = scores.view(groups, heads // groups, queries, keys)
    by_query[..., keys - mask.shape[1] :] += mask
    weights = by_query.softmax(-1).view(groups, -1, keys)
    return torch.bmm(weights, v).view(heads, queries, v.shape[2])


def shared_prompt_attention(
    q: Tensor, prompt: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], window: int | None, softcap: float | None
) -> Tensor:
    """Attention of one query a row, `q` (heads, rows, width) and scaled, over a prompt that all rows share and over
    each row's own tokens, its last the query's.

    `prompt`: keys and values (key/value heads, tokens, width); `own`: (rows, key/value heads, tokens, width). Shaped
    like `q`.
    """
    low = prompt[0].shape[1] + own[0].shape[2] - window if window else 0
    of_prompt, of_row = max(low, 0), max(low - prompt[0].shape[1], 0)
    prompt_keys, prompt_values = (one[:, of_prompt:] for one in prompt)
    keys, values = (one[:, :, of_row:] for one in own)
    (heads, rows, width), groups, shared = q.shape, prompt_keys.shape[0], prompt_keys.shape[1]
    query = q.view(groups, heads // groups, rows, width)
    by_prompt = torch.bmm(query.reshape(groups, -1, width), prompt_keys.transpose(1, 2))
    by_row = torch.matmul(query.permute(2, 0, 1, 3), keys.transpose(2, 3))  # (rows, groups, heads a group, tokens)
    scores = torch.cat([by_prompt.view(groups, -1, rows, shared), by_row.permute(1, 2, 0, 3)], -1)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    weights = scores.softmax(-1)
    out = torch.bmm(weights[..., :shared].reshape(groups, -1, shared), prompt_values).view(groups, -1, rows, width)
    out = out + torch.matmul(weights[..., shared:].permute(2, 0, 1, 3), values).permute(1, 2, 0, 3)
    return out.reshape(heads, rows, width)


class AttentionBackend(Protocol):
    """What takes the place of a model's attention during a forward pass of one row of tokens; see `PackedBatch`."""

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor: ...


_packed_batch: ContextVar[AttentionBackend] = ContextVar("packed_batch")


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention function for transformers: query (1, heads, queries, width), result (1, queries, heads, width)."""
    if s_aux is not None or position_bias is not None:
        raise TypeError("attention sinks and position biases are not for packed passes")
    layer: Any = module.layer_idx
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    out = _packed_batch.get().attend(layer, query[0], key[0], value[0], scale, sliding_window, softcap)
    return out.transpose(0, 1)[None], None


@lru_cache(maxsize=1)
def _register() -> None:
    from transformers import AttentionInterface  # takes seconds: imported only where a model is run

    AttentionInterface.register(NAME, _attention)


@contextmanager
def packed_attention(config: Any, batch: AttentionBackend) -> Iterator[None]:
    """Within the block, the model of `config` uses the attention of `batch`; afterwards it is as before."""
    _register()
    before = config._attn_implementation
    token = _packed_batch.set(batch)
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
        _packed_batch.reset(token)
