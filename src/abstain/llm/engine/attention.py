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
"""Number of queries whose scores are one matrix: small enough for a CPU's cache, large enough to keep a GPU busy."""

KeysValues = list[tuple[Tensor, Tensor]]
"""Keys and values of one node, layer by layer, each (key/value heads, tokens, head width)."""


class _KeysCaptured(Exception):
    """Raised to leave a block once its keys and values are captured."""


class PackedBatch:
    """The nodes of one forward pass, in the order in which their tokens stand in the packed row.

    Args:
        nodes: Nodes of the prefix tree whose tokens are run.
        kv_cache: Keys and values of nodes of earlier forward passes. Those of `nodes_to_cache` are added to it.
        nodes_to_cache: Nodes of this batch whose keys and values are needed later.
    """

    def __init__(self, nodes: Sequence[Node], kv_cache: dict[Node, KeysValues], nodes_to_cache: set[Node]) -> None:
        self.nodes = nodes
        self.offsets: dict[Node, int] = {}
        self.tokens = 0
        for node in nodes:
            self.offsets[node] = self.tokens
            self.tokens += len(node)
        self._kv_cache = kv_cache
        self._nodes_to_cache = nodes_to_cache
        self._queries = {node: (0, len(node)) for node in nodes}
        self._is_capturing = False
        self._captured: tuple[Tensor, Tensor] | None = None
        self._masks: dict[tuple[int, int, int], Tensor] = {}

    @contextmanager
    def capture_keys_values(self) -> Iterator[None]:
        """Stop attention at the keys and values within the block, and keep them for the block's second call.

        Yields:
            None.
        """
        self._is_capturing = True
        try:
            yield
        except _KeysCaptured:
            pass
        finally:
            self._is_capturing = False

    def restrict_queries(self, queries: Mapping[Node, tuple[int, int]]) -> None:
        """Compute attention for some tokens only, over the captured keys and values.

        Args:
            queries: Node -> (first, past the last) of the tokens that are queries. Nodes that are missing have none.
        """
        self._queries = {node: queries.get(node, (0, 0)) for node in self.nodes}

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """Compute the attention of the queries of all nodes.

        Args:
            layer: Index of the layer, from 0.
            q: Queries, (heads, queries, head width).
            k: Keys, (key/value heads, tokens, head width).
            v: Values, shaped like `k`.
            scale: Factor of the scores.
            window: Number of tokens that a query may see, itself included; None for all.
            softcap: Bound of the scores, which are squashed by tanh; None for no bound.

        Returns:
            The attention output, shaped like `q`.

        Raises:
            _KeysCaptured: The pass stops at the keys and values (`capture_keys_values`).
        """
        if self._captured is None:
            for node in self.nodes:
                if node in self._nodes_to_cache:
                    span = slice(self.offsets[node], self.offsets[node] + len(node))
                    self._kv_cache.setdefault(node, []).append((k[:, span].clone(), v[:, span].clone()))
            if self._is_capturing:
                self._captured = k, v
                raise _KeysCaptured
        else:
            k, v = self._captured
        out = q.new_empty(q.shape[1], q.shape[0], v.shape[2]).transpose(0, 1)
        offset = 0
        for node in self.nodes:
            first, last = self._queries[node]
            if first < last:
                span = slice(offset, offset + last - first)
                keys, values = self._gather_path(node, layer, k, v)
                self._attend_node(q[:, span], keys, values, node.start + first, scale, window, softcap, out[:, span])
                offset = span.stop
        return out

    def _gather_path(self, node: Node, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of all tokens of a prompt up to the end of `node`."""
        parts = []
        for path_node in node.path:
            if path_node in self.offsets:
                span = slice(self.offsets[path_node], self.offsets[path_node] + len(path_node))
                parts.append((k[:, span], v[:, span]))
            else:
                parts.append(self._kv_cache[path_node][layer])
        if len(parts) == 1:
            return parts[0]
        return torch.cat([part[0] for part in parts], 1), torch.cat([part[1] for part in parts], 1)

    def _attend_node(
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
        """Write the attention of queries at positions `start`... over the keys of positions 0... to `out`."""
        plain = q.device.type == "cpu" or softcap is not None
        block_size = QUERY_BLOCK.get(q.device.type, 128) if plain or window else q.shape[1]
        for offset in range(0, q.shape[1], block_size):
            queries = q[:, offset : offset + block_size]
            first, last = start + offset, start + offset + queries.shape[1]
            first_key = max(0, first - window + 1) if window else 0
            keys, values = k[:, first_key:last], v[:, first_key:last]
            span = slice(offset, offset + queries.shape[1])
            if plain:
                out[:, span] = _attend_by_matmul(
                    queries, keys, values, self._mask(first, last, first_key, window, q), scale, softcap
                )
                continue
            from torch.nn.attention.bias import causal_lower_right  # brings torch's compiler along: seconds

            mask: Any = causal_lower_right(last - first, last - first_key)
            if window and last - first_key > window:
                mask = self._mask(first, last, first_key, window, q)
            rows = scaled_dot_product_attention(
                queries[None], keys[None], values[None], attn_mask=mask, scale=scale, enable_gqa=len(q) != len(k)
            )
            out[:, span] = rows[0]

    def _mask(self, first: int, last: int, first_key: int, window: int | None, like: Tensor) -> Tensor:
        """Return 0 or -inf, to be added to the scores of queries first..last over the last of keys low..last.

        Without a window, all queries see the keys before the first query, so the mask covers only the other keys.
        """
        banded = window if window and last - first_key > window else 0
        first_key = first_key if banded else first
        mask_key = (last - first, first - first_key, banded)
        if mask_key not in self._masks:
            queries = torch.arange(first, last, device=like.device)[:, None]
            keys = torch.arange(first_key, last, device=like.device)[None, :]
            hidden = keys > queries
            if banded:
                hidden |= keys <= queries - banded
            self._masks[mask_key] = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(
                hidden, float("-inf")
            )
        return self._masks[mask_key]


def _attend_by_matmul(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Compute softmax(q k' scale + mask) v; the query heads that share a key/value head are rows of one product."""
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
    q: Tensor,
    prompt_kv: tuple[Tensor, Tensor],
    hidden: Tensor,
    row_kv: tuple[Tensor, Tensor],
    softcap: float | None,
) -> Tensor:
    """Compute the attention of one query per row over a prompt that several rows share and over the row's own tokens.

    Args:
        q: Scaled queries, (prompts, rows, heads, head width).
        prompt_kv: Keys and values of the prompts, each (prompts, key/value heads, tokens, head width).
        hidden: Whether a token of a prompt is not seen, (prompts, tokens).
        row_kv: Keys and values of each row's own tokens, each (prompts, rows, key/value heads, tokens, head width).
        softcap: Bound of the scores, which are squashed by tanh; None for no bound.

    Returns:
        The attention output, shaped like `q`.
    """
    (prompt_keys, prompt_values), (keys, values) = prompt_kv, row_kv
    groups, n_shared = prompt_keys.shape[1:3]
    query = q.unflatten(2, (groups, -1))  # (prompts, rows, groups, heads a group, head width)
    by_prompt = query.permute(0, 2, 3, 1, 4)
    prompt_scores = by_prompt.flatten(2, 3) @ prompt_keys.mT
    row_scores = (query @ keys.mT).permute(0, 2, 3, 1, 4)
    scores = torch.cat([prompt_scores.view(*by_prompt.shape[:-1], n_shared), row_scores], -1)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores[..., :n_shared].masked_fill_(hidden[:, None, None, None], float("-inf"))
    weights = scores.softmax(-1)
    out = (weights[..., :n_shared].flatten(2, 3) @ prompt_values).view(by_prompt.shape).permute(0, 3, 1, 2, 4)
    out = out + weights[..., n_shared:].permute(0, 3, 1, 2, 4) @ values
    return out.flatten(2, 3)


class AttentionBackend(Protocol):
    """A replacement for a model's attention during a forward pass of one row of tokens, such as `PackedBatch`."""

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """Compute the attention of all queries, as `PackedBatch.attend` does."""


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
    """Adapt the backend's attention to transformers.

    The query is (1, heads, queries, head width), the result (1, queries, heads, head width).
    """
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
    """Let a model use the attention of a backend within the block.

    Args:
        config: The model's configuration. Its attention implementation is restored afterwards.
        batch: Backend that computes the attention.

    Yields:
        None.
    """
    _register()
    previous = config._attn_implementation
    token = _packed_batch.set(batch)
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = previous
        _packed_batch.reset(token)
