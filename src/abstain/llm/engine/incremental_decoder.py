"""Passes that are read on token by token, side by side: their keys and values in one cache, padded on the left."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from abstain.llm.engine.attention import KeysValues
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

                stack.callback(self._decoder.site(hook).register_forward_hook(keep).remove)
            ids = torch.tensor(tokens)[:, None]
            seen[final] = self._forward(ids, self._mask.sum(1, keepdim=True) - 1)[:, -1]
        return seen

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
