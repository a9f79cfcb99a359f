"""A T5-style model as perturbation model: places become sentinels, and its decoder generates their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.decoder import ComputeStats
from abstain.llm.engine.loading import LoadedModel
from abstain.llm.perturbation.causal import get_best_alternatives
from abstain.llm.perturbation.loop import TokenProposal
from abstain.llm.perturbation.masked import STRIDE, Masked, iter_batches, pad_ids


class Seq2SeqProposer:
    """Texts of token ids, each before EOS, for an encoder and a decoder that were trained on corrupted spans.

    Raises `AbstainError` for a model without T5's sentinels, `<extra_id_0>` and so on.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        texts: Sequence[Sequence[int]],
        allowed: Tensor,
        batch_tokens: int,
        work: ComputeStats,
    ) -> None:
        tokenizer = loaded.tokenizer
        vocabulary = tokenizer.get_vocab()
        self._sentinels = [vocabulary[name] for n in range(100) if (name := f"<extra_id_{n}>") in vocabulary]
        if not self._sentinels:
            raise AbstainError(
                Code.MODEL_UNSUITABLE,
                f"{loaded.ref.name} has no sentinel tokens (<extra_id_0> ...), which stand for a masked place: "
                "choose a model of T5's kind",
            )
        self._name, self._model = loaded.ref.name, loaded.model
        self._pad, self._eos = tokenizer.pad_token_id or 0, tokenizer.eos_token_id
        self._start = self._model.config.decoder_start_token_id
        self._texts = [list(ids) for ids in texts]
        self._allowed = allowed.to(self._model.device)
        self._batch_tokens, self._work = batch_tokens, work

    def log_likelihoods(self, rows: Sequence[int]) -> list[Tensor]:
        found = {row: torch.zeros(len(self._texts[row])) for row in rows}
        wanted: list[Masked] = []
        for row, likely in found.items():
            stride = max(STRIDE, -(-len(likely) // len(self._sentinels)))
            wanted += [(row, range(first, len(likely), stride)) for first in range(min(stride, len(likely)))]
        for batch, encoded, seen in self._encoded(wanted):
            olds = [[self._texts[row][at] for at in places] for row, places in batch]
            logits = self._decode(encoded, seen, [self._head(old) for old in olds]).logits
            for at, (row, places) in enumerate(batch):
                at_sentinels = logits[at, 1 : 2 * len(places) : 2].float()
                old = torch.tensor(olds[at], device=logits.device)
                found[row][list(places)] = at_sentinels.log_softmax(-1).gather(1, old[:, None])[:, 0].cpu()
        return list(found.values())

    def fill(self, places: Mapping[int, Sequence[int]]) -> dict[int, list[TokenProposal]]:
        """The decoder's tokens, place by place, each after its tokens for the places before."""
        most = max(map(len, places.values()))
        if most > len(self._sentinels):
            raise AbstainError(
                Code.MODEL_UNSUITABLE,
                f"{most} places at once are more than the {len(self._sentinels)} sentinels of {self._name}: "
                "lower perturbation.tokens, or perturb iteratively",
            )
        filled: dict[int, list[TokenProposal]] = {row: [] for row in places}
        for batch, encoded, seen in self._encoded(list(places.items())):
            last, past = [self._start] * len(batch), None
            for number in range(max(len(of_row) for _, of_row in batch)):
                out = self._decode(encoded, seen, [[token, self._sentinels[number]] for token in last], past)
                past = out.past_key_values
                for at, (row, of_row) in enumerate(batch):
                    if number < len(of_row):
                        old = torch.tensor([self._texts[row][of_row[number]]])
                        filled[row] += get_best_alternatives(out.logits[at, -1:], old, self._allowed)
                        last[at] = filled[row][-1].new
        return filled

    def replace(self, row: int, places: Sequence[int], tokens: Sequence[int]) -> None:
        for at, token in zip(places, tokens, strict=True):
            self._texts[row][at] = token

    def _head(self, tokens: Sequence[int]) -> list[int]:
        """The decoder's target sequence: a sentinel, its token, and so on."""
        return [self._start, *(one for pair in zip(self._sentinels, tokens, strict=False) for one in pair)]

    def _encoded(self, masked: Sequence[Masked]) -> Iterator[tuple[list[Masked], Any, Tensor]]:
        """Batches of texts whose places have become sentinels, read by the encoder, and which tokens are padding."""
        device = self._model.device
        for batch in iter_batches(masked, lambda row: len(self._texts[row]) + 1, self._batch_tokens):
            ids, seen = (part.to(device) for part in pad_ids([self._whole(*one) for one in batch], self._pad))
            with torch.inference_mode():
                encoded = self._model.get_encoder()(input_ids=ids, attention_mask=seen)
            self._work.forward_tokens += ids.numel()
            yield batch, encoded, seen

    def _whole(self, row: int, places: Sequence[int]) -> list[int]:
        text = list(self._texts[row])
        for place, sentinel in zip(places, self._sentinels, strict=False):
            text[place] = sentinel
        return [*text, self._eos]

    def _decode(self, encoded: Any, seen: Tensor, heads: Sequence[list[int]], past: Any = None) -> Any:
        """The decoder's logits after every token of `heads`, which continue `past`, (rows, tokens, vocabulary), and the
        keys and values of all tokens."""
        ids, _ = pad_ids(heads, self._pad)
        self._work.forward_tokens += ids.numel()
        with torch.inference_mode():
            return self._model(
                encoder_outputs=encoded,
                attention_mask=seen,
                decoder_input_ids=ids.to(self._model.device),
                past_key_values=past,
                use_cache=True,
            )
