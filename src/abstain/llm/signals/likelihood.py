"""Likelihood scorers: from the NLLs and entropies of the answer's tokens, with the context and without.

The answer's L tokens are followed by EOS, which is included where a name contains `token`: an answer that should have
gone on is unlikely to end. Log-probabilities and entropies are mapped to [0, 1] by an exponential, which keeps order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from abstain.core.contracts import Interaction
from abstain.llm.engine.requests import NLL
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import Signal

ANSWER_NLL = NLL(("answer", "eos"))
NLL_WITH_CONTEXT = FeatureRequest(ANSWER_NLL)
"""N_c: instruction, context and question stand before the answer."""
NLL_WITHOUT_CONTEXT = FeatureRequest(ANSWER_NLL, chunks=0)
"""B_c: the same without the context."""


def _normalised(surprise: Tensor) -> float:
    """P~(s | x) = (prod_l P(s_l | s_<l, x))^(1/L) of the answer's own tokens (eq. 2 of the probe's paper)."""
    return math.exp(-float(surprise[:-1, 0].mean()))


def _signal(name: str, function: Callable[[Tensor], float]) -> Signal:
    def of_row(_: Interaction, found: Sequence[Tensor]) -> float:
        return function(found[0])

    return Signal(name, (NLL_WITH_CONTEXT,), of_row)


def _context_gain(_: Interaction, found: Sequence[Tensor]) -> float:
    normal, baseline = found
    return (1 + _normalised(normal) - _normalised(baseline)) / 2


LIKELIHOOD_SIGNALS = (
    _signal("sequence_log_prob", _normalised),
    _signal("joint_log_prob", lambda surprise: math.exp(-float(surprise[:-1, 0].sum()))),  # eq. 1
    _signal("mean_log_prob", lambda surprise: math.exp(-float(surprise[:, 0].mean()))),
    _signal("min_log_prob", lambda surprise: math.exp(-float(surprise[:, 0].max()))),
    _signal("entropy", lambda surprise: math.exp(-float(surprise[:, 1].mean()))),
    # p(N_c) - p(B_c), moved from [-1, 1] to [0, 1]: what the context adds to the answer's probability.
    Signal("context_gain", (NLL_WITH_CONTEXT, NLL_WITHOUT_CONTEXT), _context_gain),
)
