from __future__ import annotations

from pathlib import Path

import pytest
import torch

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.llm.engine.prompts import load_layout
from abstain.llm.engine.requests import Generate, HiddenStates, NextTokenProbs
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.compute_features import COUNTED, compute_missing, forward_tokens, read_answers, requests_of
from abstain.llm.signals.counterfactuals import context_removed
from abstain.llm.signals.likelihood import BASELINE, NORMAL
from tests.llm.builders import LAYERS, save_tiny_model
from tests.llm.signals.builders import interaction
from tests.tolerance import assert_near

CONTEXT = "The annual fee of the gold card is 5 euros."
ROW = interaction("5 euros", [CONTEXT], "What is the fee?")
ASKED_AFTER = FeatureRequest(NextTokenProbs(("Y", "N")), "asked_after")
PROBE = FeatureRequest(HiddenStates(1))


@pytest.fixture(scope="module")
def params(tmp_path_factory: pytest.TempPathFactory) -> LLMParams:
    model = save_tiny_model(tmp_path_factory.mktemp("model") / "tiny-bank")
    return LLMParams(model=str(model), layout="rag-plain-v1", layer=1, site="residual", too_long="refuse")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, device="cpu", dtype="float32")


def literal(folder: str, layout: str, segment: str) -> int:
    """Tokens of a layout's own text: the tiny model reads bytes."""
    return next(len(s.text.encode()) for s in load_layout(layout, folder).render("", [], "") if s.name == segment)


INSTRUCTION = literal("layouts", "rag-plain-v1", "instruction")
REST = sum(literal("layouts", "rag-plain-v1", name) for name in ("question_mark", "turn"))
WHOLE = INSTRUCTION + len(CONTEXT) + REST + len("What is the fee?") + len("5 euros") + 1
"""Of `ROW`, with the EOS after the answer."""


def test_a_token_counts_for_the_layers_that_it_goes_through(params: LLMParams, settings: Settings) -> None:
    def cost(*readings: FeatureRequest) -> float:
        return forward_tokens(params, settings, [ROW], readings)

    assert cost(PROBE) == WHOLE * 1 / LAYERS
    assert cost(PROBE, FeatureRequest(HiddenStates(3, "mlp"))) == WHOLE * 3 / LAYERS
    assert cost(NORMAL) == cost(NORMAL, PROBE) == WHOLE


def test_what_two_passes_begin_with_counts_once(params: LLMParams, settings: Settings) -> None:
    def cost(*readings: FeatureRequest) -> float:
        return forward_tokens(params, settings, [ROW], readings)

    question = literal("questions", "after-rag-plain-v1", "ask")
    assert cost(ASKED_AFTER) == cost(NORMAL, ASKED_AFTER) == cost(ASKED_AFTER, PROBE) == WHOLE + question
    without = WHOLE - len(CONTEXT)
    assert cost(BASELINE) == without
    assert cost(NORMAL, BASELINE) == cost(BASELINE, NORMAL) == WHOLE + without - INSTRUCTION
    assert cost(NORMAL, BASELINE, ASKED_AFTER) == WHOLE + question + without - INSTRUCTION


def test_what_is_written_counts_too(params: LLMParams, settings: Settings) -> None:
    def cost(*readings: FeatureRequest) -> float:
        return forward_tokens(params, settings, [ROW], readings)

    yes, number = (FeatureRequest(Generate(n), kind) for n, kind in ((5, "yes_score"), (12, "probability")))
    prompts = {
        kind: sum(
            len(s.text.encode()) for s in load_layout(kind, "questions").render(ROW.question, [CONTEXT], ROW.answer)
        )
        for kind in ("yes-score-v1", "probability-v1")
    }
    assert cost(yes) == prompts["yes-score-v1"] + 5
    assert cost(number) == prompts["probability-v1"] + 12
    last = literal("questions", "yes-score-v1", "ask"), literal("questions", "probability-v1", "ask")
    both_begin = len("\n\nBased on the given Context and Question")
    shared = prompts["yes-score-v1"] - last[0] + both_begin
    assert cost(yes, number) == cost(yes) + cost(number) - shared


def test_it_is_what_the_engine_runs_for_one_answer(params: LLMParams, settings: Settings) -> None:
    readings = [NORMAL, BASELINE, ASKED_AFTER]
    done = compute_missing(params, settings, [([ROW], readings)])
    assert done.rows == 3 and done.forward_tokens == forward_tokens(params, settings, [ROW], readings)


def test_the_mean_is_of_answers_and_of_the_first_ones(params: LLMParams, settings: Settings) -> None:
    short, long = ROW, interaction("5 euros" + "!" * 10, [CONTEXT], "What is the fee?")
    assert forward_tokens(params, settings, [short, long], [NORMAL]) == WHOLE + 5
    assert forward_tokens(params, settings, [short] * COUNTED + [long], [NORMAL]) == WHOLE
    unread = interaction("5 euros", ["word " * 200])
    assert forward_tokens(params, settings, [short, unread], [NORMAL]) == WHOLE / 2


def test_what_asks_nothing_costs_nothing(params: LLMParams, settings: Settings) -> None:
    assert forward_tokens(params, settings, [ROW], []) == 0
    assert forward_tokens(params, settings, [], [NORMAL]) == 0


def test_all_that_is_asked_is_filled_at_once_and_only_once(params: LLMParams, settings: Settings) -> None:
    rows = [interaction(f"{n} euros", name=f"i-{n}") for n in range(4)]
    asked = [(rows, (PROBE, NORMAL)), (context_removed(rows[:2]), (PROBE,)), (rows[2:], (NORMAL,))]
    assert len(requests_of(params, settings, asked)) == 12
    seen: list[tuple[int, int]] = []
    done = compute_missing(params, settings, asked, lambda part, whole: seen.append((part, whole)))
    assert done.rows == 10, "the last two rows' NLLs were asked for twice"
    assert (seen[0], seen[-1]) == ((0, 10), (10, 10))
    again = compute_missing(params, settings, asked, lambda part, whole: pytest.fail("there was nothing to do"))
    assert (again.rows, again.forward_tokens) == (0, 0)


def test_results_stand_beside_their_interactions(params: LLMParams, settings: Settings) -> None:
    """Equal answers share a result, and one that does not fit has none."""
    rows = [interaction("no", name="a"), interaction("5 euros", ["word " * 200]), interaction("no", name="b"), ROW]
    answers = read_answers(params, settings, rows, (PROBE, BASELINE))
    assert answers.interactions is rows and set(answers.results) == {PROBE, BASELINE}
    states, surprise = answers.results[PROBE], answers.results[BASELINE]
    assert [None if one is None else len(one) for one in states] == [3, None, 3, 8]
    assert [None if one is None else len(one) for one in surprise] == [3, 8, 3, 8]
    assert states[0] is not None and states[2] is not None and torch.equal(states[0], states[2])
    alone = read_answers(params, settings, [ROW], (PROBE,)).results[PROBE][0]
    assert alone is not None and states[3] is not None
    assert_near(alone, states[3])
