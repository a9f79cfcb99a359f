"""Decoders that extend many prompts token by token, side by side.

Answers to different prompts have their keys and values in one cache, padded on the left. If the model packs, beams of
one prompt share the prompt's keys and values: each beam stores only those of its own tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from abstain.llm.engine.attention import KeysValues, packed_attention, shared_prompt_attention
from abstain.llm.engine.decoder import Decoder, Hook
from abstain.llm.engine.requests import ConstrainedGenerate, Generate

DECODE_ROWS = 128
"""Number of answers decoded side by side: a step reads all weights, however few rows it is for."""
BEAM_ROWS = 256
"""Number of beams decoded side by side: a prompt has many, and each lives for a few tokens."""


@dataclass(eq=False)
class DecodingPrompt:
    """A prompt to be answered.

    Attributes:
        key: Key of the request.
        ids: Token ids of the prompt.
        operation: Kind and limits of the answer.
        state: Final hidden state of the last token, (1, d).
        keys_values: Keys and values of the prompt, if the model packs. They move into the answers' cache and are
            released here.
        choices: Token ids of the request's tracked tokens.
        target: The text that a constrained answer must contain.
    """

    key: str
    ids: list[int]
    operation: Generate | ConstrainedGenerate
    state: Tensor
    keys_values: KeysValues | None
    choices: tuple[int, ...] = ()
    target: str = ""

    @property
    def rows(self) -> int:
        """The number of its answers, or of the beams of its one answer."""
        return self.operation.beams if isinstance(self.operation, ConstrainedGenerate) else self.operation.samples

    @property
    def batch_share(self) -> float:
        """The share of a full decoding batch that the prompt takes up."""
        return self.rows / (BEAM_ROWS if isinstance(self.operation, ConstrainedGenerate) else DECODE_ROWS)

    @property
    def cached_tokens(self) -> int:
        """The most tokens whose keys and values are kept for it: those of its prompt, and those written after it."""
        is_shared = isinstance(self.operation, ConstrainedGenerate) and self.keys_values is not None
        return len(self.ids) * (1 if is_shared else self.rows) + self.rows * self.operation.max_new_tokens


class KVCacheDecoder:
    """Rows that continue prompts.

    Args:
        decoder: Decoder of the base model.
        ids: Token ids of each prompt.
        keys_values: Keys and values of each prompt, if the model packs. Otherwise the prompts are run here.
    """

    def __init__(self, decoder: Decoder, ids: Sequence[list[int]], keys_values: Sequence[KeysValues | None]) -> None:
        from transformers import DynamicCache  # as in attention.py

        self._decoder = decoder
        width = max(map(len, ids))
        lengths = torch.tensor([len(row) for row in ids])
        self._mask = (torch.arange(width) >= width - lengths[:, None]).long().to(decoder.device)
        self._cache: Any = DynamicCache(config=decoder.config)
        packed = [row for row in keys_values if row is not None]
        if len(packed) < len(ids):
            padded = torch.tensor([[0] * (width - len(row)) + row for row in ids])
            self._forward(padded, (self._mask.cumsum(1) - 1).clamp_min(0))
            return
        for layer, (keys, values) in enumerate(_pad_keys_values(packed)):
            self._cache.update(keys, values, layer)

    def read(self, tokens: Sequence[int], hooks: set[Hook]) -> dict[Hook, Tensor]:
        """Run one more token of every row.

        Args:
            tokens: Token id of each row.
            hooks: Hooks whose states are requested.

        Returns:
            Hook -> states, (rows, d). The final states are always included.
        """
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], 1)
        final = Hook(self._decoder.n_layers)
        states: dict[Hook, Tensor] = {}
        with self._decoder.lock, ExitStack() as stack:
            for hook in hooks - {final}:

                def capture(_module: Any, inputs: Any, output: Any, hook: Hook = hook) -> None:
                    states[hook] = hook.select_states(inputs, output, len(tokens))[:, 0]

                stack.callback(self._decoder.get_module(hook).register_forward_hook(capture).remove)
            ids = torch.tensor(tokens)[:, None]
            states[final] = self._forward(ids, self._mask.sum(1, keepdim=True) - 1)[:, -1]
        return states

    def read_final(self, tokens: Sequence[int]) -> Tensor:
        """Run one more token of every row and return its final states, (rows, d)."""
        return self.read(tokens, set())[Hook(self._decoder.n_layers)]

    def select(self, rows: Sequence[int]) -> None:
        """Continue with a selection of the rows.

        Args:
            rows: Indices of the rows, in the new order. A row may occur several times.
        """
        index = torch.tensor(rows, device=self._decoder.device)
        self._cache.batch_select_indices(index)
        self._mask = self._mask[index]

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        self._decoder.count_forward(ids.numel(), self._decoder.n_layers, ids.numel())
        output = self._decoder.loaded.model.base_model(
            input_ids=ids.to(self._decoder.device),
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        final: Tensor = output.last_hidden_state
        return final


class SharedPromptDecoder:
    """Beams that continue prompts: all beams of a prompt read the same keys and values of it. They are adjacent rows.

    Args:
        decoder: Decoder of the base model.
        keys_values: Keys and values of each prompt.
    """

    def __init__(self, decoder: Decoder, keys_values: Sequence[KeysValues]) -> None:
        self._decoder = decoder
        self._prompt_kv = list(_pad_keys_values(keys_values))
        self._lengths = torch.tensor([layers[0][0].shape[1] for layers in keys_values], device=decoder.device)
        self._prompt_indices = torch.arange(len(keys_values), device=decoder.device)  # of each row
        self._beam_kv: KeysValues = []  # layer by layer, (rows, key/value heads, tokens read here, head width)
        self._n_read = 0
        self._group_rows()

    def select(self, rows: Sequence[int]) -> None:
        """Continue with a selection of the rows."""
        index = torch.tensor(rows, device=self._decoder.device)
        self._beam_kv = [(keys[index], values[index]) for keys, values in self._beam_kv]
        prompts, self._prompt_indices = self._prompt_indices[index].unique(return_inverse=True)
        if len(prompts) < len(self._lengths):
            self._prompt_kv = [(keys[prompts], values[prompts]) for keys, values in self._prompt_kv]
            self._lengths = self._lengths[prompts]
        self._group_rows()

    def read_final(self, tokens: Sequence[int]) -> Tensor:
        """Run one more token of every row and return its final states, (rows, d)."""
        ids = torch.tensor([tokens], device=self._decoder.device)
        positions = (self._lengths[self._prompt_indices] + self._n_read)[None]
        with self._decoder.lock, packed_attention(self._decoder.config, self):
            self._decoder.count_forward(len(tokens), self._decoder.n_layers, len(tokens))
            output = self._decoder.loaded.model.base_model(input_ids=ids, position_ids=positions, use_cache=False)
        self._n_read += 1
        final: Tensor = output.last_hidden_state[0]
        return final

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """Compute the attention of one new token per row over its prompt, its beam's tokens and itself.

        The arguments are those of `PackedBatch.attend`, with rows in place of tokens.
        """
        keys, values = (tensor.transpose(0, 1)[:, :, None] for tensor in (k, v))
        if layer < len(self._beam_kv):
            keys, values = (torch.cat(pair, 2) for pair in zip(self._beam_kv[layer], (keys, values), strict=True))
            self._beam_kv[layer] = keys, values
        else:
            self._beam_kv.append((keys, values))
        n_own, width = keys.shape[2], self._prompt_kv[layer][0].shape[2]
        lengths = self._lengths.clamp_max(max(window - n_own, 0)) if window else self._lengths
        hidden = torch.arange(width, device=q.device) < width - lengths[:, None]
        visible = slice(-window if window else None, None)
        out = shared_prompt_attention(
            q=(q * scale).transpose(0, 1)[self._rows],
            prompt_kv=self._prompt_kv[layer],
            hidden=hidden,
            row_kv=(keys[self._rows, :, visible], values[self._rows, :, visible]),
            softcap=softcap,
        )
        return out[self._is_row].transpose(0, 1)

    def _group_rows(self) -> None:
        """Lay the rows out by prompt: `_rows`, (prompts, most rows of a prompt), where `_is_row`; elsewhere row 0."""
        counts = self._prompt_indices.bincount()
        self._is_row = torch.arange(int(counts.max()), device=counts.device) < counts[:, None]
        self._rows = torch.zeros_like(self._is_row, dtype=torch.long)
        self._rows[self._is_row] = torch.arange(len(self._prompt_indices), device=counts.device)


def _pad_keys_values(keys_values: Sequence[KeysValues]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each layer's keys and values of all prompts, padded on the left: (prompts, heads, tokens, head width)."""
    width = max(layers[0][0].shape[1] for layers in keys_values)
    for layer in zip(*keys_values, strict=True):
        keys, values = (
            torch.stack([pad(tensor, (0, 0, width - tensor.shape[1], 0)) for tensor in tensors])
            for tensors in zip(*layer, strict=True)
        )
        yield keys, values
