from __future__ import annotations

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
from abstain.llm.engine.loading import LoadedModel
from abstain.llm.engine.prompts import load_layout
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.compute_features import read_features
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS, NLL_WITH_CONTEXT, NLL_WITHOUT_CONTEXT
from tests.llm.builders import plain_surprise
from tests.llm.signals.builders import TEXTS, interaction

BY_NAME = {signal.name: signal for signal in LIKELIHOOD_SIGNALS}
P = [0.5, 0.25, 0.8, 0.1]
"""What the base model gave to the answer's three tokens, and to EOS."""
H = [0.2, 1.0, 0.6, 1.4]
P_ALONE = [0.1, 0.2, 0.3, 0.9]


def surprise(p: Sequence[float], entropy: Sequence[float]) -> Tensor:
    return torch.tensor([[-math.log(one), h] for one, h in zip(p, entropy, strict=True)])


def scores(answers: FeatureBatch) -> dict[str, np.ndarray]:
    return {name: signal.score(answers) for name, signal in BY_NAME.items()}


def computed_by_hand(p: Sequence[float], h: Sequence[float], alone: Sequence[float]) -> dict[str, float]:
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
def test_every_signal_is_a_confidence_and_as_by_hand(tokens: list[tuple[float, float, float]]) -> None:
    p, alone, h = (list(column) for column in zip(*tokens, strict=True))
    answers = FeatureBatch(
        [interaction()], {NLL_WITH_CONTEXT: [surprise(p, h)], NLL_WITHOUT_CONTEXT: [surprise(alone, h)]}
    )
    found = scores(answers)
    assert found.keys() == computed_by_hand(p, h, alone).keys()
    for name, value in computed_by_hand(p, h, alone).items():
        assert 0 <= found[name][0] <= 1
        assert found[name][0] == pytest.approx(value, rel=1e-4, abs=1e-9), name
    assert found["min_log_prob"] <= found["mean_log_prob"] + 1e-6
    assert found["joint_log_prob"] <= found["sequence_log_prob"] + 1e-6


def test_what_the_base_model_could_not_read_is_nan() -> None:
    known = [surprise(P, H), surprise(P, H)]
    answers = FeatureBatch(
        [interaction(), interaction(name="i-2")], {NLL_WITH_CONTEXT: known, NLL_WITHOUT_CONTEXT: [None, surprise(P, H)]}
    )
    found = scores(answers)
    assert np.isnan(found.pop("context_gain")).tolist() == [True, False]
    assert not any(np.isnan(values).any() for values in found.values())


def forward(
    loaded: LoadedModel, row: Interaction, contexts: Sequence[str], layout: str
) -> tuple[list[float], list[float]]:
    """Probabilities and entropies of the tokens of answer and EOS, from one plain forward pass."""
    encoded, found = plain_surprise(loaded, load_layout(layout).render(row.question, contexts, row.answer))
    nll, entropy = found[slice(*encoded.span("answer", "eos"))].double().T
    return (-nll).exp().tolist(), entropy.tolist()


@pytest.mark.slow
def test_the_embedded_models_signals_are_those_of_a_plain_forward_pass(
    embedded: LoadedModel, embedded_params: LLMParams, float32_settings: Settings
) -> None:
    rows = [
        interaction(),
        interaction("The hotline, by day or by night.", TEXTS, "Who blocks a lost card?", "i-2"),
        interaction("The fee is 50 pounds.", TEXTS[1:], "What is the annual fee of the gold card?", "i-3"),
    ]
    found = scores(read_features(embedded_params, float32_settings, rows, [NLL_WITH_CONTEXT, NLL_WITHOUT_CONTEXT]))
    for at, row in enumerate(rows):
        p, h = forward(embedded, row, [context.text for context in row.contexts], embedded_params.layout)
        alone, _ = forward(embedded, row, [], embedded_params.layout)
        for name, value in computed_by_hand(p, h, alone).items():
            assert found[name][at] == pytest.approx(value, abs=1e-3), (name, at)
