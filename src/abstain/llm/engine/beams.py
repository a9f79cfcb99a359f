"""Constrained beam search: the likeliest answers that contain one of several phrases.

The beams of a step are shared out over banks, one for each number of tokens that a beam still lacks of a phrase
(Anderson et al. 2017, "Guided open vocabulary image captioning with constrained beam search", with one beam size for
all banks together, as Post and Vilar 2018 have it): beams on their way to a phrase are not crowded out by fluent
ones that will never contain it. Without phrases it is plain beam search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.attention import KeysValues
from abstain.llm.engine.decoder import Decoder, Hook
from abstain.llm.engine.incremental_decoder import KVCacheDecoder
from abstain.llm.engine.requests import Generate


@dataclass(frozen=True)
class Beam:
    """Tokens so far (EOS left out) and the log-probability of each, and of EOS where it `ended`."""

    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    lacks: int = 0
    ended: bool = False

    @property
    def score(self) -> float:
        """Mean log-probability of a token: what beams of different lengths are ranked by."""
        return sum(self.log_probs) / max(len(self.log_probs), 1)


def search(
    decoder: Decoder, ids: list[int], state: Tensor, keys_values: KeysValues | None, ask: Generate, eos: int | None
) -> list[Beam]:
    """The `ask.samples` best of `ask.beams` beams that contain one of `ask.contains`, best first.

    There are fewer where the limit of tokens leaves room for fewer. Raises `AbstainError` where it is shorter than
    every phrase.
    """
    phrases = _phrases(decoder, ask.contains)
    if phrases and min(map(len, phrases)) > ask.max_new_tokens:
        raise AbstainError(
            Code.TOO_LONG, f"{ask.contains} has more tokens than the {ask.max_new_tokens} of an answer: allow more"
        )
    kv_decoder = KVCacheDecoder(decoder, [ids], [keys_values])
    beams, finished = [Beam(lacks=_lacks((), phrases))], list[Beam]()
    rows: list[int] = []
    for _ in range(ask.max_new_tokens):
        if rows:  # what was chosen last is read only where something is to follow it
            kv_decoder.select(rows)
            state = kv_decoder.read([beam.tokens[-1] for beam in beams], set())[Hook(decoder.n_layers)]
        candidates = _continuations(beams, decoder.logits(state).log_softmax(-1), phrases, ask, eos)
        finished += [beam for beam, _ in candidates if beam.ended]
        going_on = _shared_out([(beam, row) for beam, row in candidates if not beam.ended], ask.beams)
        if not going_on:
            break
        beams, rows = [beam for beam, _ in going_on], [row for _, row in going_on]
    finished += [beam for beam in beams if not beam.lacks]
    return sorted(finished, key=lambda beam: -beam.score)[: ask.samples]


def _continuations(
    beams: Sequence[Beam], log_p: Tensor, phrases: Sequence[tuple[int, ...]], ask: Generate, eos: int | None
) -> list[tuple[Beam, int]]:
    """Each beam with its likeliest next tokens, and with those that take it on in a phrase; and its row."""
    found = []
    likeliest = log_p.topk(min(2 * ask.beams, log_p.shape[1]), -1).indices.tolist()
    for row, beam in enumerate(beams):
        tokens = dict.fromkeys(likeliest[row])
        if beam.lacks:
            tokens |= dict.fromkeys(phrase[_begun(beam.tokens, phrase)] for phrase in phrases)
        for token in tokens:
            log_probs = (*beam.log_probs, float(log_p[row, token]))
            if token != eos:
                longer = (*beam.tokens, token)
                lacks = _lacks(longer, phrases) if beam.lacks else 0
                if len(longer) + lacks <= ask.max_new_tokens:
                    found.append((Beam(longer, log_probs, lacks), row))
            elif not beam.lacks:
                found.append((Beam(beam.tokens, log_probs, 0, ended=True), row))
    return found


def _shared_out(candidates: Sequence[tuple[Beam, int]], size: int) -> list[tuple[Beam, int]]:
    """The best `size` of `candidates`, taken in turns from the banks of those that lack equally much."""
    banks: dict[int, list[tuple[Beam, int]]] = {}
    for candidate in sorted(candidates, key=lambda candidate: -candidate[0].score):
        banks.setdefault(candidate[0].lacks, []).append(candidate)
    ordered = [banks[lacks] for lacks in sorted(banks)]
    in_turns = [bank[at] for at in range(size) for bank in ordered if at < len(bank)]
    return in_turns[:size]


def _phrases(decoder: Decoder, contains: Sequence[str]) -> list[tuple[int, ...]]:
    """Token ids of every phrase, at the beginning of a text and after a space."""
    tokenizer = decoder.loaded.tokenizer
    spelt = (tokenizer.encode(f"{before}{text}", add_special_tokens=False) for text in contains for before in (" ", ""))
    return [tuple(ids) for ids in dict.fromkeys(map(tuple, spelt)) if ids]


def _begun(tokens: tuple[int, ...], phrase: tuple[int, ...]) -> int:
    """The length of the longest end of `tokens` that is a beginning of `phrase`."""
    return next(n for n in range(min(len(phrase) - 1, len(tokens)), -1, -1) if tokens[len(tokens) - n :] == phrase[:n])


def _lacks(tokens: tuple[int, ...], phrases: Sequence[tuple[int, ...]]) -> int:
    """The number of tokens missing until `tokens` ends with one of `phrases`; 0 without phrases."""
    if any(tokens[len(tokens) - len(phrase) :] == phrase for phrase in phrases if len(phrase) <= len(tokens)):
        return 0
    return min((len(phrase) - _begun(tokens, phrase) for phrase in phrases), default=0)
