"""Passes that are read on token by token, side by side.

Answers to different prompts have their keys and values in one cache, padded on the left. Beams of one prompt share its
keys and values, where the model packs: only those of their own tokens are theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from abstain.llm.engine.attention import KeysValues, packed_attention, shared_prompt_attention
from abstain.llm.engine.decoder import Decoder, Hook


class KVCacheDecoder:
    """Rows that go on from passes `ids`, whose keys and values are `keys_values` where the model packs."""

    def __init__(self, decoder: Decoder, ids: Sequence[list[int]], keys_values: Sequence[KeysValues | None]) -> None:
        from transformers import DynamicCache  # as in attention.py

        self._decoder = decoder
        width = max(map(len, ids))
        lengths = torch.tensor([len(row) for row in ids])
        self._mask = (torch.arange(width) >= width - lengths[:, None]).long().to(decoder.device)
        self._cache: Any = DynamicCache(config=decoder.config)
        known = [row for row in keys_values if row is not None]
        if len(known) < len(ids):
            padded = torch.tensor([[0] * (width - len(row)) + row for row in ids])
            self._forward(padded, (self._mask.cumsum(1) - 1).clamp_min(0))
            return
        for layer in range(decoder.n_layers):
            parts = [row[layer] for row in known]
            keys, values = (
                torch.stack([pad(part[which], (0, 0, width - part[which].shape[1], 0)) for part in parts])
                for which in (0, 1)
            )
            self._cache.update(keys, values, layer)

    def read(self, tokens: Sequence[int], hooks: set[Hook]) -> dict[Hook, Tensor]:
        """Read one more token of every row: hook -> its states (rows, d); that of the final states always."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], 1)
        final = Hook(self._decoder.n_layers)
        seen: dict[Hook, Tensor] = {}
        with self._decoder.lock, ExitStack() as stack:
            for hook in hooks - {final}:

                def keep(_module: Any, _inputs: Any, output: Any, hook: Hook = hook) -> None:
                    # Some families' feed-forward parts see (rows x tokens, d), the others (rows, tokens, d).
                    seen[hook] = (output[0] if isinstance(output, tuple) else output).reshape(len(tokens), -1)

                stack.callback(self._decoder.get_module(hook).register_forward_hook(keep).remove)
            ids = torch.tensor(tokens)[:, None]
            seen[final] = self._forward(ids, self._mask.sum(1, keepdim=True) - 1)[:, -1]
        return seen

    def read_final(self, tokens: Sequence[int]) -> Tensor:
        """Read one more token of every row: its final states (rows, d)."""
        return self.read(tokens, set())[Hook(self._decoder.n_layers)]

    def select(self, rows: Sequence[int]) -> None:
        """Go on with `rows` alone, in this order; a row may be taken several times."""
        index = torch.tensor(rows, device=self._decoder.device)
        self._cache.batch_select_indices(index)
        self._mask = self._mask[index]

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        self._decoder.count(ids.numel(), self._decoder.n_layers, ids.numel())
        output = self._decoder.loaded.model.base_model(
            input_ids=ids.to(self._decoder.device),
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        final: Tensor = output.last_hidden_state
        return final


class BeamRows(Protocol):
    """Rows of beams: at first one a prompt, then those that `select` names, which may be of fewer prompts."""

    def select(self, rows: Sequence[int]) -> None: ...

    def read_final(self, tokens: Sequence[int]) -> Tensor: ...


def beam_decoder(decoder: Decoder, ids: Sequence[list[int]], keys_values: Sequence[KeysValues | None]) -> BeamRows:
    """The rows of passes `ids`, whose keys and values are `keys_values` where the model packs."""
    known = [row for row in keys_values if row is not None]
    if len(known) < len(ids):
        return KVCacheDecoder(decoder, ids, keys_values)
    return SharedPromptDecoder(decoder, known)


class SharedPromptDecoder:
    """Beams that go on from prompts with `keys_values`, which are never copied. Rows of one prompt stand together."""

    def __init__(self, decoder: Decoder, keys_values: Sequence[KeysValues]) -> None:
        self._decoder = decoder
        self._prompts = keys_values
        self._prompt_of = list(range(len(keys_values)))
        self._own: KeysValues = []  # layer by layer, (rows, key/value heads, tokens read here, head width)
        self._read = 0

    def select(self, rows: Sequence[int]) -> None:
        self._prompt_of = [self._prompt_of[row] for row in rows]
        index = torch.tensor(rows, device=self._decoder.device)
        self._own = [(keys[index], values[index]) for keys, values in self._own]

    def read_final(self, tokens: Sequence[int]) -> Tensor:
        lengths = [layers[0][0].shape[1] for layers in self._prompts]
        ids, positions = (
            torch.tensor([row], device=self._decoder.device)
            for row in (list(tokens), [lengths[of] + self._read for of in self._prompt_of])
        )
        with self._decoder.lock, packed_attention(self._decoder.config, self):
            self._decoder.count(len(tokens), self._decoder.n_layers, len(tokens))
            output = self._decoder.loaded.model.base_model(input_ids=ids, position_ids=positions, use_cache=False)
        self._read += 1
        final: Tensor = output.last_hidden_state[0]
        return final

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """Attention of one new token a row, `q` (heads, rows, width) over its prompt, its beam's tokens and itself."""
        keys, values = (one.transpose(0, 1)[:, :, None] for one in (k, v))
        if layer < len(self._own):
            keys, values = (torch.cat(pair, 2) for pair in zip(self._own[layer], (keys, values), strict=True))
            self._own[layer] = keys, values
        else:
            self._own.append((keys, values))
        out = q.new_empty(q.shape[1], q.shape[0], v.shape[2]).transpose(0, 1)
        first = 0
        for prompt in dict.fromkeys(self._prompt_of):
            here = slice(first, first + self._prompt_of.count(prompt))
            shared = self._prompts[prompt][layer]
            own = keys[here], values[here]
            out[:, here] = shared_prompt_attention(q[:, here] * scale, shared, own, window, softcap)
            first = here.stop
        return out
