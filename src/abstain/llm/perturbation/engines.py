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
from abstain.llm.engine.loading import LoadedModel, get_context_length, require_fast_tokenizer
from abstain.llm.engine.requests import Perturb, Request
from abstain.llm.perturbation.causal import CausalProposer
from abstain.llm.perturbation.loop import EncodedText, TokenProposer, encode_text, make_allowed_mask, perturb_texts
from abstain.llm.perturbation.masked import MaskedProposer
from abstain.llm.perturbation.seq2seq import Seq2SeqProposer
from abstain.llm.perturbation.text import TokenTexts, to_rows

SURROUNDING_TOKENS = 2
"""Number of tokens that a model may read beside the text: one before it, one after it."""
PARALLEL_BATCHES = 4
"""Number of batches of texts perturbed side by side: after a replacement only a part of each text is read."""

MakeProposer = Callable[[Sequence[Sequence[int]], Tensor], TokenProposer]
"""Makes a proposer from texts of token ids and a mask of the tokens that may take a place."""


def run_perturbations(
    requests: Mapping[str, Request],
    loaded: LoadedModel,
    batch_tokens: int,
    stats: ComputeStats,
    make_proposer: MakeProposer,
) -> Iterator[tuple[str, Tensor]]:
    """Run perturbation requests and yield their replacements.

    Args:
        requests: Key -> request. All operations are `Perturb`.
        loaded: The perturbation model.
        batch_tokens: Limit of the tokens of one forward pass.
        stats: Counts of the work done, updated in place.
        make_proposer: Makes the model's proposer for some texts.

    Yields:
        (key, steps): (replacements, 7), float32. There are none if nothing in a text may be replaced.

    Raises:
        AbstainError: The tokenizer gives no character offsets of its tokens, no token may replace another, a text
            exceeds the context length, or probabilities are not finite. The message of the last two names the row.
    """
    tokenizer, config = loaded.tokenizer, loaded.model.config.get_text_config()
    require_fast_tokenizer(loaded.ref.name, tokenizer)
    token_texts, allowed = TokenTexts.from_tokenizer(tokenizer), make_allowed_mask(tokenizer, config.vocab_size)
    context_length = get_context_length(config)
    if not allowed.any():
        raise AbstainError(
            Code.MODEL_UNSUITABLE,
            f"{loaded.ref.name}: no token of its tokenizer may take another's place: save the tokenizer's files beside "
            "the model",
        )
    rows_by_operation: defaultdict[Perturb, list[tuple[str, EncodedText]]] = defaultdict(list)
    for key, request in requests.items():
        assert isinstance(request.operation, Perturb)
        text = encode_text(token_texts, request.prompt, allowed)
        if context_length is not None and len(text.ids) + SURROUNDING_TOKENS > context_length:
            raise AbstainError(
                Code.TOO_LONG,
                f"{request.name}: a context of {len(text.ids)} tokens is more than the {context_length} that "
                f"{loaded.ref.name} reads: perturb with a model that reads more, or retrieve fewer chunks",
            )
        stats.prompts += 1
        stats.pass_tokens += len(text.ids)
        rows_by_operation[request.operation].append((key, text))
    for operation, rows in rows_by_operation.items():
        for batch in _iter_batches(rows, PARALLEL_BATCHES * batch_tokens):
            texts = [text for _, text in batch]
            steps = perturb_texts(make_proposer([text.ids for text in texts], allowed), texts, operation)
            for (key, _), row_steps in zip(batch, steps, strict=True):
                if not all(math.isfinite(step.old_log_likelihood + step.new_log_likelihood) for step in row_steps):
                    raise AbstainError(
                        Code.NOT_FINITE,
                        f"{requests[key].name}: the perturbation model's probabilities are not finite; "
                        "try ABSTAIN_DTYPE=float32, or take it out",
                    )
                yield key, to_rows(row_steps)


class CausalEngine(Engine):
    """An `Engine` that also runs `Perturb` requests, through the same decoder."""

    def run(
        self, requests: Mapping[str, Request], on_answer_text: OnAnswerText | None = None
    ) -> Iterator[tuple[str, Result]]:
        """Run requests as `Engine.run` does, with perturbation requests first.

        Args:
            requests: Key -> request.
            on_answer_text: Called with (key, text so far) after each generated token of a `Generate` request.

        Yields:
            (key, result).

        Raises:
            AbstainError: As in `Engine.run` and `run_perturbations`, or the tokenizer has neither BOS nor EOS.
        """
        perturbed = {key: request for key, request in requests.items() if isinstance(request.operation, Perturb)}
        if perturbed:
            yield from run_perturbations(perturbed, self.loaded, self.batch_tokens, self.stats, self._make_proposer)
        yield from super().run(
            {key: request for key, request in requests.items() if key not in perturbed}, on_answer_text
        )

    def _make_proposer(self, texts: Sequence[Sequence[int]], allowed: Tensor) -> TokenProposer:
        tokenizer = self.loaded.tokenizer
        start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        if start is None:
            raise AbstainError(
                Code.MODEL_UNSUITABLE,
                f"{self.loaded.ref.name} has neither BOS nor EOS: nothing comes before a first token",
            )
        return CausalProposer(self.decoder, texts, start, allowed, self.batch_tokens)


class PerturbationEngine:
    """A masked or sequence-to-sequence language model as an engine that only runs perturbation requests.

    Args:
        loaded: The perturbation model.
        batch_tokens: Limit of the tokens of one forward pass, padding included.
    """

    def __init__(self, loaded: LoadedModel, batch_tokens: int) -> None:
        self.loaded = loaded
        self.batch_tokens = batch_tokens
        self.stats = ComputeStats()

    def run(self, requests: Mapping[str, Request]) -> Iterator[tuple[str, Tensor]]:
        """Run `Perturb` requests and yield results as they are computed.

        Args:
            requests: Key -> request.

        Yields:
            (key, steps) as in `run_perturbations`.

        Raises:
            AbstainError: A request is not a `Perturb`, or as in `run_perturbations`.
        """
        proposer_class: type[Seq2SeqProposer | MaskedProposer]
        proposer_class = Seq2SeqProposer if self.loaded.model.config.is_encoder_decoder else MaskedProposer
        for request in requests.values():
            if not isinstance(request.operation, Perturb):
                raise AbstainError(
                    Code.MODEL_UNSUITABLE,
                    f"{self.loaded.ref.name} is no causal language model: it can only perturb contexts",
                )

        def make_proposer(texts: Sequence[Sequence[int]], allowed: Tensor) -> TokenProposer:
            return proposer_class(self.loaded, texts, allowed, self.batch_tokens, self.stats)

        yield from run_perturbations(requests, self.loaded, self.batch_tokens, self.stats, make_proposer)


def _iter_batches(rows: Sequence[tuple[str, EncodedText]], tokens: int) -> Iterator[list[tuple[str, EncodedText]]]:
    """Yield rows in their order, as many at a time as fit into `tokens`, at least one."""
    batch: list[tuple[str, EncodedText]] = []
    room = tokens
    for key, text in rows:
        if batch and len(text.ids) > room:
            yield batch
            batch, room = [], tokens
        batch.append((key, text))
        room -= len(text.ids)
    if batch:
        yield batch
