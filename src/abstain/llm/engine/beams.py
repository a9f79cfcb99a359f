"""Constrained beam search: the likeliest answers that contain a text, for many prompts at once.

The beams of a step are shared out over banks, one for each number of tokens that a beam still lacks of the text
(Anderson et al. 2017, "Guided open vocabulary image captioning with constrained beam search", with one beam size for
all banks together, as Post and Vilar 2018 have it): beams on their way to the text are not crowded out by fluent
ones that will never contain it.

All searches go one token on together: a step reads the model's weights once for all their beams. A search ends early
where no beam can become better than the best answer that is finished.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from abstain.llm.engine.attention import KeysValues
from abstain.llm.engine.decoder import Decoder
from abstain.llm.engine.incremental_decoder import beam_decoder
from abstain.llm.engine.pauses import pause
from abstain.llm.engine.requests import ConstrainedGenerate
from abstain.llm.engine.tokenization import TOKENIZER_LOCK


@dataclass(frozen=True)
class Beam:
    """Tokens so far, an EOS that ended it included, and the log-probability of each; `missing_tokens`: those of the text that
    are missing."""

    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    missing_tokens: int = 0

    @property
    def score(self) -> float:
        """Mean log-probability of a token: what beams of different lengths are ranked by."""
        return sum(self.log_probs) / max(len(self.log_probs), 1)


@dataclass(eq=False)
class ConstrainedPrompt:
    """A prompt whose answer is to contain `target`: token ids, final state (1, d), and keys and values if it packs."""

    ids: list[int]
    state: Tensor
    keys_values: KeysValues | None
    ask: ConstrainedGenerate
    target: str


def beam_search(decoder: Decoder, prompts: Sequence[ConstrainedPrompt], eos: int | None) -> list[Tensor]:
    """The best beam for each prompt: (steps, 2), float32, token and log-probability; shapes and rules: `ConstrainedGenerate`."""
    searches = [
        _Search(get_token_forms(decoder.loaded.tokenizer, prompt.target), prompt.ask, eos) for prompt in prompts
    ]
    state = torch.cat([prompt.state for prompt in prompts])
    rows = beam_decoder(decoder, [prompt.ids for prompt in prompts], [prompt.keys_values for prompt in prompts])
    for prompt in prompts:
        prompt.keys_values = None
    while True:
        going_on: list[tuple[int, int]] = []  # the row that each new beam continues, and its new token
        first = 0
        pause()
        for one in searches:
            here = len(one.beams)
            if here:  # one search at a time: the probabilities of a large vocabulary for all take gigabytes
                log_p = decoder.logits(state[first : first + here]).log_softmax(-1)
                going_on += [(first + row, token) for row, token in one.step(log_p)]
            first += here
        if not going_on:
            return [one.result() for one in searches]
        rows.select([row for row, _ in going_on])
        state = rows.read_final([token for _, token in going_on])


class _Search:
    """The beams of one prompt. There are none where no form of the text has room."""

    def __init__(self, texts: Sequence[tuple[int, ...]], ask: ConstrainedGenerate, eos: int | None) -> None:
        self._phrases, self._ask, self._eos = texts, ask, eos
        self._of_phrases = sorted({token for phrase in texts for token in phrase})
        self._shortest = min(map(len, texts))
        self.beams = [Beam(missing_tokens=self._shortest)]
        self._best: Beam | None = None

    def step(self, log_p: Tensor) -> list[tuple[int, int]]:
        """Take all beams one token on by `log_p` (beams, vocabulary): (old row, new token) of each that goes on."""
        chosen = _select_across_banks(self._candidates(log_p), self._ask.beams)
        old = self.beams
        self.beams = [
            Beam((*old[row].tokens, token), (*old[row].log_probs, value), lacks)
            for _, row, token, lacks, value in chosen
        ]
        if self._is_over():
            self.beams = []
            return []
        return [(row, token) for _, row, token, _, _ in chosen]

    def result(self) -> Tensor:
        """Token and log-probability of each step of the best beam, (steps, 2); (0, 2) where there is none."""
        best = self._best or Beam()
        return torch.tensor([best.tokens, best.log_probs], dtype=torch.float32).T.contiguous()

    def _candidates(self, log_p: Tensor) -> list[tuple[float, int, int, int, float]]:
        """Sum of log-probabilities, row, token, tokens that it lacks, and log-probability of each continuation.

        Of every beam the likeliest tokens and those that take it on in a phrase. Those with EOS are judged here.
        """
        top = log_p.topk(min(2 * self._ask.beams, log_p.shape[1]), -1)
        likeliest, values = top.indices.tolist(), top.values.tolist()
        of_phrases = log_p[:, self._of_phrases].tolist()
        found = []
        for row, beam in enumerate(self.beams):
            total = sum(beam.log_probs)
            tokens = dict(zip(likeliest[row], values[row], strict=True))
            if beam.missing_tokens:
                wanted = {phrase[_overlap_length(beam.tokens, phrase)] for phrase in self._phrases}
                along = zip(self._of_phrases, of_phrases[row], strict=True)
                tokens.update((token, value) for token, value in along if token in wanted)
            for token, value in tokens.items():
                if token == self._eos:
                    if not beam.missing_tokens:
                        self._finish(Beam((*beam.tokens, token), (*beam.log_probs, value)))
                    continue
                lacks = self._lacks(beam, token)
                if len(beam.tokens) + 1 + lacks <= self._ask.max_new_tokens:
                    found.append((total + value, row, token, lacks, value))
        return found

    def _lacks(self, beam: Beam, token: int) -> int:
        """The number of tokens missing until `beam` with `token` contains a phrase."""
        if not beam.missing_tokens:
            return 0
        if token not in self._of_phrases:
            return self._shortest
        tokens = (*beam.tokens, token)
        if any(tokens[-len(phrase) :] == phrase for phrase in self._phrases):
            return 0
        return min(len(phrase) - _overlap_length(tokens, phrase) for phrase in self._phrases)

    def _is_over(self) -> bool:
        """Whether nothing goes on, or nothing that may become better: every further token costs, or costs nothing."""
        if self.beams and len(self.beams[0].tokens) == self._ask.max_new_tokens:
            for beam in self.beams:  # all of them contain the text: the others had no room left
                self._finish(beam)
            return True
        most = max((sum(beam.log_probs) for beam in self.beams), default=float("-inf"))
        return not self.beams or (self._best is not None and most / self._ask.max_new_tokens <= self._best.score)

    def _finish(self, beam: Beam) -> None:
        if self._best is None or beam.score > self._best.score:
            self._best = beam


def _select_across_banks(
    candidates: Sequence[tuple[float, int, int, int, float]], size: int
) -> list[tuple[float, int, int, int, float]]:
    """The best `size` of `candidates`, taken in turns from the banks of those that lack equally much."""
    banks: dict[int, list[tuple[float, int, int, int, float]]] = {}
    for candidate in sorted(candidates, key=lambda candidate: -candidate[0]):
        banks.setdefault(candidate[3], []).append(candidate)
    ordered = [banks[lacks] for lacks in sorted(banks)]
    in_turns = [bank[at] for at in range(size) for bank in ordered if at < len(bank)]
    return in_turns[:size]


def get_token_forms(tokenizer: object, text: str) -> list[tuple[int, ...]]:
    """Token ids of the forms of `text`, at the beginning of an answer and after a space.

    The forms: as it is written, in lower and in upper case, and with a capital at its first word, or at every word.
    What looks like a special token is split, as in a prompt. There is at least one, if need be of no tokens.
    """
    forms = dict.fromkeys((text, text.lower(), text.upper(), text.capitalize(), string.capwords(text)))
    with TOKENIZER_LOCK:
        spelt = [
            tokenizer.encode(f"{before}{form}", add_special_tokens=False, split_special_tokens=True)  # type: ignore[attr-defined]
            for form in forms
            for before in (" ", "")
        ]
    return [tuple(ids) for ids in dict.fromkeys(map(tuple, spelt))]


def _overlap_length(tokens: tuple[int, ...], phrase: tuple[int, ...]) -> int:
    """The length of the longest end of `tokens` that is a beginning of `phrase`."""
    return next(n for n in range(min(len(phrase) - 1, len(tokens)), -1, -1) if tokens[len(tokens) - n :] == phrase[:n])
