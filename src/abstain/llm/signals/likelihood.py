"""Likelihood scorers: from the NLLs and entropies of the tokens of the answer, with and without the context.

The L tokens of the answer are followed by EOS, which is included if a name contains `token`: an answer that should have
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
"""N_c: the prompt has instruction, context and question before the answer."""
NLL_WITHOUT_CONTEXT = FeatureRequest(ANSWER_NLL, chunks=0)
"""B_c: the same without the context."""


def _compute_normalized_likelihood(surprise: Tensor) -> float:
    """Return P~(s | x) = (prod_l P(s_l | s_<l, x))^(1/L) of the tokens of the answer (eq. 2 of the probe's paper)."""
    return math.exp(-float(surprise[:-1, 0].mean()))


def _make_signal(name: str, function: Callable[[Tensor], float]) -> Signal:
    def score_row(_: Interaction, features: Sequence[Tensor]) -> float:
        return function(features[0])

    return Signal(name, (NLL_WITH_CONTEXT,), score_row)


def _compute_context_gain(_: Interaction, features: Sequence[Tensor]) -> float:
    normal, baseline = features
    return (1 + _compute_normalized_likelihood(normal) - _compute_normalized_likelihood(baseline)) / 2


LIKELIHOOD_SIGNALS = (
    _make_signal("sequence_log_prob", _compute_normalized_likelihood),
    _make_signal("joint_log_prob", lambda surprise: math.exp(-float(surprise[:-1, 0].sum()))),  # eq. 1
    _make_signal("mean_log_prob", lambda surprise: math.exp(-float(surprise[:, 0].mean()))),
    _make_signal("min_log_prob", lambda surprise: math.exp(-float(surprise[:, 0].max()))),
    _make_signal("entropy", lambda surprise: math.exp(-float(surprise[:, 1].mean()))),
    # p(N_c) - p(B_c), moved from [-1, 1] to [0, 1]: what the context adds to the answer's probability.
    Signal("context_gain", (NLL_WITH_CONTEXT, NLL_WITHOUT_CONTEXT), _compute_context_gain),
)
