"""From final states to probabilities of tokens, without ever holding a (tokens x vocabulary) matrix.

Rows are projected in chunks and reduced at once to what is asked for. (`torch.nn.functional.linear_cross_entropy`,
Liger and cut-cross-entropy fuse this further, and give the loss alone: neither entropies nor several tokens of a row.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

CHUNK_BYTES = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Of one chunk's logits in float32: small enough for a CPU's cache, large enough to keep a GPU busy."""


def log_probabilities(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, rows: Sequence[int], tokens: Sequence[int], vocabulary: int
) -> tuple[Tensor, Tensor]:
    """log p of each of `tokens` after its row of `hidden`, and the entropy of that row's p, in nats.

    `logits` maps (n, d) to (n, vocabulary) in float32; `hidden` (n, d); `rows` ascend. Results (len(tokens),), float32,
    on the device of `hidden`.
    """
    chunk = max(1, CHUNK_BYTES.get(hidden.device.type, 1 << 28) // (4 * vocabulary))
    row, token = (torch.tensor(part, device=hidden.device) for part in (rows, tokens))
    log_p = torch.empty(len(row), device=hidden.device)
    entropy = torch.empty(len(hidden), device=hidden.device)
    for at in range(0, len(hidden), chunk):
        scores = logits(hidden[at : at + chunk])
        pairs = slice(bisect_left(rows, at), bisect_left(rows, at + chunk))
        chosen = scores[row[pairs] - at, token[pairs]]
        highest = scores.amax(-1, keepdim=True)
        scores -= highest
        weights = scores.exp()
        total = weights.sum(-1)
        log_p[pairs] = chosen - (highest.squeeze(1) + total.log())[row[pairs] - at]
        entropy[at : at + chunk] = total.log() - torch.linalg.vecdot(weights, scores) / total
    return log_p, entropy[row]
