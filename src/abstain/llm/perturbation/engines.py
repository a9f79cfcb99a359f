"""Perturbation requests, and the engines that run them: of causal models, and of models that can only perturb."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.decoder import ComputeStats
from abstain.llm.engine.engine import Engine, Result
from abstain.llm.engine.generation import OnAnswerText
from abstain.llm.engine.loading import LoadedModel, get_context_length
from abstain.llm.engine.requests import Perturb, Request
from abstain.llm.perturbation.causal import CausalProposer
from abstain.llm.perturbation.loop import EncodedText, TokenProposer, allowed_tokens, encode_text, perturb_texts
from abstain.llm.perturbation.masked import MaskedProposer
from abstain.llm.perturbation.seq2seq import Seq2SeqProposer
from abstain.llm.perturbation.text import TokenTexts, to_rows

AROUND = 2
"""Tokens that a model may read beside the text: one before, one after it."""
BATCHES = 4
"""The number of batches of texts perturbed side by side: after a replacement only a part of each is read."""

MakeProposer = Callable[[Sequence[Sequence[int]], Tensor], TokenProposer]
"""From texts of token ids, and which tokens may take a place."""


def run_perturbations(
    requests: Mapping[str, Request],
    loaded: LoadedModel,
    batch_tokens: int,
    work: ComputeStats,
    make_proposer: MakeProposer,
) -> Iterator[tuple[str, Tensor]]:
    """Yield `(key, steps)` for every request, all of them `Perturb`: (replacements, 7) each, none of a text in which
    nothing may be replaced. Raises `AbstainError` for a tokenizer without character offsets of its tokens in the text,
    and, naming the row, for a text longer than the model's window and for probabilities that are not finite."""
    tokenizer, config = loaded.tokenizer, loaded.model.config.get_text_config()
    if not tokenizer.is_fast:
        raise AbstainError(
            Code.MODEL_UNSUITABLE,
            f"{loaded.ref.name}: its tokenizer has no fast form (tokenizer.json): save it with one",
        )
    pieces, allowed, window = (
        TokenTexts.from_tokenizer(tokenizer),
        allowed_tokens(tokenizer, config.vocab_size),
        get_context_length(config),
    )
    if not allowed.any():
        raise AbstainError(
            Code.MODEL_UNSUITABLE,
            f"{loaded.ref.name}: no token of its tokenizer may take another's place: save the tokenizer's files beside "
            "the model",
        )
    by_ask: defaultdict[Perturb, list[tuple[str, EncodedText]]] = defaultdict(list)
    for key, request in requests.items():
        assert isinstance(request.operation, Perturb)
        text = encode_text(pieces, request.prompt, allowed)
        if window is not None and len(text.ids) + AROUND > window:
            raise AbstainError(
                Code.TOO_LONG,
                f"{request.name}: a context of {len(text.ids)} tokens is more than the {window} that {loaded.ref.name} "
                "reads: perturb with a model that reads more, or retrieve fewer chunks",
            )
        work.prompts += 1
        work.pass_tokens += len(text.ids)
        by_ask[request.operation].append((key, text))
    for ask, rows in by_ask.items():
        for some in _side_by_side(rows, BATCHES * batch_tokens):
            texts = [text for _, text in some]
            steps = perturb_texts(make_proposer([text.ids for text in texts], allowed), texts, ask)
            for (key, _), of_row in zip(some, steps, strict=True):
                if not all(math.isfinite(step.before + step.after) for step in of_row):
                    raise AbstainError(
                        Code.NOT_FINITE,
                        f"{requests[key].name}: the perturbation model's probabilities are not finite; "
                        "try ABSTAIN_DTYPE=float32, or take it out",
                    )
                yield key, to_rows(of_row)


class CausalEngine(Engine):
    """An `Engine` that also runs `Perturb` requests, through the same decoder."""

    def run(self, requests: Mapping[str, Request], tell: OnAnswerText | None = None) -> Iterator[tuple[str, Result]]:
        """As `Engine.run`; perturbation requests are done first."""
        perturbed = {key: request for key, request in requests.items() if isinstance(request.operation, Perturb)}
        if perturbed:
            yield from run_perturbations(perturbed, self.loaded, self.batch_tokens, self.stats, self._proposer)
        yield from super().run({key: request for key, request in requests.items() if key not in perturbed}, tell)

    def _proposer(self, texts: Sequence[Sequence[int]], allowed: Tensor) -> TokenProposer:
        tokenizer = self.loaded.tokenizer
        start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        if start is None:
            raise AbstainError(
                Code.MODEL_UNSUITABLE,
                f"{self.loaded.ref.name} has neither BOS nor EOS: nothing comes before a first token",
            )
        return CausalProposer(self.decoder, texts, start, allowed, self.batch_tokens)


class PerturbationEngine:
    """A masked or a sequence-to-sequence language model as an engine for perturbation requests only."""

    def __init__(self, loaded: LoadedModel, batch_tokens: int) -> None:
        self.loaded = loaded
        self.batch_tokens = batch_tokens
        self.work = ComputeStats()

    def run(self, requests: Mapping[str, Request]) -> Iterator[tuple[str, Tensor]]:
        """As `Engine.run`, for `Perturb` alone."""
        kind = Seq2SeqProposer if self.loaded.model.config.is_encoder_decoder else MaskedProposer
        for request in requests.values():
            if not isinstance(request.operation, Perturb):
                raise AbstainError(
                    Code.MODEL_UNSUITABLE,
                    f"{self.loaded.ref.name} is no causal language model: it can only perturb contexts",
                )

        def proposer(texts: Sequence[Sequence[int]], allowed: Tensor) -> TokenProposer:
            return kind(self.loaded, texts, allowed, self.batch_tokens, self.work)

        yield from run_perturbations(requests, self.loaded, self.batch_tokens, self.work, proposer)


def _side_by_side(rows: Sequence[tuple[str, EncodedText]], tokens: int) -> Iterator[list[tuple[str, EncodedText]]]:
    """Rows in their order, as many at a time as have together no more than `tokens`, at least one."""
    some: list[tuple[str, EncodedText]] = []
    room = tokens
    for key, text in rows:
        if some and len(text.ids) > room:
            yield some
            some, room = [], tokens
        some.append((key, text))
        room -= len(text.ids)
    if some:
        yield some
