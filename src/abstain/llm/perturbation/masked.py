"""A masked language model as perturbation model: it predicts the token behind its mask token from both sides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.decoder import ComputeStats
from abstain.llm.engine.loading import LoadedModel
from abstain.llm.perturbation.causal import LOGIT_BYTES, get_best_alternatives
from abstain.llm.perturbation.loop import TokenProposal

STRIDE = 7
"""To score a text, every 7th token is masked at once, and so on 7 times: about the 15 % that these models and T5's kin
were trained on. Masking each token by itself would take as many forward passes as there are tokens.
"""

MaskedText = tuple[int, Sequence[int]]
"""Index of a text, and the places in it that are masked."""


class BidirectionalProposer(ABC):
    """Texts of token ids for a model that reads both sides of a place.

    Args:
        loaded: The perturbation model.
        texts: Token ids of each text.
        allowed: Mask of the tokens that may take a place, bool (vocabulary,).
        batch_tokens: Limit of the tokens of one forward pass, padding included.
        stats: Counts of the work done, updated in place.

    Raises:
        AbstainError: The tokenizer lacks the tokens that mask a place.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        texts: Sequence[Sequence[int]],
        allowed: Tensor,
        batch_tokens: int,
        stats: ComputeStats,
    ) -> None:
        self._name, self._model, self._pad_id = loaded.ref.name, loaded.model, loaded.tokenizer.pad_token_id or 0
        self._texts = [list(ids) for ids in texts]
        self._allowed = allowed.to(self._model.device)
        self._batch_tokens, self._stats = batch_tokens, stats
        self._find_mask_tokens(loaded.tokenizer)

    @abstractmethod
    def _find_mask_tokens(self, tokenizer: Any) -> None: ...

    def replace(self, row: int, places: Sequence[int], tokens: Sequence[int]) -> None:
        """Replace tokens of a text (`TokenProposer.replace`)."""
        for place, token in zip(places, tokens, strict=True):
            self._texts[row][place] = token


class MaskedProposer(BidirectionalProposer):
    """Texts for a masked model, each between the tokens that the model was trained to see around a text."""

    def _find_mask_tokens(self, tokenizer: Any) -> None:
        if tokenizer.mask_token_id is None:
            raise AbstainError(
                Code.MODEL_UNSUITABLE,
                f"{self._name} has no mask token, which a masked language model needs to fill a place",
            )
        self._mask_id = tokenizer.mask_token_id
        self._prefix = [token for token in (tokenizer.cls_token_id,) if token is not None]
        self._suffix = [token for token in (tokenizer.sep_token_id,) if token is not None]
        # A model of this kind writes the logits of every token, requested or not.
        self._batch_tokens = min(self._batch_tokens, LOGIT_BYTES // (4 * len(self._allowed)))

    def compute_log_likelihoods(self, rows: Sequence[int]) -> list[Tensor]:
        """Compute the log-likelihoods of the tokens of some texts (`TokenProposer.compute_log_likelihoods`)."""
        log_likelihoods = {row: torch.zeros(len(self._texts[row])) for row in rows}
        masked = [(row, range(first, len(log_likelihoods[row]), STRIDE)) for row in rows for first in range(STRIDE)]
        for (row, places), logits in self._compute_logits([item for item in masked if item[1]]):
            old = torch.tensor([self._texts[row][place] for place in places], device=logits.device)
            log_likelihoods[row][list(places)] = logits.log_softmax(-1).gather(1, old[:, None])[:, 0].cpu()
        return list(log_likelihoods.values())

    def propose(self, places_by_row: Mapping[int, Sequence[int]]) -> dict[int, list[TokenProposal]]:
        """Propose the likeliest other token for each place, given both sides of it (`TokenProposer.propose`)."""
        filled: dict[int, list[TokenProposal]] = {}
        for (row, row_places), logits in self._compute_logits(list(places_by_row.items())):
            old = torch.tensor([self._texts[row][place] for place in row_places])
            filled[row] = get_best_alternatives(logits, old, self._allowed)
        return filled

    def _compute_logits(self, masked: Sequence[MaskedText]) -> Iterator[tuple[MaskedText, Tensor]]:
        """Yield each text with the logits of its places, (places, vocabulary), float32."""
        for batch in iter_batches(masked, self._count_tokens, self._batch_tokens):
            ids, attention_mask = pad_ids([self._mask_places(*item) for item in batch], self._pad_id)
            device = self._model.device
            with torch.inference_mode():
                logits = self._model(input_ids=ids.to(device), attention_mask=attention_mask.to(device)).logits
            self._stats.forward_tokens += ids.numel()
            for index, (row, places) in enumerate(batch):
                yield (row, places), logits[index, [len(self._prefix) + place for place in places]].float()

    def _count_tokens(self, row: int) -> int:
        return len(self._prefix) + len(self._texts[row]) + len(self._suffix)

    def _mask_places(self, row: int, places: Sequence[int]) -> list[int]:
        text = list(self._texts[row])
        for place in places:
            text[place] = self._mask_id
        return [*self._prefix, *text, *self._suffix]


def iter_batches(
    masked: Sequence[MaskedText], count_tokens: Callable[[int], int], tokens: int
) -> Iterator[list[MaskedText]]:
    """Yield batches of texts, the longest first.

    Args:
        masked: Texts with their masked places.
        count_tokens: Returns the number of tokens of a text, given its index.
        tokens: Limit of the tokens of a batch, padding included. A batch has at least one text.

    Yields:
        The texts of a batch.
    """
    order = sorted(masked, key=lambda item: count_tokens(item[0]))
    while order:
        rows = max(1, tokens // count_tokens(order[-1][0]))
        order, batch = order[:-rows], order[-rows:]
        yield batch


def pad_ids(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Pad token ids on the right to the length of the longest row.

    Args:
        rows: Token ids of each row.
        pad_id: Token id of the padding.

    Returns:
        Token ids and attention mask, each (rows, tokens), int64.
    """
    ids = torch.full((len(rows), max(map(len, rows))), pad_id)
    attention_mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
        attention_mask[index, : len(row)] = 1
    return ids, attention_mask
