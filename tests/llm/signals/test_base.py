from pathlib import Path

import numpy as np
import pytest
import torch

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.llm.engine.requests import NLL, Generate, HiddenStates, NextTokenProbs
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch, Scorer, Signal
from abstain.llm.signals.compute_features import collect_feature_requests, compute_missing, read_features
from abstain.llm.signals.length import LengthOnly
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS, NLL_WITH_CONTEXT, NLL_WITHOUT_CONTEXT
from abstain.llm.signals.verbalized import make_verbalized_signal
from abstain.llm.signals.yes_no import make_yes_no_signals
from tests.llm.builders import byte_tokenizer
from tests.llm.signals.builders import TEXTS, interaction, labels

ONE, TWO = FeatureRequest(NLL(("answer",))), FeatureRequest(NextTokenProbs(("Yes",)))
ROWS = [interaction(name=f"i-{n}", answer=answer) for n, answer in enumerate(("5 euros", "6 euros", "none"))]


def difference() -> Signal:
    return Signal("difference", (ONE, TWO), lambda row, found: float(found[0].sum() - found[1].sum()) / len(row.answer))


def test_signal_score_reads_rows_and_results_in_order() -> None:
    results = {
        TWO: [torch.full((1, 1), float(n)) for n in range(3)],
        ONE: [torch.full((2, 1), float(n)) for n in (5, 6, 7)],
    }
    found = difference().score(FeatureBatch(ROWS, results))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [10 / 7, 11 / 7, 12 / 4])


def test_signal_score_unread_row_is_nan() -> None:
    some: list[torch.Tensor | None] = [torch.ones(1, 1), None, torch.ones(1, 1)]
    answers = FeatureBatch(ROWS, {ONE: some, TWO: [torch.ones(1, 1)] * 2 + [None]})
    signal = difference()
    assert signal.fit(answers, labels([])) is signal
    np.testing.assert_array_equal(signal.score(answers), [0.0, np.nan, np.nan])
    assert signal.score(answers.take([])).shape == (0,)


def scorers() -> list[Scorer]:
    tokenizer = byte_tokenizer()
    return [*LIKELIHOOD_SIGNALS, *make_yes_no_signals(tokenizer), make_verbalized_signal(tokenizer), LengthOnly()]


def test_collect_feature_requests_has_no_repetition() -> None:
    everyone = scorers()
    asked = collect_feature_requests(everyone)
    assert len({scorer.name for scorer in everyone}) == len(everyone)
    assert len(asked) == len(set(asked)) == 5
    assert {NLL_WITH_CONTEXT, NLL_WITHOUT_CONTEXT} < set(asked)


@pytest.mark.heavy
def test_compute_missing_of_several_requests_shares_tokens(tiny_params: LLMParams, tmp_path: Path) -> None:
    rows = [
        interaction(f"It is {n} euros.", [text], f"What is said of the {topic}?", f"{topic}-{n}")
        for n in range(2)
        for topic, text in zip(("fee", "loss"), TEXTS, strict=True)
    ]
    asked = [
        FeatureRequest(HiddenStates(2)),
        FeatureRequest(HiddenStates(3, "mlp")),
        NLL_WITH_CONTEXT,
        NLL_WITHOUT_CONTEXT,
        FeatureRequest(Generate(3), "yes_score"),
        FeatureRequest(Generate(3), "probability"),
    ]
    at_once, one_by_one = (Settings(home=tmp_path / str(n), device="cpu", dtype="float32") for n in range(2))
    apart = [compute_missing(tiny_params, one_by_one, [(rows, [one])]) for one in asked]
    together = compute_missing(tiny_params, at_once, [(rows, asked)])
    assert together.rows == sum(cost.rows for cost in apart) == len(rows) * len(asked)
    assert together.pass_tokens == sum(cost.pass_tokens for cost in apart)
    assert together.forward_tokens < 0.7 * sum(cost.forward_tokens for cost in apart)
    found, expected = (read_features(tiny_params, home, rows, asked) for home in (at_once, one_by_one))
    for one in asked:
        for ours, theirs in zip(found.features[one], expected.features[one], strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
