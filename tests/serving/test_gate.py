import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import abstain
from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Context, Interaction
from abstain.core.errors import AbstainError
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.loading import find_model, load_model
from abstain.llm.engine.prompts import Layout, load_layout
from abstain.llm.engine.requests import HiddenStates, Request
from abstain.llm.features.extraction import FeatureSource
from abstain.serving import explanation as module
from abstain.serving import feature_writer
from abstain.serving.feature_writer import FeatureCacheWriter
from abstain.serving.gate import DecisionInput, Gate, make_interaction
from abstain.serving.predictor import Predictor
from abstain.serving.request_files import make_interaction_from_texts
from abstain.serving.scorer_latency import measure_decision_ms
from tests.knowledge.builders import chunk
from tests.learning.thresholds.builders import make_guarantee
from tests.serving.builders import GUARANTEE, LAYOUT, MISSING_GUARANTEE, release, requests
from tests.serving.conftest import Open, OpenGate
from tests.serving.status_page.builders import fused_release

TEXTS = ("What is the fee?", ["The fee is 5."], "5")
NEEDED = ("version", "model", "model_revision", "layout", "layout_digest", "layer", "site", "too_long", "scorer")
Decide = Callable[..., tuple[Gate, FeatureSource]]


def test_gate_decides_as_the_predictor_does(gate: Gate) -> None:
    decision = gate.decide(*TEXTS, interaction_id="i-1")
    (expected,) = gate.predictor.decide_interactions([make_interaction(*TEXTS)])
    assert decision.confidence == pytest.approx(expected.confidence, abs=1e-6)
    assert (decision.decision, decision.show) == (expected.decision, expected.show)
    assert decision.interaction_id == "i-1" and decision.components == ("probe",) and decision.forward_tokens > 0
    chunk = Context(chunk_id="fees#1", text="The fee is 5.")
    assert gate.decide("What is the fee?", [chunk], "5").confidence == pytest.approx(decision.confidence)
    response = {"choices": [{"logprobs": {"content": [{"token": "no", "logprob": -0.1}]}}]}
    with pytest.raises(AbstainError, check=lambda error: error.code is Code.STATES_MISMATCH):
        gate.decide(*TEXTS, response=response)  # log-probabilities of another answer


def test_gate_decision_names_heading_and_page(gate: Gate) -> None:
    known = chunk("fees#1", "The fee is 5.", section_path=("Gold", "Fees"), page=3)
    cited = Context(chunk_id="fees#1", text="The fee is 5.")
    decision = replace(gate, chunks={"fees#1": known}).decide("What is the fee?", [cited, "Say 5."], "5")
    assert decision.sources == ("Gold › Fees, page 3",)
    assert decision.make_withheld_text("None.", with_sources=True) == "None.\n- Gold › Fees, page 3"
    assert gate.decide("What is the fee?", [cited], "5").sources == ("fees",), "without a knowledge base"


def test_gate_states_give_the_same_and_cost_nothing(gate: Gate) -> None:
    ((states,),) = gate.predictor.reader.read([make_interaction(*TEXTS)]).batch.features.values()
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
        assert "the hidden states of the answer" in str(unnamed.reason)


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


def compute_by_hand(model: Path, settings: Settings, request: Interaction) -> float:
    """Sigmoid of the mean state at layer 2, without cache, ONNX or scorer."""
    loaded = load_model(find_model(str(model), settings), torch.device("cpu"), torch.float32)
    texts = [context.text for context in request.contexts]
    prompt = load_layout(LAYOUT).render(request.question, texts, request.answer)
    ((_, states),) = Engine(loaded, 4096).run({"a": Request(prompt, HiddenStates(2), "a")})
    return float(states.mean().sigmoid())


