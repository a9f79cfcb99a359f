"""Generate answers for many prompts at once, with log-probabilities and hidden states (docs/decisions/072)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.attention import KeysValues
from abstain.llm.engine.beams import ConstrainedPrompt, beam_search
from abstain.llm.engine.decoder import Decoder, Hook
from abstain.llm.engine.incremental_decoder import KVCacheDecoder
from abstain.llm.engine.pauses import pause
from abstain.llm.engine.requests import ConstrainedGenerate, Generate

DECODE_ROWS = 32
"""Answers that are decoded side by side: a step reads all weights, however few rows it is for."""
BEAM_ROWS = 256
"""The beams that are: those of a prompt are many, and each lives for a few tokens."""


@dataclass(frozen=True)
class GeneratedText:
    """One answer. `tokens` are without EOS; `log_probs`, float32, have one entry a token and one for EOS if it `ended`.

    `states`: where requested, those of the tokens, (len(tokens), d), and of EOS in one more row if they include it.
    `choices`: float32 (len(log_probs), number of choices), the probability of each at every step.
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
class DecodingPrompt:
    """A pass to be answered: its final state (1, d) and, where the model packs, its keys and values.

    `choices`: the token ids of the request's choices. `target`: the text that is to be guessed.

    The keys and values move into the answers' cache and are released here.
    """

    key: str
    ids: list[int]
    ask: Generate | ConstrainedGenerate
    state: Tensor
    keys_values: KeysValues | None
    choices: tuple[int, ...] = ()
    target: str = ""

    @property
    def batch_share(self) -> float:
        """What it takes up of the answers that are decoded side by side."""
        rows, most = (
            (self.ask.beams, BEAM_ROWS)
            if isinstance(self.ask, ConstrainedGenerate)
            else (self.ask.samples, DECODE_ROWS)
        )
        return rows / most

    @property
    def cached_tokens(self) -> int:
        """The tokens whose keys and values are kept for it, of its prompt and, of beams, their own."""
        if isinstance(self.ask, ConstrainedGenerate) and self.keys_values is not None:
            return len(self.ids) + self.ask.beams * self.ask.max_new_tokens
        return len(self.ids) * (self.ask.beams if isinstance(self.ask, ConstrainedGenerate) else self.ask.samples)


@dataclass
class _DecodedRow:
    """One answer on its way. `feed`: the token that is read next; `closing`: its answer is complete."""

    prompt: DecodingPrompt
    ask: Generate
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
        states = self.ask.states
        return Hook(states.layer, states.site) if states else None


OnAnswerText = Callable[[str, str], None]
"""Is given a pass's key and its answer so far, after each of its tokens."""


def generate(
    decoder: Decoder, prompts: Sequence[DecodingPrompt], tell: OnAnswerText | None = None
) -> Iterator[tuple[str, list[GeneratedText] | Tensor]]:
    """Yield `(key, result)` for each prompt: its answers, or what was guessed. `tell` is called while they are written.

    Raises `AbstainError` where the state of EOS is wanted and the tokenizer has none.
    """
    eos = decoder.loaded.tokenizer.eos_token_id
    if eos is None and any(isinstance(prompt.ask, Generate) and prompt.ask.reads_eos for prompt in prompts):
        raise AbstainError(
            Code.MODEL_UNSUITABLE,
            "the base model's tokenizer has no EOS token, after which an answer's states are read: set "
            "llm.includes_eos: false",
        )
    rows = [
        _DecodedRow(prompt, prompt.ask, torch.Generator().manual_seed(prompt.ask.seed * 1_000_003 + sample))
        for prompt in prompts
        if isinstance(prompt.ask, Generate)
        for sample in range(prompt.ask.samples)
    ]
    if rows:
        with torch.inference_mode():
            _finish(decoder, rows, eos, tell)
    for prompt in prompts:
        if isinstance(prompt.ask, Generate):
            of_prompt = [row for row in rows if row.prompt is prompt]
            yield prompt.key, [_generated(decoder, row) for row in of_prompt]
    sought = {
        prompt.key: ConstrainedPrompt(prompt.ids, prompt.state, prompt.keys_values, prompt.ask, prompt.target)
        for prompt in prompts
        if isinstance(prompt.ask, ConstrainedGenerate)
    }
    if sought:
        for prompt in prompts:
            prompt.keys_values = None
        with torch.inference_mode():
            found = beam_search(decoder, list(sought.values()), eos)
        yield from zip(sought, found, strict=True)


