from pathlib import Path

import pytest

from abstain.config.settings import Settings
from abstain.serving import explanation as module
from abstain.serving.feature_spec import FeatureSpec
from abstain.serving.gate import DecisionInput, Gate, make_interaction
from tests.serving.builders import GUARANTEE
from tests.serving.conftest import Open
from tests.serving.status_page.builders import fused_release


@pytest.fixture
def gate(model: Path, settings: Settings, tmp_path: Path) -> Gate:
    return Gate.open(fused_release(tmp_path / "bundle", model, settings), settings)


@pytest.mark.parametrize("answer", ["None.", "é\u0301 😀 שלום", "a  b\n\nc", "<|im_end|>", "x" * 300])
def test_explain_splits_the_answer_with_its_likelihood(gate: Gate, answer: str) -> None:
    row = make_interaction("What is the fee?", ["There is none."], answer)
    found = gate.explain(row)
    (decided,) = gate.decide_all([DecisionInput(row.interaction_id, row)])
    assert found.decision == decided and found.scores.keys() == {"min_log_prob", "probe"}
    assert "".join(piece.text for piece in found.tokens) == row.answer
    assert all(piece.text for piece in found.tokens), "tokens that make one character are one piece"
    source = next(source for source in gate.predictor.reader.sources if isinstance(source.operation, module.NLL))
    (surprise,) = gate.predictor.reader.read([row]).batch.features[source.feature_request]
    assert surprise is not None
    total = sum(piece.log_probability for piece in found.tokens)
    assert total == pytest.approx(-float(surprise[:-1, 0].sum()), abs=1e-3), "without the EOS after it"


def test_explain_a_probe_has_its_own_score_alone(opened: Open, settings: Settings) -> None:
    predictor = opened(guarantee=GUARANTEE)
    gate = Gate(predictor, FeatureSpec.from_scorer(predictor.scorer, settings))
    found = gate.explain(make_interaction("What?", ["That."], "This."))
    assert found.scores == {gate.predictor.scorer.name: pytest.approx(found.decision.confidence)}
    assert found.tokens == [], "the probe reads states, not how likely tokens are"


def test_explain_unread_answer_has_no_scores(gate: Gate) -> None:
    too_long = gate.explain(make_interaction("What?", ["That."], "x" * 2000))
    assert too_long.decision.decision == "abstain" and too_long.decision.reason and not too_long.scores
    without = gate.explain(make_interaction("What?", [], "This."))
    assert without.decision.decision == "unavailable" and without.decision.reason and not without.scores
    assert gate.explain(make_interaction("What?", [], "This."), allow_no_context=True).scores