def test_decide_interactions_in_order_by_their_own_confidences(opened: Open, model: Path, settings: Settings) -> None:
    rows = [row.model_copy(update={"interaction_id": f"i-{number // 2}"}) for number, row in enumerate(requests())]
    expected = [compute_by_hand(model, settings, row) for row in rows]
    threshold = sum(sorted(expected)[2:4]) / 2
    predictor = opened(threshold=repr(threshold))
    decisions = predictor.decide_interactions(rows)
    assert [d.interaction_id for d in decisions] == [row.interaction_id for row in rows], "two have the same id"
    assert [d.confidence for d in decisions] == pytest.approx(expected, abs=1e-6)
    assert [d.decision for d in decisions] == ["show" if c >= threshold else "abstain" for c in expected]
    assert {d.decision for d in decisions} == {"show", "abstain"}
    assert {(d.threshold, d.version) for d in decisions} == {(threshold, "v1.2.0")}
    backwards = predictor.decide_interactions(rows[::-1])[::-1]
    assert [(d.interaction_id, d.decision) for d in backwards] == [(d.interaction_id, d.decision) for d in decisions]
    assert [d.confidence for d in backwards] == pytest.approx([d.confidence for d in decisions])
    assert predictor.decide_interactions([]) == []
    assert not list(Path(settings.features).rglob("*")), "nothing is kept"


def test_decision_has_guarantee_and_probability(opened: Open) -> None:
    halved = json.dumps({"method": "isotonic", "knots": [0.0, 1.0], "values": [0.0, 0.5]})
    (decision,) = opened(guarantee=GUARANTEE, calibration=halved).decide_interactions(requests(1))
    assert decision.guarantee == make_guarantee().summarize()
    assert decision.confidence is not None and decision.probability == pytest.approx(decision.confidence / 2)
    assert decision.probability_low is None and decision.probability_high is None
    interval = {"method": "venn_abers", "p0_knots": [], "p0_values": [0.25], "p1_knots": [], "p1_values": [0.75]}
    (decision,) = opened(calibration=json.dumps(interval)).decide_interactions(requests(1))
    assert (decision.probability_low, decision.probability, decision.probability_high) == (0.25, 0.5, 0.75)


def test_decision_at_the_threshold_is_show(opened: Open) -> None:
    (first,) = opened().decide_interactions(requests(1))
    assert first.guarantee is not None and first.guarantee.status == "none" and first.probability == first.confidence
    for threshold, decision in ((first.confidence, "show"), (first.confidence + 1e-4, "abstain")):
        assert opened(threshold=repr(threshold)).decide_interactions(requests(1))[0].decision == decision


def test_decide_interactions_drops_chunks_where_the_release_does(opened: Open, model: Path, settings: Settings) -> None:
    short, long = (make_interaction_from_texts("Q?", "Yes.", texts) for texts in (["first"], ["first", "x" * 600]))
    (decision,) = opened(too_long="drop_chunks").decide_interactions([long])
    assert decision.confidence == pytest.approx(compute_by_hand(model, settings, short), abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        *(({key: None}, Code.BAD_ARTIFACT) for key in (*NEEDED, "threshold", "calibration", "guarantee")),
        ({"threshold": "high"}, Code.BAD_ARTIFACT),
        ({"layer": "0"}, Code.BAD_ARTIFACT),
        ({"site": "attention"}, Code.BAD_ARTIFACT),
        ({"includes_eos": "perhaps"}, Code.BAD_ARTIFACT),
        ({"calibration": "{"}, Code.BAD_ARTIFACT),
        ({"guarantee": "[]"}, Code.BAD_ARTIFACT),
        ({"model_revision": "0123456789abcdef"}, Code.VERSION_MISMATCH),
        ({"layout_digest": "0" * 64}, Code.VERSION_MISMATCH),
        ({"layout": "auto"}, Code.MODEL_UNSUITABLE),
        ({"layout": "rag-old-v0"}, Code.UNKNOWN_NAME),
        ({"format": None}, Code.VERSION_MISMATCH),
    ],
)
def test_open_rejects_metadata(opened: Open, changes: dict[str, str | None], code: Code) -> None:
    with pytest.raises(AbstainError, check=lambda error: error.code is code):
        opened(**changes)


