"""Answers, token by token: many passes at once, with log-probabilities and hidden states captured as they go.

Two decisions:

* Decoding goes on from the keys and values that the engine computed for the passes, so a context that many questions
  share was read once. Where the model does not pack (decoder.py) the passes are read here.
* Every token of an answer, and the EOS after it, is fed to the model once, as a pass of the finished answer would:
  the states seen on the way are those of such a pass, and an answer and its confidence come from one reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache

from abstain.errors import AbstainError
from abstain.llm.asks import Generate
from abstain.llm.attention import KeysValues
from abstain.llm.decoder import Decoder, Tap


@dataclass(frozen=True)
class Generated:
    """One answer. `tokens` are without EOS; `log_probs`, float32, have one entry a token and one for EOS if it `ended`.

    `states`: (len(tokens) + 1, d), those of the tokens and of EOS, where they were asked for.
    """

    text: str
    tokens: tuple[int, ...]
    log_probs: Tensor
    ended: bool
    states: Tensor | None


@dataclass(frozen=True)
class Prompt:
    """A pass to be answered: its final state (1, d) and, where the model packs, its keys and values."""

    key: str
    ids: list[int]
    ask: Generate
    state: Tensor
    keys_values: KeysValues | None


@dataclass
class _Row:
    """One answer on its way. `feed`: the token that is read next; `closing`: its answer is complete."""

    prompt: Prompt
    generator: torch.Generator
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    feed: int = 0
    closing: bool = False
    done: bool = False


def decode(decoder: Decoder, prompts: Sequence[Prompt]) -> Iterator[tuple[str, list[Generated]]]:
    """Yield `(key, answers)` for each prompt, in order.

    Raises `AbstainError` where states are wanted and the tokenizer has no EOS, whose states are part of them.
    """
    eos = decoder.loaded.tokenizer.eos_token_id
    if eos is None and any(prompt.ask.states for prompt in prompts):
        raise AbstainError("the base model's tokenizer has no EOS token, after which an answer's states are read")
    rows = [
        _Row(prompt, torch.Generator().manual_seed(prompt.ask.seed * 1_000_003 + sample))
        for prompt in prompts
        for sample in range(prompt.ask.samples)
    ]
    with torch.inference_mode():
        _Decoding(decoder, rows, eos).run()
    for prompt in prompts:
        yield prompt.key, [_finished(decoder, row) for row in rows if row.prompt is prompt]


class _Decoding:
    """The rows that are still on their way, and their shared cache, padded on the left."""

    def __init__(self, decoder: Decoder, rows: list[_Row], eos: int | None) -> None:
        self.decoder = decoder
        self.rows = rows
        self.eos = eos
        self.taps = {
            Tap(row.prompt.ask.states.layer, row.prompt.ask.states.site) for row in rows if row.prompt.ask.states
        }
        width = max(len(row.prompt.ids) for row in rows)
        lengths = torch.tensor([len(row.prompt.ids) for row in rows])
        self.mask = (torch.arange(width) >= width - lengths[:, None]).long().to(decoder.device)
        self.cache: Any = DynamicCache(config=decoder.config)
        self._fill_cache(width)

    def run(self) -> None:
        """Decode until every row is done."""
        self._choose(torch.cat([row.prompt.state for row in self.rows]))
        while not all(row.done for row in self.rows):
            alive = [at for at, row in enumerate(self.rows) if not row.done]
            if 2 * len(alive) <= len(self.rows):
                self._keep(alive)
            self._choose(self._step())

    def _fill_cache(self, width: int) -> None:
        if any(row.prompt.keys_values is None for row in self.rows):
            ids = torch.tensor([[0] * (width - len(row.prompt.ids)) + row.prompt.ids for row in self.rows])
            self._forward(ids, (self.mask.cumsum(1) - 1).clamp_min(0))
            self.decoder.count(ids.numel(), self.decoder.n_layers, ids.numel())
            return
        for layer in range(self.decoder.n_layers):
            parts = [row.prompt.keys_values[layer] for row in self.rows if row.prompt.keys_values]
            keys, values = (
                torch.stack([pad(part[which], (0, 0, width - part[which].shape[1], 0)) for part in parts])
                for which in (0, 1)
            )
            self.cache.update(keys, values, layer)

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        output = self.decoder.loaded.model.base_model(
            input_ids=ids, attention_mask=self.mask, position_ids=positions, past_key_values=self.cache, use_cache=True
        )
        final: Tensor = output.last_hidden_state
        return final

    def _step(self) -> Tensor:
        """Feed one token a row; the final states (rows, d). Rows that want states of it get them."""
        ids = torch.tensor([[row.feed] for row in self.rows], device=self.decoder.device)
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.rows), 1)], 1)
        seen: dict[Tap, Tensor] = {}
        with ExitStack() as hooks:
            for tap in self.taps - {Tap(self.decoder.n_layers)}:

                def keep(_module: Any, _inputs: Any, output: Any, tap: Tap = tap) -> None:
                    seen[tap] = output[0] if isinstance(output, tuple) else output

                hooks.callback(self.decoder.site(tap).register_forward_hook(keep).remove)
            final = self._forward(ids, self.mask.sum(1, keepdim=True) - 1)[:, -1]
        seen[Tap(self.decoder.n_layers)] = final
        for at, row in enumerate(self.rows):
            ask = row.prompt.ask
            if ask.states and not row.done:
                row.states.append(seen[Tap(ask.states.layer, ask.states.site)][at].reshape(-1).cpu().clone())
        self.decoder.count(len(self.rows), self.decoder.n_layers, len(self.rows))
        return final

    def _choose(self, final: Tensor) -> None:
        """Take every row one token on, or let it end."""
        for row in self.rows:
            if row.closing:  # what was fed last ended it: EOS, or without states the last token
                row.done = row.done or row.feed == self.eos
                row.feed = row.feed if self.eos is None else self.eos
        open_rows = [at for at, row in enumerate(self.rows) if not row.closing]
        if not open_rows:
            return
        logits = self.decoder.logits(final[open_rows])
        log_p = logits.log_softmax(-1)
        greedy = logits.argmax(-1).tolist()
        for number, at in enumerate(open_rows):
            row, ask = self.rows[at], self.rows[at].prompt.ask
            token = greedy[number] if ask.temperature == 0 else _sample(logits[number], ask, row.generator)
            row.log_probs.append(float(log_p[number, token]))
            row.feed = token
            if token == self.eos:
                row.closing, row.done = True, ask.states is None
                continue
            row.tokens.append(token)
            if len(row.tokens) == ask.max_new_tokens:
                row.closing, row.done = True, ask.states is None

    def _keep(self, alive: list[int]) -> None:
        index = torch.tensor(alive, device=self.decoder.device)
        self.cache.batch_select_indices(index)
        self.mask = self.mask[index]
        self.rows = [self.rows[at] for at in alive]


def _sample(logits: Tensor, ask: Generate, generator: torch.Generator) -> int:
    """A token drawn from the smallest set that holds `top_p` of the probability at `temperature`."""
    probabilities, order = (logits.cpu() / ask.temperature).softmax(-1).sort(descending=True)
    outside = probabilities.cumsum(-1) - probabilities >= ask.top_p
    probabilities = probabilities.masked_fill(outside, 0.0)
    return int(order[torch.multinomial(probabilities, 1, generator=generator)])


def _finished(decoder: Decoder, row: _Row) -> Generated:
    text: str = decoder.loaded.tokenizer.decode(row.tokens, skip_special_tokens=True)
    return Generated(
        text=text.strip(),
        tokens=tuple(row.tokens),
        log_probs=torch.tensor(row.log_probs),
        ended=len(row.log_probs) > len(row.tokens),
        states=torch.stack(row.states) if row.states else None,
    )
