import pytest
import torch

import abstain
from abstain.core.codes import Code
from abstain.core.contracts import Context
from abstain.core.errors import AbstainError
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.llm.engine.prompts import Layout
from abstain.serving.gate import Gate, make_interaction
from tests.serving.builders import GUARANTEE, MISSING_GUARANTEE
from tests.serving.conftest import Open, OpenGate

TEXTS = ("What is the fee?", ["The fee is 5."], "5")


def test_gate_decides_as_the_predictor_does(open_gate: OpenGate, opened: Open) -> None:
    gate = open_gate()
    decision = gate.decide(*TEXTS, interaction_id="i-1")
    (expected,) = opened(guarantee=GUARANTEE).decide_interactions([make_interaction(*TEXTS)])
    assert decision.confidence == pytest.approx(expected.confidence, abs=1e-6)
    assert (decision.decision, decision.show) == (expected.decision, expected.show)
    assert decision.interaction_id == "i-1" and decision.components == ("probe",) and decision.forward_tokens > 0


def test_gate_states_give_the_same_and_cost_nothing(open_gate: OpenGate) -> None:
    gate = open_gate()
    ((states,),) = gate.predictor.reader.read([make_interaction(*TEXTS)]).batch.features.values()
    assert states is not None
    engine = gate.predictor.source.load_engine()
    before = engine.stats.pass_tokens
    decision = gate.decide(states=states.float(), interaction_id="i-2")
    assert decision.confidence == pytest.approx(gate.decide(*TEXTS).confidence, abs=1e-5)
    assert decision.forward_tokens == 0 and decision.interaction_id == "i-2"
    both = gate.decide(*TEXTS, states=torch.zeros_like(states.float()))
    assert both.confidence == pytest.approx(0.5) and both.forward_tokens == 0, "what was given is not read again"
    assert engine.stats.pass_tokens > before, "only the decision by texts was read"


def test_gate_unavailable_is_withheld_unless_set(open_gate: OpenGate) -> None:
    for on_unavailable in ("abstain", "show"):
        gate = open_gate(on_unavailable)
        nothing = gate.decide("What is the fee?", [], "5")
        unnamed = gate.decide(response=None, interaction_id="i-1")
        unguaranteed = open_gate(on_unavailable, guarantee=MISSING_GUARANTEE).decide(*TEXTS)
        for decision in (nothing, unnamed, unguaranteed):
            assert decision.decision == "unavailable" and decision.show is (on_unavailable == "show")
        assert unnamed.reason is not None and "the hidden states of the answer" in unnamed.reason.message
        assert unguaranteed.confidence is not None and unguaranteed.reason is not None
        assert unguaranteed.reason.code is Code.NO_THRESHOLD


def test_is_context_missing_where_the_prompt_takes_them(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    row = make_interaction("What is the fee?", [], "5")
    assert [gate.is_context_missing(row, allow_no_context=allowed) for allowed in (False, True)] == [True, False]
    segments = "- {segment: question, field: question}\n- {segment: answer, field: answer}\n- {segment: eos}"
    monkeypatch.setattr("abstain.serving.gate.load_layout", lambda name: Layout(name, segments))
    assert not gate.is_context_missing(row, allow_no_context=False)


def test_gate_contexts_are_texts_or_chunks(open_gate: OpenGate) -> None:
    gate = open_gate()
    chunk = Context(chunk_id="fees#1", text="The fee is 5.")
    assert gate.decide("What is the fee?", [chunk], "5").confidence == pytest.approx(gate.decide(*TEXTS).confidence)


def test_gate_rejects_log_probs_of_another_answer(open_gate: OpenGate) -> None:
    response = {"choices": [{"logprobs": {"content": [{"token": "no", "logprob": -0.1}]}}]}
    with pytest.raises(AbstainError) as error:
        open_gate().decide(*TEXTS, response=response)
    assert error.value.code is Code.STATES_MISMATCH


def test_package_exports_its_public_names() -> None:
    names = [getattr(abstain, name).__name__.replace(metrics.__name__, "metrics") for name in abstain.__all__]
    assert names == abstain.__all__
    assert abstain.Gate is Gate and not hasattr(abstain, "Predictor")