def test_open_does_not_load_the_base_model(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abstain.llm.features.shard_job.load_model", Mock(side_effect=RuntimeError("it was loaded")))
    predictor = opened()
    with pytest.raises(RuntimeError, match="was loaded"):
        predictor.decide_interactions(requests(1))


def test_measure_decision_ms_uses_no_cache(
    opened: Open, model: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened().compute_missing(requests(3))
    file, read = release(tmp_path / "measured", model, settings), []
    of_reader = Predictor.score_answers
    monkeypatch.setattr(Predictor, "score_answers", lambda self, *args: read.append(args[2]) or of_reader(self, *args))
    assert measure_decision_ms(file, settings, requests(3)) > 0
    assert len(read) == 2 and read[0] == read[1] and read[0][0] > 0, "one answer, once to load the model"
    long = requests(1)[0].model_copy(update={"answer": "x" * 600})
    assert measure_decision_ms(file, settings, [long]) == measure_decision_ms(file, settings, []) == 0


def keep(rows: Sequence[Interaction]) -> Callable[[Sequence[str]], Mapping[str, Interaction]]:
    """The texts that a log keeps."""
    return lambda ids: {row.interaction_id: row for row in rows if row.interaction_id in ids}


@pytest.fixture
def decide(tmp_path: Path, model: Path, settings: Settings) -> Decide:
    """A gate that has decided about rows, at the end of its writer, and the cache of another one."""
    bundle = release(tmp_path / "bundle", model, settings, guarantee=GUARANTEE).parent

    def run(writer: FeatureCacheWriter, rows: Sequence[Interaction]) -> tuple[Gate, FeatureSource]:
        with writer:
            gate = Gate.open(bundle, settings, on_computed=writer.add)
            gate.decide_all([DecisionInput(row.interaction_id, row) for row in rows])
        return gate, Gate.open(bundle, settings).predictor.source

    return run


def test_feature_writer_caches_states_of_decisions(decide: Decide) -> None:
    rows = requests()[1:]
    writer = FeatureCacheWriter(keep(rows), 100)
    gate, source = decide(writer, rows)
    assert source.count_missing(rows) == 0 and writer.counts["written"] == len(rows)
    read = dict(source.read(rows))
    (again,) = gate.predictor.reader.read(rows).batch.features.values()
    for number, states in enumerate(again):
        torch.testing.assert_close(read[number], states)
    before = source.load_engine().stats.pass_tokens
    assert not source.compute_missing(rows).rows and source.load_engine().stats.pass_tokens == before


def test_feature_writer_leaves_out_redacted_and_unlogged(decide: Decide) -> None:
    same, other, unlogged = requests()[1:4]
    redacted = other.model_copy(update={"question": "Question of <PERSON>?"})
    writer = FeatureCacheWriter(keep([same, redacted]), 100)
    _, source = decide(writer, [same, other, unlogged])
    assert source.count_missing([same]) == 0 and source.count_missing([other, unlogged, same, redacted]) == 3
    assert writer.counts == {"written": 1, "left_out": 2}


def test_feature_writer_writes_so_many_a_day(decide: Decide) -> None:
    rows = requests()[1:]
    _, source = decide(FeatureCacheWriter(keep(rows), 2), rows)
    assert source.count_missing(rows) == len(rows) - 2


def test_feature_writer_without_queue_or_log_costs_no_decision(decide: Decide, monkeypatch: pytest.MonkeyPatch) -> None:
    fail = Mock(side_effect=AbstainError(Code.NO_SERVICE, "the log is away"))
    monkeypatch.setattr(feature_writer, "MAX_QUEUED", 3)
    writer, rows = FeatureCacheWriter(fail, 100), requests()[1:]
    decide(writer, rows)
    assert writer.counts == {"dropped": len(rows)}
