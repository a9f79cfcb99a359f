"""Generate answers for many prompts at once, with log-probabilities and hidden states (docs/decisions/072)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.beams import beam_search
from abstain.llm.engine.decoder import Decoder, Hook
from abstain.llm.engine.incremental_decoder import DecodingPrompt, KVCacheDecoder
from abstain.llm.engine.pauses import pause
from abstain.llm.engine.requests import ConstrainedGenerate, Generate


@dataclass(frozen=True)
class GeneratedText:
    """A generated answer.

    Attributes:
        text: The answer, without special tokens.
        tokens: Token ids, without EOS.
        log_probs: Log-probability of each token, and of EOS if the answer `ended`, float32.
        ended: Whether EOS ended the answer.
        states: Hidden states of the tokens, (len(tokens), d), if requested, with one more row for EOS if requested.
        choices: Probability of each tracked token at every step, (len(log_probs), tracked tokens), float32.
    """

    text: str
    tokens: tuple[int, ...]
    log_probs: Tensor
    ended: bool
    states: Tensor | None
    choices: Tensor

    def to_cache_row(self, eos: int | None) -> Tensor:
        """Return the answer as its row in the feature cache.

        Args:
            eos: Token id of EOS, if the tokenizer has one.

        Returns:
            The token id and the probabilities of the tracked tokens at every step, (len(log_probs), 1 + tracked
            tokens), float32.
        """
        tokens = [*self.tokens, *([eos] if self.ended and eos is not None else [])]
        return torch.cat([torch.tensor(tokens, dtype=torch.float32)[:, None], self.choices], 1)


@dataclass
class _DecodedRow:
    """An answer in progress. `next_token` is read next; `is_complete` says that the answer has all its tokens."""

    prompt: DecodingPrompt
    operation: Generate
    generator: torch.Generator
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    choices: list[Tensor] = field(default_factory=list)
    next_token: int = 0
    is_complete: bool = False
    is_done: bool = False

    @property
    def hook(self) -> Hook | None:
        states = self.operation.states
        return Hook(states.layer, states.site) if states else None


OnAnswerText = Callable[[str, str], None]
"""Callback that receives a request's key and its answer so far, after each token."""


def generate(
    decoder: Decoder, prompts: Sequence[DecodingPrompt], on_answer_text: OnAnswerText | None = None
) -> Iterator[tuple[str, list[GeneratedText] | Tensor]]:
    """Generate the answers to prompts.

    Args:
        decoder: Decoder of the base model.
        prompts: Prompts to be answered.
        on_answer_text: Called with (key, text so far) after each token of a `Generate` answer.

    Yields:
        (key, result): a list of answers, or (steps, 2) for `ConstrainedGenerate`.

    Raises:
        AbstainError: The state of EOS is requested and the tokenizer has no EOS.
    """
    eos = decoder.loaded.tokenizer.eos_token_id
    if eos is None and any(isinstance(prompt.operation, Generate) and prompt.operation.reads_eos for prompt in prompts):
        raise AbstainError(
            Code.MODEL_UNSUITABLE,
            "the base model's tokenizer has no EOS token, after which an answer's states are read: set "
            "llm.includes_eos: false",
        )
    rows = [
        _DecodedRow(prompt, prompt.operation, torch.Generator().manual_seed(prompt.operation.seed * 1_000_003 + sample))
        for prompt in prompts
        if isinstance(prompt.operation, Generate)
        for sample in range(prompt.operation.samples)
    ]
    if rows:
        with torch.inference_mode():
            _decode_rows(decoder, rows, eos, on_answer_text)
    for prompt in prompts:
        if isinstance(prompt.operation, Generate):
            prompt_rows = [row for row in rows if row.prompt is prompt]
            yield prompt.key, [_make_generated_text(decoder, row) for row in prompt_rows]
    constrained = [prompt for prompt in prompts if isinstance(prompt.operation, ConstrainedGenerate)]
    if constrained:
        with torch.inference_mode():
            results = beam_search(decoder, constrained, eos)
        yield from ((prompt.key, result) for prompt, result in zip(constrained, results, strict=True))


