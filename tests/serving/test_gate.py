from dataclasses import replace
from pathlib import Path

import pytest
import torch

import abstain
from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Context
from abstain.core.errors import AbstainError
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.llm.engine.prompts import Layout
from abstain.serving import explanation as module
from abstain.serving.gate import DecisionInput, Gate, make_interaction
from tests.knowledge.builders import chunk
from tests.serving.builders import MISSING_GUARANTEE
from tests.serving.conftest import OpenGate
from tests.serving.status_page.builders import fused_release

TEXTS = ("What is the fee?", ["The fee is 5."], "5")


def test_gate_decides_as_the_predictor_does(gate: Gate) -> None:
    decision = gate.decide(*TEXTS, interaction_id="i-1")
    (expected,) = gate.predictor.decide_interactions([make_interaction(*TEXTS)])
    assert decision.confidence == pytest.approx(expected.confidence, abs=1e-6)
    assert (decision.decision, decision.show) == (expected.decision, expected.show)
    assert decision.interaction_id == "i-1" and decision.components == ("probe",) and decision.forward_tokens > 0
    chunk = Context(chunk_id="fees#1", text="The fee is 5.")
    assert gate.decide("What is the fee?", [chunk], "5").confidence == pytest.approx(decision.confidence)
    response = {"choices": [{"logprobs": {"content": [{"token": "no", "logprob": -0.1}]}}]}
    with pytest.raises(AbstainError) as error:
        gate.decide(*TEXTS, response=response)  # log-probabilities of another answer
    assert error.value.code is Code.STATES_MISMATCH


def test_gate_decision_names_heading_and_page(gate: Gate) -> None:
    known = chunk("fees#1", "The fee is 5.", section_path=("Gold", "Fees"), page=3)
    cited = Context(chunk_id="fees#1", text="The fee is 5.")
    decision = replace(gate, chunks={"fees#1": known}).decide("What is the fee?", [cited, "Say 5."], "5")
    assert decision.sources == ("Gold › Fees, page 3",)
    assert decision.make_withheld_text("None.", with_sources=True) == "None.\n- Gold › Fees, page 3"
    assert gate.decide("What is the fee?", [cited], "5").sources == ("fees",), "without a knowledge base"


def test_gate_states_give_the_same_and_cost_nothing(gate: Gate) -> None:
    ((states,),) = gate.predictor.reader.read([make_interaction(*TEXTS)]).batch.features.values()
    assert states is not None
    engine = gate.predictor.source.load_engine()
    before = engine.stats.pass_tokens
    decision = gate.decide(states=states.float(), interaction_id="i-2")
    assert decision.forward_tokens == 0 and decision.interaction_id == "i-2"
    both = gate.decide(*TEXTS, states=torch.zeros_like(states.float()))
    assert both.confidence == pytest.approx(0.5) and both.forward_tokens == 0, "what was given is not read again"
    assert engine.stats.pass_tokens == before
    assert decision.confidence == pytest.approx(gate.decide(*TEXTS).confidence, abs=1e-5)


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


def test_gate_reasoning_is_no_part_of_the_answer(open_gate: OpenGate) -> None:
    gate = open_gate("show")
    question, contexts, answer = TEXTS
    decision = gate.decide(question, contexts, f"<think>4 or 5?</think> {answer}")
    assert decision.cleaned_answer == answer
    assert decision.confidence == pytest.approx(gate.decide(*TEXTS).confidence, abs=1e-5)
    for endless in ("<think>4 or 5", "<think>4</think>"):
        decision = gate.decide(question, contexts, endless)
        assert (decision.decision, decision.show) == ("unavailable", False) and decision.reason
        assert decision.reason.code is Code.ONLY_REASONING


def test_gate_whole_refusal_is_shown(open_gate: OpenGate) -> None:
    gate = open_gate("abstain", threshold="1.0")
    shown, longer = (gate.decide(*TEXTS[:2], text) for text in ("i don\u2019t know.", "I don't know the fee."))
    assert shown.show and shown.decision == "abstain" and shown.confidence is not None and shown.reason
    assert shown.reason.code is Code.LISTED_REFUSAL and not longer.show


def test_is_context_missing_where_the_prompt_takes_them(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    row = make_interaction("What is the fee?", [], "5")
    assert [gate.is_context_missing(row, allow_no_context=allowed) for allowed in (False, True)] == [True, False]
    segments = "- {segment: question, field: question}\n- {segment: answer, field: answer}\n- {segment: eos}"
    monkeypatch.setattr("abstain.serving.gate.load_layout", lambda name: Layout(name, segments))
    assert not gate.is_context_missing(row, allow_no_context=False)


def test_package_exports_its_public_names() -> None:
    names = [getattr(abstain, name).__name__.replace(metrics.__name__, "metrics") for name in abstain.__all__]
    assert names == abstain.__all__
    assert abstain.Gate is Gate and not hasattr(abstain, "Predictor")


@pytest.fixture
def fused_gate(model: Path, settings: Settings, tmp_path: Path) -> Gate:
    return Gate.open(fused_release(tmp_path / "bundle", model, settings), settings)


@pytest.mark.parametrize("answer", ["None.", "é\u0301 😀 שלום", "a  b\n\nc", "<|im_end|>", "x" * 300])
def test_explain_splits_the_answer_with_its_likelihood(fused_gate: Gate, answer: str) -> None:
    row = make_interaction("What is the fee?", ["There is none."], answer)
    found = fused_gate.explain(row)
    (decided,) = fused_gate.decide_all([DecisionInput(row.interaction_id, row)])
    assert found.decision == decided and found.scores.keys() == {"min_log_prob", "probe"}
    assert "".join(piece.text for piece in found.tokens) == row.answer
    assert all(piece.text for piece in found.tokens), "tokens that make one character are one piece"
    source = next(source for source in fused_gate.predictor.reader.sources if isinstance(source.operation, module.NLL))
    (surprise,) = fused_gate.predictor.reader.read([row]).batch.features[source.feature_request]
    assert surprise is not None
    total = sum(piece.log_probability for piece in found.tokens)
    assert total == pytest.approx(-float(surprise[:-1, 0].sum()), abs=1e-3), "without the EOS after it"


def test_explain_a_probe_has_its_own_score_alone(gate: Gate) -> None:
    found = gate.explain(make_interaction("What?", ["That."], "This."))
    assert found.scores == {gate.predictor.scorer.name: pytest.approx(found.decision.confidence)}
    assert found.tokens == [], "the probe reads states, not how likely tokens are"


def test_explain_unread_answer_has_no_scores(fused_gate: Gate) -> None:
    too_long = fused_gate.explain(make_interaction("What?", ["That."], "x" * 2000))
    assert too_long.decision.decision == "abstain" and too_long.decision.reason and not too_long.scores
    without = fused_gate.explain(make_interaction("What?", [], "This."))
    assert without.decision.decision == "unavailable" and without.decision.reason and not without.scores
    assert fused_gate.explain(make_interaction("What?", [], "This."), allow_no_context=True).scores
