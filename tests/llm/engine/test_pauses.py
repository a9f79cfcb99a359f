"""Pauses between the passes of the base model: what else is read there changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from abstain.llm.engine.engine import Engine, Result
from abstain.llm.engine.pauses import WorkCancelled, call_on_pause
from abstain.llm.engine.prompts import Segment
from abstain.llm.engine.requests import ConstrainedGenerate, Generate, HiddenStates, Request
from tests.llm.builders import shared_model, tiny_passes

TOKENS = 6
WRITTEN = Generate(TOKENS, states=HiddenStates(2, segments=("answer",)))


def asked() -> dict[str, Request]:
    """Answers and guesses to the tiny prompts."""
    prompts = {key: pass_[:-2] for key, pass_ in tiny_passes().items()}
    answers = {f"{key} written": Request(pass_, WRITTEN, key) for key, pass_ in prompts.items()}
    guesses = {
        f"{key} guessed": Request((*pass_, Segment("target", "ab")), ConstrainedGenerate(3, TOKENS), key)
        for key, pass_ in prompts.items()
    }
    return answers | guesses


def same(one: Result, other: Result) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    (a,), (b,) = one, other
    return isinstance(other, list) and a.tokens == b.tokens and torch.equal(a.states, b.states)


@pytest.mark.parametrize("packed", [True, False])
def test_other_passes_in_the_pauses_change_no_result(packed: bool) -> None:
    engine = Engine(shared_model("llama"), 64, packed)
    expected = dict(engine.run(asked()))
    states = {key: Request(pass_, HiddenStates(2), key) for key, pass_ in tiny_passes().items()}
    read_alone, read = dict(engine.run(states)), []

    def read_states() -> None:
        with call_on_pause(lambda: None):
            read.append(dict(engine.run(states)))

    with call_on_pause(read_states):
        found = dict(engine.run(asked()))
    assert len(read) > 2 * TOKENS, "after each token of the answers, and each step of the guesses"
    assert all(same(found[key], expected[key]) for key in expected)
    assert all(same(of[key], read_alone[key]) for of in read for key in read_alone)


@pytest.mark.parametrize("passes", [1, 3, 9])
def test_a_pause_may_end_the_work(passes: int) -> None:
    engine, pauses = Engine(shared_model("llama"), 4096), 0

    def end() -> None:
        nonlocal pauses
        pauses += 1
        if pauses == passes:
            raise WorkCancelled

    with call_on_pause(end), pytest.raises(WorkCancelled):
        dict(engine.run(asked()))
    assert pauses == passes and dict(engine.run(asked())), "the model is as it was"