def _finish(decoder: Decoder, rows: list[_DecodedRow], eos: int | None, tell: OnAnswerText | None) -> None:
    """Decode until every row is done. Rows that are done leave when half of them are: dropping one costs a copy."""
    kv_decoder = KVCacheDecoder(decoder, [row.prompt.ids for row in rows], [row.prompt.keys_values for row in rows])
    for row in rows:
        row.prompt.keys_values = None
    final = torch.cat([row.prompt.state for row in rows])
    while True:
        pause()
        _choose(decoder, rows, final, eos)
        if tell is not None:
            for row in rows:
                if not row.done and row.feed != eos:
                    tell(row.prompt.key, _text(decoder, row))
        alive = [at for at, row in enumerate(rows) if not row.done]
        if not alive:
            return
        if 2 * len(alive) <= len(rows):
            kv_decoder.select(alive)
            rows = [rows[at] for at in alive]
        hooks = {row.hook for row in rows if row.hook}
        seen = kv_decoder.read([row.feed for row in rows], hooks)
        on_host = {hook: seen[hook].cpu() for hook in hooks}  # one copy a step: a GPU would wait for each
        for at, row in enumerate(rows):
            if row.hook and not row.done:
                row.states.append(on_host[row.hook][at].clone())
        final = seen[Hook(decoder.n_layers)]


def _choose(decoder: Decoder, rows: Sequence[_DecodedRow], final: Tensor, eos: int | None) -> None:
    """Take every row one token on, or let it end."""
    for row in rows:
        if row.closing:  # its last token has been read, or EOS after it
            row.done = row.done or row.feed == eos or not row.ask.reads_eos
            row.feed = row.feed if eos is None else eos
    still = [at for at, row in enumerate(rows) if not row.closing]
    if not still:
        return
    logits = decoder.logits(final[still])
    log_p = logits.log_softmax(-1)
    likeliest = logits.argmax(-1).tolist()
    for number, at in enumerate(still):
        row, ask = rows[at], rows[at].ask
        row.feed = likeliest[number] if ask.temperature == 0 else _sample(logits[number], ask, row.generator)
    fed = torch.tensor([rows[at].feed for at in still], device=log_p.device)
    of_fed = log_p.gather(1, fed[:, None])[:, 0].tolist()
    for number, at in enumerate(still):
        row, ask = rows[at], rows[at].ask
        row.log_probs.append(of_fed[number])
        if row.prompt.choices:
            row.choices.append(log_p[number, list(row.prompt.choices)].exp())
        if row.feed != eos:
            row.tokens.append(row.feed)
        if row.feed == eos or len(row.tokens) == ask.max_new_tokens:
            row.closing = True
            row.done = ask.states is None or (row.feed == eos and not ask.reads_eos)


def _sample(logits: Tensor, ask: Generate, generator: torch.Generator) -> int:
    """A token drawn from the smallest set that holds `top_p` of the probability at `temperature`."""
    probabilities, order = (logits.cpu() / ask.temperature).softmax(-1).sort(descending=True)
    outside = probabilities.cumsum(-1) - probabilities >= ask.top_p
    outside[0] = False  # where `top_p` is below the smallest float32
    probabilities = probabilities.masked_fill(outside, 0.0)
    return int(order[torch.multinomial(probabilities, 1, generator=generator)])


def _generated(decoder: Decoder, row: _DecodedRow) -> GeneratedText:
    return GeneratedText(
        text=_text(decoder, row),
        tokens=tuple(row.tokens),
        log_probs=torch.tensor(row.log_probs),
        ended=len(row.log_probs) > len(row.tokens),
        states=torch.stack(row.states) if row.states else None,
        choices=torch.stack(row.choices).cpu() if row.choices else torch.empty(len(row.log_probs), 0),
    )


def _text(decoder: Decoder, row: _DecodedRow) -> str:
    text: str = decoder.loaded.tokenizer.decode(row.tokens, skip_special_tokens=True)
    return text.strip()
