"""Generate answers for many prompts at once, with log-probabilities and hidden states (docs/decisions/072)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.attention import KeysValues
from abstain.llm.engine.beams import search
from abstain.llm.engine.decoder import Decoder, Hook
from abstain.llm.engine.incremental_decoder import KVCacheDecoder
from abstain.llm.engine.requests import Generate


@dataclass(frozen=True)
class Generated:
    """One answer. `tokens` are without EOS; `log_probs`, float32, have one entry a token and one for EOS if it `ended`.

    `states`: (len(tokens) + 1, d), those of the tokens and of EOS, where requested. `choices`: float32
    (len(log_probs), number of choices), the probability of each at every step.
    """

    text: str
    tokens: tuple[int, ...]
    log_probs: Tensor
    ended: bool
    states: Tensor | None
    choices: Tensor

    def steps(self, eos: int | None) -> Tensor:
        """Its row in the feature cache: (len(log_probs), 1 + number of choices), float32, the token first."""
        tokens = [*self.tokens, *([eos] if self.ended and eos is not None else [])]
        return torch.cat([torch.tensor(tokens, dtype=torch.float32)[:, None], self.choices], 1)


@dataclass(eq=False)
class Prompt:
    """A pass to be answered: its final state (1, d) and, where the model packs, its keys and values.

    `choices`: the token ids of the request's choices.

    The keys and values move into the answers' cache and are released here.
    """

    key: str
    ids: list[int]
    ask: Generate
    state: Tensor
    keys_values: KeysValues | None
    choices: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """The number of answers that are generated for it."""
        return self.ask.beams or self.ask.samples


@dataclass
class _DecodedRow:
    """One answer on its way. `feed`: the token that is read next; `closing`: its answer is complete."""

    prompt: Prompt
    generator: torch.Generator
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    choices: list[Tensor] = field(default_factory=list)
    feed: int = 0
    closing: bool = False
    done: bool = False

    @property
    def hook(self) -> Hook | None:
        states = self.prompt.ask.states
        return Hook(states.layer, states.site) if states else None


def decode(decoder: Decoder, prompts: Sequence[Prompt]) -> Iterator[tuple[str, list[Generated]]]:
    """Yield `(key, answers)` for each prompt, in order.

    Raises `AbstainError` where states are wanted and the tokenizer has no EOS, whose states are part of them.
    """
    eos = decoder.loaded.tokenizer.eos_token_id
    if eos is None and any(prompt.ask.states for prompt in prompts):
        raise AbstainError(
            Code.UNSUITABLE,
            "the base model's tokenizer has no EOS token, after which an answer's states are read",
        )
    rows = [
        _DecodedRow(prompt, torch.Generator().manual_seed(prompt.ask.seed * 1_000_003 + sample))
        for prompt in prompts
        if not prompt.ask.beams
        for sample in range(prompt.ask.samples)
    ]
    with torch.inference_mode():
        if rows:
            _finish(decoder, rows, eos)
    for prompt in prompts:
        if prompt.ask.beams:
            with torch.inference_mode():
                beams = search(decoder, prompt.ids, prompt.state, prompt.keys_values, prompt.ask, eos)
            answers = [_generated(decoder, beam.tokens, beam.log_probs) for beam in beams]
        else:
            of_prompt = [row for row in rows if row.prompt is prompt]
            answers = [_generated(decoder, row.tokens, row.log_probs, row.states, row.choices) for row in of_prompt]
        yield prompt.key, answers


def _finish(decoder: Decoder, rows: list[_DecodedRow], eos: int | None) -> None:
    """Decode until every row is done. Rows that are done leave when half of them are: dropping one costs a copy."""
    kv_decoder = KVCacheDecoder(decoder, [row.prompt.ids for row in rows], [row.prompt.keys_values for row in rows])
    for row in rows:
        row.prompt.keys_values = None
    final = torch.cat([row.prompt.state for row in rows])
    while True:
        _choose(decoder, rows, final, eos)
        alive = [at for at, row in enumerate(rows) if not row.done]
        if not alive:
            return
        if 2 * len(alive) <= len(rows):
            kv_decoder.select(alive)
            rows = [rows[at] for at in alive]
        seen = kv_decoder.read([row.feed for row in rows], {row.hook for row in rows if row.hook})
        for at, row in enumerate(rows):
            if row.hook and not row.done:
                row.states.append(seen[row.hook][at].cpu().clone())
        final = seen[Hook(decoder.n_layers)]


def _choose(decoder: Decoder, rows: Sequence[_DecodedRow], final: Tensor, eos: int | None) -> None:
    """Take every row one token on, or let it end."""
    for row in rows:
        if row.closing:  # its last token has been read, or EOS after it
            row.done = row.done or row.feed == eos
            row.feed = row.feed if eos is None else eos
    still = [at for at, row in enumerate(rows) if not row.closing]
    if not still:
        return
    logits = decoder.logits(final[still])
    log_p = logits.log_softmax(-1)
    likeliest = logits.argmax(-1).tolist()
    for number, at in enumerate(still):
        row, ask = rows[at], rows[at].prompt.ask
        row.feed = likeliest[number] if ask.temperature == 0 else _sample(logits[number], ask, row.generator)
        row.log_probs.append(float(log_p[number, row.feed]))
        if row.prompt.choices:
            row.choices.append(log_p[number, list(row.prompt.choices)].exp().cpu())
        if row.feed != eos:
            row.tokens.append(row.feed)
        if row.feed == eos or len(row.tokens) == ask.max_new_tokens:
            row.closing, row.done = True, ask.states is None


def _sample(logits: Tensor, ask: Generate, generator: torch.Generator) -> int:
    """A token drawn from the smallest set that holds `top_p` of the probability at `temperature`."""
    probabilities, order = (logits.cpu() / ask.temperature).softmax(-1).sort(descending=True)
    outside = probabilities.cumsum(-1) - probabilities >= ask.top_p
    probabilities = probabilities.masked_fill(outside, 0.0)
    return int(order[torch.multinomial(probabilities, 1, generator=generator)])


def _generated(
    decoder: Decoder,
    tokens: Sequence[int],
    log_probs: Sequence[float],
    states: Sequence[Tensor] = (),
    choices: Sequence[Tensor] = (),
) -> Generated:
    text: str = decoder.loaded.tokenizer.decode(list(tokens), skip_special_tokens=True)
    return Generated(
        text=text.strip(),
        tokens=tuple(tokens),
        log_probs=torch.tensor(log_probs),
        ended=len(log_probs) > len(tokens),
        states=torch.stack(list(states)) if states else None,
        choices=torch.stack(list(choices)) if choices else torch.empty(len(log_probs), 0),
    )
