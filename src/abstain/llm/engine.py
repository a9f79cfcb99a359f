"""The one way through the base model: passes in, what the asks want out.

Three decisions:

* Early exit by a hook that raises: the plain Hugging Face forward runs, and stops the moment the deepest
  layer asked for has been seen. No model is rewritten, so any causal LM works, and nothing above that
  layer nor the vocabulary projection is ever computed.
* Right padding without an attention mask: under causal attention no valid token can see a later one, and
  the kernels without a mask are the fast ones. Passes are batched by length, so little is padded.
* Results are yielded batch by batch, for the segments' tokens alone: memory is bounded by the batch.

`states` is the first ask; another is one more dataclass and one more hook site, not another loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from abstain.errors import AbstainError
from abstain.llm.layout import Pass
from abstain.llm.loading import LoadedModel
from abstain.llm.tokens import EncodedPass, encode_pass

Site = Literal["residual", "mlp"]


@dataclass(frozen=True)
class States:
    """Ask: hidden states of the tokens of adjacent `segments` at `layers` (decoder blocks counted from 1).

    `site="residual"` is the residual stream after the block, equal to Hugging Face's `hidden_states[layer]`
    (for the last layer that is after the final norm); `"mlp"` is the output of the block's feed-forward part.
    """

    layers: tuple[int, ...]
    site: Site = "residual"
    segments: tuple[str, ...] = ("answer", "eos")


@dataclass
class Work:
    """What the engine has done, for tests and plans that count work instead of timing it."""

    passes: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    token_layers: int = 0


class _DeepestLayerSeen(Exception):
    """Raised by a hook to leave the forward pass early."""


class Engine:
    """Runs passes through one loaded base model. `batch_tokens` bounds one forward pass, padding included."""

    def __init__(self, loaded: LoadedModel, batch_tokens: int) -> None:
        self.loaded = loaded
        self.batch_tokens = batch_tokens
        self.work = Work()
        self._decoder: nn.Module = loaded.model.base_model
        config = loaded.model.config.get_text_config()
        self.n_layers: int = config.num_hidden_layers
        self._window: int | None = getattr(config, "max_position_embeddings", None)
        self._blocks = _find_blocks(self._decoder, self.n_layers)

    def states(self, passes: Mapping[str, Pass], ask: States) -> Iterator[tuple[str, Tensor]]:
        """Yield `(key, states)` for every pass, longest first.

        `states` has shape (len(ask.layers), tokens of the segments, d), the model's dtype, on the CPU.
        Raises `AbstainError` for a layer or site the model does not have, a pass longer than its window,
        and for NaN or infinite states, naming the pass's key.
        """
        self._check(ask)
        encoded = {key: self._encode(key, pass_) for key, pass_ in passes.items()}
        for batch in _batches(encoded, self.batch_tokens):
            captured = self._forward([encoded[key] for key in batch], ask)
            for row, key in enumerate(batch):
                first, last = encoded[key].span(*ask.segments)
                states = torch.stack([captured[layer][row, first:last] for layer in ask.layers]).cpu()
                if not torch.isfinite(states).all():
                    raise AbstainError(
                        f"interaction {key}: the base model's states at layer {ask.layers} are not finite; "
                        "try ABSTAIN_DTYPE=float32, or take the interaction out"
                    )
                yield key, states

    def _check(self, ask: States) -> None:
        for layer in ask.layers:
            if not 1 <= layer <= self.n_layers:
                raise AbstainError(
                    f"layer {layer} asked for, but {self.loaded.ref.name} has layers 1 to {self.n_layers}: "
                    "set llm.layer in params.yaml"
                )

    def _encode(self, key: str, pass_: Pass) -> EncodedPass:
        encoded = encode_pass(self.loaded.tokenizer, pass_)
        if self._window is not None and len(encoded.ids) > self._window:
            raise AbstainError(
                f"interaction {key}: {len(encoded.ids)} tokens are more than the {self._window} that "
                f"{self.loaded.ref.name} reads: take the interaction out or retrieve fewer chunks"
            )
        return encoded

    def _forward(self, batch: list[EncodedPass], ask: States) -> dict[int, Tensor]:
        """One forward pass of right-padded rows: layer -> states of shape (rows, longest row, d)."""
        device = self.loaded.model.device
        longest = max(len(row.ids) for row in batch)
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        for row, encoded in enumerate(batch):
            ids[row, : len(encoded.ids)] = torch.tensor(encoded.ids)
        captured: dict[int, Tensor] = {}
        deepest = max(ask.layers)
        # After the last block comes the final norm, whose output is what `hidden_states[-1]` holds.
        through_norm = ask.site == "residual" and deepest == self.n_layers
        with torch.inference_mode(), ExitStack() as hooks:
            for layer in ask.layers:
                if not (through_norm and layer == deepest):
                    module = self._site(layer, ask.site)
                    handle = module.register_forward_hook(_capture(captured, layer, exit_after=layer == deepest))
                    hooks.callback(handle.remove)
            try:
                output = self._decoder(input_ids=ids.to(device), use_cache=False)
                captured[deepest] = output.last_hidden_state
            except _DeepestLayerSeen:
                pass
        self.work.passes += len(batch)
        self.work.tokens += sum(len(row.ids) for row in batch)
        self.work.padded_tokens += ids.numel()
        self.work.token_layers += ids.numel() * deepest
        return captured

    def _site(self, layer: int, site: Site) -> nn.Module:
        block = self._blocks[layer - 1]
        if site == "residual":
            return block
        for name in ("mlp", "feed_forward", "ffn"):
            if hasattr(block, name):
                return getattr(block, name)  # type: ignore[no-any-return]
        raise AbstainError(f"{self.loaded.ref.name} has no separate feed-forward block: set llm.site to residual")


def _capture(captured: dict[int, Tensor], layer: int, *, exit_after: bool) -> Callable[..., None]:
    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        captured[layer] = output[0] if isinstance(output, tuple) else output
        if exit_after:
            raise _DeepestLayerSeen

    return hook


def _find_blocks(decoder: nn.Module, n_layers: int) -> nn.ModuleList:
    """The decoder's list of blocks, whatever the architecture calls it."""
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == n_layers:
            return module
    raise AbstainError(f"{type(decoder).__name__} has no list of {n_layers} decoder blocks: it is no causal LM we know")


def _batches(encoded: Mapping[str, EncodedPass], batch_tokens: int) -> Iterator[list[str]]:
    """Keys in batches of similar length, longest first: the worst case for memory comes at once, not last."""
    batch: list[str] = []
    longest = 0
    for key in sorted(encoded, key=lambda k: (-len(encoded[k].ids), k)):
        length = len(encoded[key].ids)
        if batch and (len(batch) + 1) * longest > batch_tokens:
            yield batch
            batch = []
        longest = longest if batch else length
        batch.append(key)
    if batch:
        yield batch
