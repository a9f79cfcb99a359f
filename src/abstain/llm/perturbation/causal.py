"""A causal model as perturbation model: it proposes tokens from their left context (docs/decisions/073)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from abstain.llm.engine.attention import KeysValues
from abstain.llm.engine.decoder import Decoder, Hook, compute_log_probabilities
from abstain.llm.engine.prefix_tree import Node
from abstain.llm.perturbation.loop import TokenProposal

LOGIT_BYTES = 1 << 28
"""Size of the float32 logits of places that are filled at once: 15 places of each of 60 texts take a GB with Gemma."""


@dataclass
class _PerturbedRow:
    """A text after a start token.

    Attributes:
        ids: Token ids, with the start token.
        final: A final state per token, of which the first `n_read` are valid.
        log_likelihoods: Of every token except the start token; the first `n_scored` are valid.
        path: Nodes whose keys and values are cached, `n_read` tokens in all.
        n_read: Number of tokens that have been read.
        n_scored: Number of tokens whose log-likelihoods are computed.
    """

    ids: list[int]
    final: Tensor
    log_likelihoods: Tensor
    path: list[Node] = field(default_factory=list)
    n_read: int = 0
    n_scored: int = 0


class CausalProposer:
    """Texts of token ids for a causal model.

    Each is read after a start token, so that the first token can be replaced, too.

    Args:
        decoder: Decoder of the model.
        texts: Token ids of each text.
        start: Token id of BOS, or else of EOS.
        allowed: Mask of the tokens that may take a place, bool (vocabulary,).
        batch_tokens: Limit of the tokens of one forward pass.
    """

    def __init__(
        self, decoder: Decoder, texts: Sequence[Sequence[int]], start: int, allowed: Tensor, batch_tokens: int
    ) -> None:
        self._decoder = decoder
        self._allowed = allowed.to(decoder.device)
        self._batch_tokens = batch_tokens
        self._kv_cache: dict[Node, KeysValues] = {}
        width, model = decoder.config.hidden_size, decoder.loaded.model
        self._rows = [
            _PerturbedRow(
                [start, *ids],
                torch.empty(len(ids), width, dtype=model.dtype, device=model.device),
                torch.empty(len(ids)),
            )
            for ids in texts
        ]

    def compute_log_likelihoods(self, rows: Sequence[int]) -> list[Tensor]:
        """Compute the log-likelihoods of the tokens of some texts (`TokenProposer.compute_log_likelihoods`)."""
        self._read_up_to({row: len(self._rows[row].ids) - 1 for row in rows})
        for row in (self._rows[row] for row in rows):
            if new_ids := row.ids[row.n_scored + 1 :]:
                hidden = row.final[row.n_scored :]
                with torch.inference_mode():
                    log_p, _ = compute_log_probabilities(
                        self._decoder.compute_logits,
                        hidden,
                        range(len(new_ids)),
                        new_ids,
                        self._decoder.config.vocab_size,
                    )
                row.log_likelihoods[row.n_scored :] = log_p.cpu()
                row.n_scored += len(new_ids)
        return [self._rows[row].log_likelihoods for row in rows]

    def propose(self, places_by_row: Mapping[int, Sequence[int]]) -> dict[int, list[TokenProposal]]:
        """Propose the likeliest other token for each place, given the tokens to its left (`TokenProposer.propose`)."""
        self._read_up_to({row: max(row_places) + 1 for row, row_places in places_by_row.items()})
        hidden = torch.cat([self._rows[row].final[list(row_places)] for row, row_places in places_by_row.items()])
        old = torch.tensor(
            [self._rows[row].ids[place + 1] for row, row_places in places_by_row.items() for place in row_places]
        )
        chunk = max(1, LOGIT_BYTES // (4 * self._decoder.config.vocab_size))
        fills = iter(
            [
                fill
                for start in range(0, len(hidden), chunk)
                for fill in get_best_alternatives(
                    self._logits(hidden[start : start + chunk]), old[start : start + chunk], self._allowed
                )
            ]
        )
        return {row: [next(fills) for _ in row_places] for row, row_places in places_by_row.items()}

    def replace(self, row: int, places: Sequence[int], tokens: Sequence[int]) -> None:
        """Replace tokens of a text and drop cached states that depend on them (`TokenProposer.replace`)."""
        text = self._rows[row]
        for place, token in zip(places, tokens, strict=True):
            text.ids[place + 1] = token
        self._truncate_cache(text, min(places) + 1)

    def _logits(self, hidden: Tensor) -> Tensor:
        with torch.inference_mode():
            return self._decoder.compute_logits(hidden)

    def _read_up_to(self, end_by_row: Mapping[int, int]) -> None:
        """Read the first tokens of every row, up to `end_by_row[row]`, the start token included."""
        while pending := [(row, end) for index, end in end_by_row.items() if (row := self._rows[index]).n_read < end]:
            if not self._decoder.can_pack:  # padded to the longest
                pending.sort(key=lambda item: item[1])
            batch: dict[Node, _PerturbedRow] = {}
            tokens = 0
            for row, end in pending:
                node = self._make_next_node(row, end)
                tokens = tokens + len(node) if self._decoder.can_pack else (len(batch) + 1) * len(node)
                if batch and tokens > self._batch_tokens:
                    break
                batch[node] = row
            self._read_batch(batch)

    def _make_next_node(self, row: _PerturbedRow, end: int) -> Node:
        if not self._decoder.can_pack:  # nothing is kept: all of it is read again
            return Node(row.ids[:end])
        last = row.path[-1] if row.path else None
        return Node(row.ids[row.n_read : min(end, row.n_read + self._batch_tokens)], start=row.n_read, parent=last)

    def _read_batch(self, batch: Mapping[Node, _PerturbedRow]) -> None:
        hook = Hook(self._decoder.n_layers)
        requested = {node: {hook: (0, len(node))} for node in batch}
        states = self._decoder.forward(list(batch), requested, hook.layer, self._kv_cache, set(batch))
        for node, row in batch.items():
            row.final[node.start : node.end] = states[node][hook]
            row.n_read = node.end
            if self._decoder.can_pack:
                row.path.append(node)

    def _truncate_cache(self, row: _PerturbedRow, n_valid: int) -> None:
        """Keep the cached states of the first `n_valid` tokens of `row` only: the later ones have changed."""
        row.n_scored = min(row.n_scored, n_valid - 1)
        row.n_read = min(row.n_read, n_valid)
        while row.path and row.path[-1].end > n_valid:
            node = row.path.pop()
            keys_values = self._kv_cache.pop(node)
            if node.start < n_valid:
                length = n_valid - node.start
                head = Node(node.ids[:length], start=node.start, parent=node.parent)
                # Copies: a slice would keep all of it in memory.
                self._kv_cache[head] = [(k[:, :length].clone(), v[:, :length].clone()) for k, v in keys_values]
                row.path.append(head)
                break


def get_best_alternatives(logits: Tensor, old: Tensor, allowed: Tensor) -> list[TokenProposal]:
    """Return the likeliest allowed token other than the old one, for each row.

    Args:
        logits: Logits, (rows, vocabulary).
        old: Token ids of the old tokens, (rows,).
        allowed: Mask of the tokens that may take a place, bool (vocabulary,).

    Returns:
        One proposal per row.
    """
    log_p = logits.float().log_softmax(-1)
    old = old.to(log_p.device)[:, None]
    old_log_p = log_p.gather(1, old)
    new_log_p, new = log_p.masked_fill_(~allowed, float("-inf")).scatter_(1, old, float("-inf")).max(-1)
    return [TokenProposal(*row) for row in zip(new.tolist(), old_log_p[:, 0].tolist(), new_log_p.tolist(), strict=True)]
