import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.llm.engine.prompts import load_layout
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.compute_features import read_features
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS, NLL_WITH_CONTEXT, NLL_WITHOUT_CONTEXT
from tests.llm.builders import plain_surprise, shared_model
from tests.llm.signals.builders import TEXTS, interaction

BY_NAME = {signal.name: signal for signal in LIKELIHOOD_SIGNALS}
P = [0.5, 0.25, 0.8, 0.1]
"""What the base model gave to the answer's three tokens, and to EOS."""
H = [0.2, 1.0, 0.6, 1.4]


def surprise(p: Sequence[float], entropy: Sequence[float]) -> Tensor:
    return torch.tensor([[-math.log(one), h] for one, h in zip(p, entropy, strict=True)])


def scores(answers: FeatureBatch) -> dict[str, np.ndarray]:
    return {name: signal.score(answers) for name, signal in BY_NAME.items()}


def expected_scores(p: Sequence[float], h: Sequence[float], alone: Sequence[float]) -> dict[str, float]:
    """Equations 1 and 2 of the probe's paper, and the others, as products of probabilities."""
    own = p[:-1]
    return {
        "sequence_log_prob": math.prod(own) ** (1 / len(own)),
        "joint_log_prob": math.prod(own),
        "mean_log_prob": math.prod(p) ** (1 / len(p)),
        "min_log_prob": min(p),
        "entropy": math.exp(-sum(h) / len(h)),
        "context_gain": (1 + math.prod(own) ** (1 / len(own)) - math.prod(alone[:-1]) ** (1 / len(own))) / 2,
    }


PROBABILITIES = st.floats(1e-6, 1)


@given(st.lists(st.tuples(PROBABILITIES, PROBABILITIES, st.floats(0, 12)), min_size=2, max_size=12))
def test_likelihood_signals_are_products_of_probabilities(tokens: list[tuple[float, float, float]]) -> None:
    p, alone, h = (list(column) for column in zip(*tokens, strict=True))
    answers = FeatureBatch(
        [interaction()], {NLL_WITH_CONTEXT: [surprise(p, h)], NLL_WITHOUT_CONTEXT: [surprise(alone, h)]}
    )
    found = scores(answers)
    assert found.keys() == expected_scores(p, h, alone).keys()
    for name, value in expected_scores(p, h, alone).items():
        assert 0 <= found[name][0] <= 1
        assert found[name][0] == pytest.approx(value, rel=1e-4, abs=1e-9), name
    assert found["min_log_prob"] <= found["mean_log_prob"] + 1e-6
    assert found["joint_log_prob"] <= found["sequence_log_prob"] + 1e-6


def test_likelihood_signals_unread_row_is_nan() -> None:
    known = [surprise(P, H), surprise(P, H)]
    answers = FeatureBatch(
        [interaction(), interaction(name="i-2")], {NLL_WITH_CONTEXT: known, NLL_WITHOUT_CONTEXT: [None, surprise(P, H)]}
    )
    found = scores(answers)
    assert np.isnan(found.pop("context_gain")).tolist() == [True, False]
    assert not any(np.isnan(values).any() for values in found.values())


def test_likelihood_signals_equal_a_plain_forward(tiny_params: LLMParams, settings: Settings) -> None:
    rows = [
        interaction("5 euros", TEXTS[:1]),
        interaction("The hotline, by day or by night.", TEXTS, "Who blocks a lost card?", "i-2"),
    ]
    found = scores(read_features(tiny_params, settings, rows, [NLL_WITH_CONTEXT, NLL_WITHOUT_CONTEXT]))

    def probabilities(row: Interaction, contexts: list[str]) -> tuple[list[float], list[float]]:
        layout = load_layout(tiny_params.layout)
        encoded, plain = plain_surprise(shared_model(), layout.render(row.question, contexts, row.answer))
        nll, entropy = plain[slice(*encoded.span("answer", "eos"))].double().T
        return (-nll).exp().tolist(), entropy.tolist()

    for at, row in enumerate(rows):
        p, h = probabilities(row, [context.text for context in row.contexts])
        alone, _ = probabilities(row, [])
        for name, value in expected_scores(p, h, alone).items():
            assert found[name][at] == pytest.approx(value, abs=1e-3), (name, at)
