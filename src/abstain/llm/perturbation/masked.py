"""A masked language model as perturbation model: what it reads behind its mask token, from both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

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
were trained on. To mask each by itself would take as many passes as there are tokens."""

Masked = tuple[int, Sequence[int]]
"""Text number, and the places of it that are masked."""


class MaskedProposer:
    """Texts of token ids, each between the tokens that the model was trained to see around a text.

    Raises `AbstainError` for a model without a mask token.
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
        if tokenizer.mask_token_id is None:
            raise AbstainError(
                Code.MODEL_UNSUITABLE,
                f"{loaded.ref.name} has no mask token, which a masked language model needs to fill a place",
            )
        self._model, self._mask, self._pad = loaded.model, tokenizer.mask_token_id, tokenizer.pad_token_id or 0
        self._before = [token for token in (tokenizer.cls_token_id,) if token is not None]
        self._after = [token for token in (tokenizer.sep_token_id,) if token is not None]
        self._texts = [list(ids) for ids in texts]
        self._allowed = allowed.to(self._model.device)
        self._work = work
        # A model of this kind writes the logits of every token, requested or not.
        self._batch_tokens = min(batch_tokens, LOGIT_BYTES // (4 * len(allowed)))

    def log_likelihoods(self, rows: Sequence[int]) -> list[Tensor]:
        found = {row: torch.zeros(len(self._texts[row])) for row in rows}
        wanted = [(row, range(first, len(found[row]), STRIDE)) for row in rows for first in range(STRIDE)]
        for (row, places), logits in self._logits([one for one in wanted if one[1]]):
            old = torch.tensor([self._texts[row][at] for at in places], device=logits.device)
            found[row][list(places)] = logits.log_softmax(-1).gather(1, old[:, None])[:, 0].cpu()
        return list(found.values())

    def fill(self, places: Mapping[int, Sequence[int]]) -> dict[int, list[TokenProposal]]:
        filled: dict[int, list[TokenProposal]] = {}
        for (row, of_row), logits in self._logits(list(places.items())):
            old = torch.tensor([self._texts[row][at] for at in of_row])
            filled[row] = get_best_alternatives(logits, old, self._allowed)
        return filled

    def replace(self, row: int, places: Sequence[int], tokens: Sequence[int]) -> None:
        for at, token in zip(places, tokens, strict=True):
            self._texts[row][at] = token

    def _logits(self, masked: Sequence[Masked]) -> Iterator[tuple[Masked, Tensor]]:
        """The logits of each one's places, float32 (places, vocabulary)."""
        for batch in iter_batches(masked, self._length, self._batch_tokens):
            ids, seen = pad_ids([self._whole(*one) for one in batch], self._pad)
            device = self._model.device
            with torch.inference_mode():
                logits = self._model(input_ids=ids.to(device), attention_mask=seen.to(device)).logits
            self._work.forward_tokens += ids.numel()
            for at, (row, places) in enumerate(batch):
                yield (row, places), logits[at, [len(self._before) + place for place in places]].float()

    def _length(self, row: int) -> int:
        return len(self._before) + len(self._texts[row]) + len(self._after)

    def _whole(self, row: int, places: Sequence[int]) -> list[int]:
        text = list(self._texts[row])
        for place in places:
            text[place] = self._mask
        return [*self._before, *text, *self._after]


def iter_batches(masked: Sequence[Masked], length: Callable[[int], int], tokens: int) -> Iterator[list[Masked]]:
    """The longest first, as many at a time as have together no more than `tokens` tokens, padding included, at least
    one; `length`: of text number ..."""
    order = sorted(masked, key=lambda one: length(one[0]))
    while order:
        rows = max(1, tokens // length(order[-1][0]))
        order, batch = order[:-rows], order[-rows:]
        yield batch


def pad_ids(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Token ids and which of them are seen, int64 (rows, tokens of the longest) both, `pad` on the right."""
    ids = torch.full((len(rows), max(map(len, rows))), pad)
    seen = torch.zeros_like(ids)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = torch.tensor(row)
        seen[at, : len(row)] = 1
    return ids, seen
