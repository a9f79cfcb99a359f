"""A T5-style model as perturbation model: places become sentinels, and its decoder generates their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.perturbation.causal import get_best_alternatives
from abstain.llm.perturbation.loop import TokenProposal
from abstain.llm.perturbation.masked import STRIDE, BidirectionalProposer, MaskedText, iter_batches, pad_ids


class Seq2SeqProposer(BidirectionalProposer):
    """Texts, each before EOS, for an encoder and a decoder with T5's sentinels, trained on corrupted spans."""

    def _find_mask_tokens(self, tokenizer: Any) -> None:
        vocabulary = tokenizer.get_vocab()
        self._sentinels = [vocabulary[name] for n in range(100) if (name := f"<extra_id_{n}>") in vocabulary]
        if not self._sentinels:
            raise AbstainError(
                Code.MODEL_UNSUITABLE,
                f"{self._name} has no sentinel tokens (<extra_id_0> ...), which stand for a masked place: "
                "choose a model of T5's kind",
            )
        self._eos_id, self._start_id = tokenizer.eos_token_id, self._model.config.decoder_start_token_id

    def compute_log_likelihoods(self, rows: Sequence[int]) -> list[Tensor]:
        """Compute the log-likelihoods of the tokens of some texts (`TokenProposer.compute_log_likelihoods`)."""
        log_likelihoods = {row: torch.zeros(len(self._texts[row])) for row in rows}
        masked: list[MaskedText] = []
        for row, values in log_likelihoods.items():
            stride = max(STRIDE, -(-len(values) // len(self._sentinels)))
            masked += [(row, range(first, len(values), stride)) for first in range(min(stride, len(values)))]
        for batch, encoded, attention_mask in self._iter_encoded(masked):
            old_ids = [[self._texts[row][place] for place in places] for row, places in batch]
            logits = self._decode(encoded, attention_mask, [self._make_target(ids) for ids in old_ids]).logits
            for index, (row, places) in enumerate(batch):
                sentinel_logits = logits[index, 1 : 2 * len(places) : 2].float()
                old = torch.tensor(old_ids[index], device=logits.device)
                log_likelihoods[row][list(places)] = sentinel_logits.log_softmax(-1).gather(1, old[:, None])[:, 0].cpu()
        return list(log_likelihoods.values())

    def propose(self, places_by_row: Mapping[int, Sequence[int]]) -> dict[int, list[TokenProposal]]:
        """Propose tokens place by place, each after the decoder's tokens for the places before it.

        Args:
            places_by_row: Index of a text -> places in it.

        Returns:
            Index of a text -> a proposal for each place.

        Raises:
            AbstainError: A text has more places than the model has sentinels.
        """
        n_places = max(map(len, places_by_row.values()))
        if n_places > len(self._sentinels):
            raise AbstainError(
                Code.MODEL_UNSUITABLE,
                f"{n_places} places at once are more than the {len(self._sentinels)} sentinels of {self._name}: "
                "lower perturbation.tokens, or perturb iteratively",
            )
        filled: dict[int, list[TokenProposal]] = {row: [] for row in places_by_row}
        for batch, encoded, attention_mask in self._iter_encoded(list(places_by_row.items())):
            last, past = [self._start_id] * len(batch), None
            for position in range(max(len(row_places) for _, row_places in batch)):
                out = self._decode(
                    encoded, attention_mask, [[token, self._sentinels[position]] for token in last], past
                )
                past = out.past_key_values
                for index, (row, row_places) in enumerate(batch):
                    if position < len(row_places):
                        old = torch.tensor([self._texts[row][row_places[position]]])
                        filled[row] += get_best_alternatives(out.logits[index, -1:], old, self._allowed)
                        last[index] = filled[row][-1].new
        return filled

    def _make_target(self, tokens: Sequence[int]) -> list[int]:
        """Return the decoder's target sequence: a sentinel, its token, and so on."""
        return [self._start_id, *(token for pair in zip(self._sentinels, tokens, strict=False) for token in pair)]

    def _iter_encoded(self, masked: Sequence[MaskedText]) -> Iterator[tuple[list[MaskedText], Any, Tensor]]:
        """Yield batches of texts whose places are sentinels, with the encoder's output and the attention mask."""
        device = self._model.device
        for batch in iter_batches(masked, lambda row: len(self._texts[row]) + 1, self._batch_tokens):
            ids, attention_mask = (
                tensor.to(device) for tensor in pad_ids([self._mask_places(*item) for item in batch], self._pad_id)
            )
            with torch.inference_mode():
                encoded = self._model.get_encoder()(input_ids=ids, attention_mask=attention_mask)
            self._stats.forward_tokens += ids.numel()
            yield batch, encoded, attention_mask

    def _mask_places(self, row: int, places: Sequence[int]) -> list[int]:
        text = list(self._texts[row])
        for place, sentinel in zip(places, self._sentinels, strict=False):
            text[place] = sentinel
        return [*text, self._eos_id]

    def _decode(self, encoded: Any, attention_mask: Tensor, targets: Sequence[list[int]], past: Any = None) -> Any:
        """Run the decoder on `targets`, which continue `past`.

        The output has the logits after every token, (rows, tokens, vocabulary), and the keys and values of all tokens.
        """
        ids, _ = pad_ids(targets, self._pad_id)
        self._stats.forward_tokens += ids.numel()
        with torch.inference_mode():
            return self._model(
                encoder_outputs=encoded,
                attention_mask=attention_mask,
                decoder_input_ids=ids.to(self._model.device),
                past_key_values=past,
                use_cache=True,
            )
