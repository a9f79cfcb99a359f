from typing import Any

import pytest
import torch

from abstain.llm.engine.engine import Engine
from abstain.llm.engine.pauses import WorkCancelled, call_on_pause
from abstain.llm.engine.prompts import Segment
from abstain.llm.engine.requests import ConstrainedGenerate, Generate, HiddenStates, Request
from tests.llm.builders import shared_model, tiny_passes

TOKENS = 6
ANSWER = Generate(TOKENS, states=HiddenStates(2, segments=("answer",)))
REQUESTS = {}
for key, pass_ in tiny_passes().items():
    REQUESTS[f"{key} answer"] = Request(pass_[:-2], ANSWER, key)
    REQUESTS[f"{key} search"] = Request((*pass_[:-2], Segment("target", "ab")), ConstrainedGenerate(3, TOKENS), key)


def is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return one[0].tokens == other[0].tokens and torch.equal(one[0].states, other[0].states)
    return torch.equal(one, other)


@pytest.mark.parametrize("packed", [True, False])
def test_pauses_reading_other_passes_changes_no_result(packed: bool) -> None:
    engine = Engine(shared_model("llama"), 64, packed)
    expected = dict(engine.run(REQUESTS))
    others = [*tiny_passes().items()][::3]
    states = {key: Request(pass_, HiddenStates(2), key) for key, pass_ in others}
    read_alone, read = dict(engine.run(states)), []

    def read_states() -> None:
        with call_on_pause(lambda: None):
            read.append(dict(engine.run(states)))

    with call_on_pause(read_states):
        found = dict(engine.run(REQUESTS))
    assert len(read) > 2 * TOKENS
    assert all(is_equal(found[key], expected[key]) for key in expected)
    assert all(is_equal(of[key], read_alone[key]) for of in read for key in read_alone)


@pytest.mark.parametrize("passes", [1, 3, 9])
def test_pauses_may_cancel_the_work(passes: int) -> None:
    engine, pauses = Engine(shared_model("llama"), 4096), 0

    def end() -> None:
        nonlocal pauses
        pauses += 1
        if pauses == passes:
            raise WorkCancelled

    with call_on_pause(end), pytest.raises(WorkCancelled):
        dict(engine.run(REQUESTS))
    assert pauses == passes and dict(engine.run(REQUESTS)), "the model is as it was"
