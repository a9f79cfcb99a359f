from pathlib import Path

import pytest
import torch

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.llm.engine.prefix_tree import count_common_prefix
from abstain.llm.engine.requests import Generate, HiddenStates, NextTokenProbs
from abstain.llm.features.extraction import FeatureSource, UnreadableInteraction
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.compute_features import (
    COST_SAMPLE_SIZE,
    FeatureReader,
    compute_missing,
    estimate_forward_tokens,
    read_features,
)
from abstain.llm.signals.likelihood import NLL_WITH_CONTEXT, NLL_WITHOUT_CONTEXT
from tests.llm.builders import LAYERS, WINDOW
from tests.llm.signals.builders import interaction
from tests.tolerance import assert_near

CONTEXT = "The annual fee of the gold card is 5 euros."
ROW = interaction("5 euros", [CONTEXT], "What is the fee?")
ASKED_AFTER = FeatureRequest(NextTokenProbs(("Y", "N")), "asked_after")
PROBE = FeatureRequest(HiddenStates(1))


@pytest.mark.parametrize(
    "readings",
    [
        (PROBE,),
        (PROBE, FeatureRequest(HiddenStates(3, "mlp"))),
        (NLL_WITH_CONTEXT, PROBE),
        (NLL_WITHOUT_CONTEXT, NLL_WITH_CONTEXT),
        (NLL_WITH_CONTEXT, ASKED_AFTER, NLL_WITHOUT_CONTEXT),
    ],
)
def test_estimate_forward_tokens_equals_those_of_the_engine(
    tiny_params: LLMParams, settings: Settings, readings: tuple[FeatureRequest, ...]
) -> None:
    deepest = max(one.operation.layer if isinstance(one.operation, HiddenStates) else LAYERS for one in readings)
    done = compute_missing(tiny_params, settings, [([ROW], readings)])
    assert done.rows == len(readings)
    cost = estimate_forward_tokens(tiny_params, settings, [ROW], readings)
    assert cost == pytest.approx(done.forward_tokens * deepest / LAYERS)


def test_estimate_forward_tokens_includes_generated_tokens(tiny_params: LLMParams, settings: Settings) -> None:
    def cost(*readings: FeatureRequest) -> float:
        return estimate_forward_tokens(tiny_params, settings, [ROW], readings)

    yes, number = (FeatureRequest(Generate(n), kind) for n, kind in ((5, "yes_score"), (12, "probability")))
    prompts = {
        one: list("".join(s.text for s in one.render(tiny_params.layout, ROW.question, [CONTEXT], ROW.answer)).encode())
        for one in (yes, number)
    }
    assert cost(yes) == len(prompts[yes]) + 5
    assert cost(number) == len(prompts[number]) + 12
    assert cost(yes, number) == cost(yes) + cost(number) - count_common_prefix(*prompts.values())


def test_estimate_forward_tokens_is_a_mean_of_the_first_answers(tiny_params: LLMParams, settings: Settings) -> None:
    def cost(*rows: Interaction) -> float:
        return estimate_forward_tokens(tiny_params, settings, rows, [NLL_WITH_CONTEXT])

    whole, long = cost(ROW), interaction("5 euros" + "!" * 10, [CONTEXT], "What is the fee?")
    assert cost(ROW, long) == whole + 5
    assert cost(*[ROW] * COST_SAMPLE_SIZE, long) == whole
    assert cost(ROW, interaction("5 euros", ["word " * 200])) == whole / 2, "it cannot be read"
    assert cost() == estimate_forward_tokens(tiny_params, settings, [ROW], []) == 0


def test_read_features_results_are_in_row_order(tiny_params: LLMParams, settings: Settings) -> None:
    rows = [interaction("no", name="a"), interaction("5 euros", ["word " * 200]), interaction("no", name="b"), ROW]
    answers = read_features(tiny_params, settings, rows, (PROBE, NLL_WITHOUT_CONTEXT))
    assert answers.interactions is rows and set(answers.features) == {PROBE, NLL_WITHOUT_CONTEXT}
    states, surprise = answers.features[PROBE], answers.features[NLL_WITHOUT_CONTEXT]
    assert [None if one is None else len(one) for one in states] == [3, None, 3, 8]
    assert [None if one is None else len(one) for one in surprise] == [3, 8, 3, 8]
    assert states[0] is not None and states[2] is not None and torch.equal(states[0], states[2])
    alone = read_features(tiny_params, settings, [ROW], (PROBE,)).features[PROBE][0]
    assert alone is not None and states[3] is not None
    assert_near(alone, states[3])


def test_feature_reader_computes_missing_and_writes_nothing(tiny_params: LLMParams, settings: Settings) -> None:
    rows = [interaction(text, [CONTEXT], "What is the fee?", f"i-{at}") for at, text in enumerate(("5", "6", "7"))]
    readings = (PROBE, NLL_WITH_CONTEXT, NLL_WITHOUT_CONTEXT)
    expected = read_features(tiny_params, settings, rows, readings)
    alone = Settings(home=settings.home / "other", device="cpu", dtype="float32")
    compute_missing(tiny_params, alone, [(rows[:1], readings)])
    files = sorted(Path(alone.features).rglob("*"))
    reader = FeatureReader(tuple(FeatureSource(tiny_params, alone, one) for one in readings))
    engine = reader.sources[0].load_engine()
    before = engine.stats.forward_tokens
    long = interaction("x" * WINDOW, name="i-long")
    read_now = reader.read([*rows, long])
    found, unreadable = read_now.batch, read_now.unreadable
    tokens = 2 * estimate_forward_tokens(tiny_params, alone, rows[1:], readings)
    assert engine.stats.forward_tokens - before <= tokens, "the states are of a pass that is run anyway"
    for reading in readings:
        *read, last = found.features[reading]
        assert last is None
        for one, other in zip(read, expected.features[reading], strict=True):
            assert one is not None and other is not None
            assert_near(one.float(), other.float())
    assert unreadable[:3] == [None] * 3 and isinstance(unreadable[3], UnreadableInteraction)
    assert sorted(Path(alone.features).rglob("*")) == files
    each = [estimate_forward_tokens(tiny_params, alone, [row], readings) for row in rows[1:]]
    assert read_now.forward_tokens == pytest.approx([0, *each, 0]), "what was cached costs nothing"
    nothing = FeatureReader(()).read(rows)
    assert nothing.batch.features == {} and nothing.unreadable == [None] * 3 and nothing.forward_tokens == [0] * 3
