"""The embedded sentence encoder on pairs of texts: its frozen layers, and its last one with a head, to be trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from abstain.config.settings import Settings
from abstain.knowledge.retrieval.encoder import find_encoder_folder
from abstain.llm.engine.device import choose_device
from abstain.llm.engine.loading import find_model, load_weights

MAX_TOKENS = 256
"""Tokens of a pair, as the encoder was trained; a longer one is cut, the longer of its texts first."""
ENCODED_AT_ONCE = 32
"""Pairs that the frozen layers read together, those of similar length, and answers that are scored together."""

Pair = tuple[str, str]
"""Question and answer, and a chunk."""


class PairEncoder:
    """The embedded encoder without its last layer, which is trained.

    Args:
        settings: Settings of this machine.

    Raises:
        AbstainError: The encoder's package is not installed.
    """

    def __init__(self, settings: Settings) -> None:
        self._ref = find_model(str(find_encoder_folder()), settings)
        self._device = choose_device(settings)
        self._states: dict[Pair, Tensor] = {}

    @cached_property
    def _model(self) -> tuple[Any, Any, nn.Module]:
        """Tokenizer, frozen layers, and the pretrained last layer."""
        from transformers import AutoTokenizer

        model = load_weights(self._ref, "AutoModel", self._device, torch.float32)
        last_layer = model.encoder.layer[-1]
        model.encoder.layer = model.encoder.layer[:-1]
        return AutoTokenizer.from_pretrained(self._ref.path, trust_remote_code=False), model, last_layer

    def make_classifier(self) -> PairClassifier:
        """Make an untrained classifier: a copy of the last layer, with a head whose logits are 0."""
        return PairClassifier(deepcopy(self._model[2]).to("cpu")).requires_grad_(True)

    def encode(self, pairs: Sequence[Pair], *, remember: bool) -> list[Tensor]:
        """Compute what the last layer reads.

        Args:
            pairs: The pairs.
            remember: Whether the results are kept in memory for the next call.

        Returns:
            For each pair float16 (tokens, d), on the CPU.
        """
        missing = sorted({pair for pair in pairs if pair not in self._states}, key=lambda pair: sum(map(len, pair)))
        computed: dict[Pair, Tensor] = {}
        for start in range(0, len(missing), ENCODED_AT_ONCE):
            batch = missing[start : start + ENCODED_AT_ONCE]
            computed |= zip(batch, self._encode_batch(batch), strict=True)
        states = [computed[pair] if pair in computed else self._states[pair] for pair in pairs]
        if remember:
            self._states |= computed
        return states

    def _encode_batch(self, pairs: Sequence[Pair]) -> Iterator[Tensor]:
        tokenizer, model, _ = self._model
        firsts, seconds = zip(*pairs, strict=True)
        inputs = tokenizer(
            list(firsts), list(seconds), truncation="longest_first", max_length=MAX_TOKENS, padding=True,
            return_tensors="pt",
        ).to(self._device)  # fmt: skip
        with torch.inference_mode():
            states = model(**inputs).last_hidden_state.half().cpu()
        for row, length in zip(states, inputs["attention_mask"].sum(1).tolist(), strict=True):
            yield row[:length].clone()


class PairClassifier(nn.Module):
    """The last layer of BERT for [CLS] alone, and a linear head.

    Args:
        layer: The pretrained layer.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.attention.self.query.in_features, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Compute the logits of pairs.

        Args:
            states: For each pair (tokens, d), of `PairEncoder`.

        Returns:
            (pairs,).
        """
        padded = pad_sequence([row.float() for row in states], batch_first=True)
        lengths = torch.tensor([len(row) for row in states])
        is_token = torch.arange(padded.shape[1]) < lengths[:, None]
        attention = self.layer.attention.self
        heads = (attention.num_attention_heads, -1)
        first = padded[:, :1]
        query, key, value = (
            project(read).unflatten(-1, heads).transpose(1, 2)
            for project, read in ((attention.query, first), (attention.key, padded), (attention.value, padded))
        )
        context = scaled_dot_product_attention(query, key, value, attn_mask=is_token[:, None, None])
        attended = self.layer.attention.output(context.transpose(1, 2).flatten(2), first)
        output = self.layer.output(self.layer.intermediate(attended), attended)
        return self.head(output)[:, 0, 0]  # type: ignore[no-any-return]
