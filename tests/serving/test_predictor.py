import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.loading import find_model, load_model
from abstain.llm.engine.prompts import load_layout
from abstain.llm.engine.requests import HiddenStates, Request
from abstain.serving.predictor import Predictor
from abstain.serving.request_files import make_interaction_from_texts
from abstain.serving.scorer_latency import measure_decision_ms
from tests.learning.thresholds.builders import make_guarantee
from tests.serving.builders import GUARANTEE, LAYOUT, release, requests
from tests.serving.conftest import Open


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


NEEDED = ("version", "model", "model_revision", "layout", "layout_digest", "layer", "site", "too_long", "scorer")


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
    with pytest.raises(AbstainError) as error:
        opened(**changes)
    assert error.value.code is code


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
    monkeypatch.setattr(
        Predictor, "score_answers", lambda self, *given: read.append(given[2]) or of_reader(self, *given)
    )
    assert measure_decision_ms(file, settings, requests(3)) > 0
    assert len(read) == 2 and read[0] == read[1] and read[0][0] > 0, "one answer, once to load the model"
    long = requests(1)[0].model_copy(update={"answer": "x" * 600})
    assert measure_decision_ms(file, settings, [long]) == measure_decision_ms(file, settings, []) == 0