def _decode_rows(
    decoder: Decoder, rows: list[_DecodedRow], eos: int | None, on_answer_text: OnAnswerText | None
) -> None:
    """Decode until every row is done. Finished rows leave when half of the rows are done: dropping one costs a copy."""
    kv_decoder = KVCacheDecoder(decoder, [row.prompt.ids for row in rows], [row.prompt.keys_values for row in rows])
    for row in rows:
        row.prompt.keys_values = None
    final = torch.cat([row.prompt.state for row in rows])
    while True:
        pause()
        _choose_tokens(decoder, rows, final, eos)
        if on_answer_text is not None:
            for row in rows:
                if not row.is_done and row.next_token != eos:
                    on_answer_text(row.prompt.key, _decode_text(decoder, row))
        active = [index for index, row in enumerate(rows) if not row.is_done]
        if not active:
            return
        if 2 * len(active) <= len(rows):
            kv_decoder.select(active)
            rows = [rows[index] for index in active]
        hooks = {row.hook for row in rows if row.hook}
        states = kv_decoder.read([row.next_token for row in rows], hooks)
        on_host = {hook: states[hook].cpu() for hook in hooks}  # one copy a step: a GPU would wait for each
        for index, row in enumerate(rows):
            if row.hook and not row.is_done:
                row.states.append(on_host[row.hook][index].clone())
        final = states[Hook(decoder.n_layers)]


def _choose_tokens(decoder: Decoder, rows: Sequence[_DecodedRow], final: Tensor, eos: int | None) -> None:
    """Extend every row by one token, or end it."""
    for row in rows:
        if row.is_complete:  # its last token has been read, or EOS after it
            row.is_done = row.is_done or row.next_token == eos or not row.operation.reads_eos
            row.next_token = row.next_token if eos is None else eos
    unfinished = [index for index, row in enumerate(rows) if not row.is_complete]
    if not unfinished:
        return
    logits = decoder.compute_logits(final[unfinished])
    log_p = logits.log_softmax(-1)
    likeliest = logits.argmax(-1).tolist()
    for position, index in enumerate(unfinished):
        row, operation = rows[index], rows[index].operation
        row.next_token = (
            likeliest[position] if operation.temperature == 0 else _sample(logits[position], operation, row.generator)
        )
    next_tokens = torch.tensor([rows[index].next_token for index in unfinished], device=log_p.device)
    next_log_p = log_p.gather(1, next_tokens[:, None])[:, 0].tolist()
    for position, index in enumerate(unfinished):
        row, operation = rows[index], rows[index].operation
        row.log_probs.append(next_log_p[position])
        if row.prompt.choices:
            row.choices.append(log_p[position, list(row.prompt.choices)].exp())
        if row.next_token != eos:
            row.tokens.append(row.next_token)
        if row.next_token == eos or len(row.tokens) == operation.max_new_tokens:
            row.is_complete = True
            row.is_done = operation.states is None or (row.next_token == eos and not operation.reads_eos)


def _sample(logits: Tensor, operation: Generate, generator: torch.Generator) -> int:
    """Sample a token from the smallest set that holds `top_p` of the probability at `temperature`."""
    probabilities, order = (logits.cpu() / operation.temperature).softmax(-1).sort(descending=True)
    outside = probabilities.cumsum(-1) - probabilities >= operation.top_p
    outside[0] = False  # where `top_p` is below the smallest float32
    probabilities = probabilities.masked_fill(outside, 0.0)
    return int(order[torch.multinomial(probabilities, 1, generator=generator)])


def _make_generated_text(decoder: Decoder, row: _DecodedRow) -> GeneratedText:
    return GeneratedText(
        text=_decode_text(decoder, row),
        tokens=tuple(row.tokens),
        log_probs=torch.tensor(row.log_probs),
        ended=len(row.log_probs) > len(row.tokens),
        states=torch.stack(row.states) if row.states else None,
        choices=torch.stack(row.choices).cpu() if row.choices else torch.empty(len(row.log_probs), 0),
    )


def _decode_text(decoder: Decoder, row: _DecodedRow) -> str:
    text: str = decoder.loaded.tokenizer.decode(row.tokens, skip_special_tokens=True)
    return text.strip()
