"""A causal model as perturbation model: it proposes tokens from what stands to the left (docs/decisions/073)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from abstain.llm.engine.attention import KeysValues
from abstain.llm.engine.decoder import Decoder, Hook, log_probabilities
from abstain.llm.engine.prefix_tree import Node
from abstain.llm.perturbation.loop import TokenProposal

LOGIT_BYTES = 1 << 28
"""Size of the float32 logits of places that are filled at once: 15 places of each of 60 texts take a GB with Gemma."""


@dataclass
class _PerturbedRow:
    """A text after a start token. `path`: runs whose keys and values are kept, `known` tokens in all.

    `final`: a state a token, of which the first `known` hold; `likely`: of every token but the start, of which the
    first `scored` hold.
    """

    ids: list[int]
    final: Tensor
    likely: Tensor
    path: list[Node] = field(default_factory=list)
    known: int = 0
    scored: int = 0


class CausalProposer:
    """Texts of token ids, each read after `start`, BOS or else EOS: so the first token can be replaced, too."""

    def __init__(
        self, decoder: Decoder, texts: Sequence[Sequence[int]], start: int, allowed: Tensor, batch_tokens: int
    ) -> None:
        self._decoder = decoder
        self._allowed = allowed.to(decoder.device)
        self._batch_tokens = batch_tokens
        self._kept: dict[Node, KeysValues] = {}
        width, like = decoder.config.hidden_size, decoder.loaded.model
        self._rows = [
            _PerturbedRow(
                [start, *ids], torch.empty(len(ids), width, dtype=like.dtype, device=like.device), torch.empty(len(ids))
            )
            for ids in texts
        ]

    def log_likelihoods(self, rows: Sequence[int]) -> list[Tensor]:
        self._read({row: len(self._rows[row].ids) - 1 for row in rows})
        for row in (self._rows[row] for row in rows):
            if fresh := row.ids[row.scored + 1 :]:
                hidden = row.final[row.scored :]
                with torch.inference_mode():
                    found, _ = log_probabilities(
                        self._decoder.logits, hidden, range(len(fresh)), fresh, self._decoder.config.vocab_size
                    )
                row.likely[row.scored :] = found.cpu()
                row.scored += len(fresh)
        return [self._rows[row].likely for row in rows]

    def fill(self, places: Mapping[int, Sequence[int]]) -> dict[int, list[TokenProposal]]:
        self._read({row: max(at) + 1 for row, at in places.items()})
        hidden = torch.cat([self._rows[row].final[list(at)] for row, at in places.items()])
        old = torch.tensor([self._rows[row].ids[at + 1] for row, of_row in places.items() for at in of_row])
        chunk = max(1, LOGIT_BYTES // (4 * self._decoder.config.vocab_size))
        fills = iter(
            [
                fill
                for at in range(0, len(hidden), chunk)
                for fill in get_best_alternatives(
                    self._logits(hidden[at : at + chunk]), old[at : at + chunk], self._allowed
                )
            ]
        )
        return {row: [next(fills) for _ in at] for row, at in places.items()}

    def replace(self, row: int, places: Sequence[int], tokens: Sequence[int]) -> None:
        text = self._rows[row]
        for at, token in zip(places, tokens, strict=True):
            text.ids[at + 1] = token
        self._truncate_cache(text, min(places) + 1)

    def _logits(self, hidden: Tensor) -> Tensor:
        with torch.inference_mode():
            return self._decoder.logits(hidden)

    def _read(self, upto: Mapping[int, int]) -> None:
        """Have the first `upto` tokens of every row known, the start token counted."""
        while todo := [(row, end) for at, end in upto.items() if (row := self._rows[at]).known < end]:
            if not self._decoder.packs:  # padded to the longest
                todo.sort(key=lambda one: one[1])
            batch: dict[Node, _PerturbedRow] = {}
            tokens = 0
            for row, end in todo:
                run = self._next_run(row, end)
                tokens = tokens + len(run) if self._decoder.packs else (len(batch) + 1) * len(run)
                if batch and tokens > self._batch_tokens:
                    break
                batch[run] = row
            self._run(batch)

    def _next_run(self, row: _PerturbedRow, end: int) -> Node:
        if not self._decoder.packs:  # nothing is kept: all of it is read again
            return Node(row.ids[:end])
        last = row.path[-1] if row.path else None
        return Node(row.ids[row.known : min(end, row.known + self._batch_tokens)], start=row.known, parent=last)

    def _run(self, batch: Mapping[Node, _PerturbedRow]) -> None:
        hook = Hook(self._decoder.n_layers)
        wanted = {run: {hook: (0, len(run))} for run in batch}
        found = self._decoder.forward(list(batch), wanted, hook.layer, self._kept, set(batch))
        for run, row in batch.items():
            row.final[run.start : run.end] = found[run][hook]
            row.known = run.end
            if self._decoder.packs:
                row.path.append(run)

    def _truncate_cache(self, row: _PerturbedRow, known: int) -> None:
        """Only the first `known` tokens of `row` are as they were."""
        row.scored = min(row.scored, known - 1)
        row.known = min(row.known, known)
        while row.path and row.path[-1].end > known:
            run = row.path.pop()
            keys_values = self._kept.pop(run)
            if run.start < known:
                length = known - run.start
                start = Node(run.ids[:length], start=run.start, parent=run.parent)
                # Copies: a slice would keep all of it in memory.
                self._kept[start] = [(k[:, :length].clone(), v[:, :length].clone()) for k, v in keys_values]
                row.path.append(start)
                break


def get_best_alternatives(logits: Tensor, old: Tensor, allowed: Tensor) -> list[TokenProposal]:
    """The likeliest allowed token that is not the old one, row by row: `logits` (rows, vocabulary), `old` (rows,)."""
    log_p = logits.float().log_softmax(-1)
    old = old.to(log_p.device)[:, None]
    before = log_p.gather(1, old)
    after, new = log_p.masked_fill_(~allowed, float("-inf")).scatter_(1, old, float("-inf")).max(-1)
    return [TokenProposal(*row) for row in zip(new.tolist(), before[:, 0].tolist(), after.tolist(), strict=True)]
