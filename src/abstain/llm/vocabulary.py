"""From final states to probabilities of tokens, without ever holding a (tokens x vocabulary) matrix.

Rows are projected in chunks and reduced at once to what is asked for. (`torch.nn.functional.linear_cross_entropy`,
Liger and cut-cross-entropy fuse this further, and give the loss alone: neither entropies nor several tokens of a row.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

CHUNK_BYTES = 1 << 24
"""Of one chunk's logits in float32: what stays in a CPU's cache is what makes the reductions cheap."""


def log_probabilities(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, row: Tensor, token: Tensor, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """log p of each `token` after its `row` of `hidden`, and the entropy of every row's p, in nats.

    `logits` maps (n, d) to (n, vocabulary) in float32; `hidden` (rows, d); `row` (sorted) and `token` int64 (pairs,).
    Results (pairs,) and (rows,), float32, on the device of `hidden`.
    """
    chunk = max(1, CHUNK_BYTES // (4 * vocabulary))
    log_p = torch.empty(len(row), device=hidden.device)
    entropy = torch.empty(len(hidden), device=hidden.device)
    cuts = torch.searchsorted(row, torch.arange(0, len(hidden) + chunk, chunk, device=row.device)).tolist()
    for number, at in enumerate(range(0, len(hidden), chunk)):
        scores = logits(hidden[at : at + chunk])
        pairs = slice(cuts[number], cuts[number + 1])
        chosen = scores[row[pairs] - at, token[pairs]]
        highest = scores.amax(-1, keepdim=True)
        scores -= highest
        weights = scores.exp()
        total = weights.sum(-1)
        log_p[pairs] = chosen - (highest.squeeze(1) + total.log())[row[pairs] - at]
        entropy[at : at + chunk] = total.log() - torch.linalg.vecdot(weights, scores) / total
    return log_p, entropy
