"""Constrained beam search: find the likeliest answers that contain a text, for many prompts at once.

The beams of a step are distributed over banks, one for each number of tokens of the text that a beam still lacks
(Anderson et al. 2017, "Guided open vocabulary image captioning with constrained beam search", with one beam size for
all banks together, as in Post and Vilar 2018). So beams on their way to the text are not crowded out by fluent ones
that will never contain it.

All searches advance by one token together: a step reads the model's weights once for all their beams. A search ends
early if no beam can become better than the best finished answer.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor

from abstain.llm.engine.decoder import Decoder
from abstain.llm.engine.incremental_decoder import DecodingPrompt, KVCacheDecoder, SharedPromptDecoder
from abstain.llm.engine.pauses import pause
from abstain.llm.engine.requests import ConstrainedGenerate
from abstain.llm.engine.tokenization import TOKENIZER_LOCK


@dataclass(frozen=True)
class Beam:
    """A partial answer of a search.

    Attributes:
        tokens: Token ids so far, including an EOS that ended the answer.
        log_probs: Log-probability of each token.
        overlaps: For each form of the text, the number of its first tokens that end `tokens`.
        missing_tokens: Number of tokens of the text that are still missing.
    """

    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    overlaps: tuple[int, ...] = ()
    missing_tokens: int = 0

    @property
    def score(self) -> float:
        """The mean log-probability of a token, by which beams of different lengths are ranked."""
        return sum(self.log_probs) / max(len(self.log_probs), 1)


def beam_search(decoder: Decoder, prompts: Sequence[DecodingPrompt], eos: int | None) -> list[Tensor]:
    """Search the best answer to each prompt that contains its target (rules: `ConstrainedGenerate`).

    Args:
        decoder: Decoder of the base model.
        prompts: Prompts with their targets.
        eos: Token id of EOS, if the tokenizer has one.

    Returns:
        For each prompt the token and the log-probability of each step, (steps, 2), float32.
    """
    searches = []
    for prompt in prompts:
        assert isinstance(prompt.operation, ConstrainedGenerate)
        searches.append(_Search(get_token_forms(decoder.loaded.tokenizer, prompt.target), prompt.operation, eos))
    state = torch.cat([prompt.state for prompt in prompts])
    rows = _make_rows(decoder, prompts)
    while True:
        continuations: list[tuple[int, int]] = []  # the row that each new beam continues, and its new token
        offset = 0
        pause()
        for search in searches:
            n_beams = len(search.beams)
            if n_beams:  # one search at a time: the probabilities of a large vocabulary for all take gigabytes
                log_p = decoder.compute_logits(state[offset : offset + n_beams]).log_softmax(-1)
                continuations += [(offset + row, token) for row, token in search.step(log_p)]
            offset += n_beams
        if not continuations:
            return [search.result() for search in searches]
        rows.select([row for row, _ in continuations])
        state = rows.read_final([token for _, token in continuations])


def _make_rows(decoder: Decoder, prompts: Sequence[DecodingPrompt]) -> SharedPromptDecoder | KVCacheDecoder:
    """Make a decoder with a row for each prompt. It has a copy of their keys and values, which are released here."""
    packed = [prompt.keys_values for prompt in prompts if prompt.keys_values is not None]
    rows = (
        SharedPromptDecoder(decoder, packed)
        if len(packed) == len(prompts)
        else KVCacheDecoder(decoder, [prompt.ids for prompt in prompts], [prompt.keys_values for prompt in prompts])
    )
    for prompt in prompts:
        prompt.keys_values = None
    return rows


_Candidate = tuple[float, int, int, tuple[int, ...], int, float]
"""Sum of log-probabilities, row and new token of a continuation; its overlaps, missing tokens and log-probability."""


class _Search:
    """The beams of one prompt. There are none if no form of the text fits into the answer."""

    def __init__(self, phrases: Sequence[tuple[int, ...]], operation: ConstrainedGenerate, eos: int | None) -> None:
        self._phrases, self._operation, self._eos = phrases, operation, eos
        phrase_tokens = sorted({token for phrase in phrases for token in phrase})
        self._columns = {token: column for column, token in enumerate(phrase_tokens)}
        self._progress: dict[tuple[tuple[int, ...], int], tuple[tuple[int, ...], int]] = {}
        self.beams = [Beam(overlaps=(0,) * len(phrases), missing_tokens=min(map(len, phrases)))]
        self._best: Beam | None = None

    def step(self, log_p: Tensor) -> list[tuple[int, int]]:
        """Extend all beams by one token.

        Args:
            log_p: Log-probabilities of the next token, (beams, vocabulary).

        Returns:
            (old row, new token) of each beam that continues.
        """
        chosen = _select_across_banks(self._candidates(log_p), self._operation.beams)
        parents = self.beams
        self.beams = [
            Beam((*parents[row].tokens, token), (*parents[row].log_probs, value), overlaps, missing_tokens)
            for _, row, token, overlaps, missing_tokens, value in chosen
        ]
        if self._is_over():
            self.beams = []
            return []
        return [(row, token) for _, row, token, *_ in chosen]

    def result(self) -> Tensor:
        """Return token and log-probability of each step of the best beam, (steps, 2); (0, 2) if there is none."""
        best = self._best or Beam()
        return torch.tensor([best.tokens, best.log_probs], dtype=torch.float32).T.contiguous()

    def _candidates(self, log_p: Tensor) -> list[_Candidate]:
        """List the continuations.

        Every beam is continued by its likeliest tokens and by those that take it further in a phrase. Beams that end
        with EOS are compared with the best answer here.
        """
        top = log_p.topk(min(2 * self._operation.beams, log_p.shape[1]), -1)
        likeliest, values = top.indices.tolist(), top.values.tolist()
        phrase_log_p = log_p[:, list(self._columns)].tolist()
        candidates = []
        for row, beam in enumerate(self.beams):
            total, room = sum(beam.log_probs), self._operation.max_new_tokens - len(beam.tokens) - 1
            tokens = dict(zip(likeliest[row], values[row], strict=True))
            if beam.missing_tokens:
                for phrase, length in zip(self._phrases, beam.overlaps, strict=True):
                    tokens[phrase[length]] = phrase_log_p[row][self._columns[phrase[length]]]
            for token, value in tokens.items():
                if token == self._eos:
                    if not beam.missing_tokens:
                        self._finish(Beam((*beam.tokens, token), (*beam.log_probs, value)))
                    continue
                overlaps, missing_tokens = self._advance(beam, token) if beam.missing_tokens else ((), 0)
                if missing_tokens <= room:
                    candidates.append((total + value, row, token, overlaps, missing_tokens, value))
        return candidates

    def _advance(self, beam: Beam, token: int) -> tuple[tuple[int, ...], int]:
        """Return the overlaps and the number of missing tokens of a beam after one more token.

        They depend on the beam's tokens through its overlaps only, and are the same after all tokens of no phrase.
        """
        token = token if token in self._columns else -1
        key = (beam.overlaps, token)
        if key not in self._progress:
            overlaps = tuple(
                _overlap_length((*phrase[:length], token), phrase)
                for phrase, length in zip(self._phrases, beam.overlaps, strict=True)
            )
            missing_tokens = min(len(phrase) - length for phrase, length in zip(self._phrases, overlaps, strict=True))
            self._progress[key] = overlaps, missing_tokens
        return self._progress[key]

    def _is_over(self) -> bool:
        """Return whether no beam continues or can become better.

        A further token never raises the sum of log-probabilities, so the longest possible answer bounds the score.
        """
        if self.beams and len(self.beams[0].tokens) == self._operation.max_new_tokens:
            for beam in self.beams:  # all of them contain the text: the others had no room left
                self._finish(beam)
            return True
        best_total = max((sum(beam.log_probs) for beam in self.beams), default=float("-inf"))
        return not self.beams or (
            self._best is not None and best_total / self._operation.max_new_tokens <= self._best.score
        )

    def _finish(self, beam: Beam) -> None:
        if self._best is None or beam.score > self._best.score:
            self._best = beam


def _select_across_banks(candidates: Sequence[_Candidate], size: int) -> list[_Candidate]:
    """Return the best `size` of `candidates`, taken in turns from the banks of equally many missing tokens."""
    banks: dict[int, list[_Candidate]] = {}
    for candidate in sorted(candidates, key=itemgetter(0), reverse=True):
        banks.setdefault(candidate[4], []).append(candidate)
    ordered = [banks[missing_tokens] for missing_tokens in sorted(banks)]
    interleaved = [bank[rank] for rank in range(size) for bank in ordered if rank < len(bank)]
    return interleaved[:size]


def get_token_forms(tokenizer: object, text: str) -> list[tuple[int, ...]]:
    """Return the token ids of the forms of a text, at the beginning of an answer and after a space.

    The forms are: as written, in lower case, in upper case, with a capital at the first word, and with a capital at
    every word. Text that looks like a special token is split, as in a prompt.

    Args:
        tokenizer: Tokenizer of the base model.
        text: The text.

    Returns:
        The token ids of each distinct form. There is at least one, which may have no tokens.
    """
    forms = dict.fromkeys((text, text.lower(), text.upper(), text.capitalize(), string.capwords(text)))
    with TOKENIZER_LOCK:
        encoded = [
            tokenizer.encode(f"{prefix}{form}", add_special_tokens=False, split_special_tokens=True)  # type: ignore[attr-defined]
            for form in forms
            for prefix in (" ", "")
        ]
    return [tuple(ids) for ids in dict.fromkeys(map(tuple, encoded))]


def _overlap_length(tokens: tuple[int, ...], phrase: tuple[int, ...]) -> int:
    """Return the length of the longest end of `tokens` that is a beginning of `phrase`."""
    return next(n for n in range(min(len(phrase), len(tokens)), -1, -1) if tokens[len(tokens) - n :] == phrase[:n])
