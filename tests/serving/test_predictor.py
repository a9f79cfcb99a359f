from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

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
from abstain.serving import scorer_latency
from abstain.serving.predictor import Predictor
from abstain.serving.request_files import make_interaction_from_texts
from abstain.serving.scorer_latency import measure_base_model_ms, measure_scorer_p99_ms
from tests.learning.thresholds.builders import make_guarantee
from tests.llm.builders import save_tiny_model
from tests.serving.builders import GUARANTEE, LAYOUT, release, requests


def computed_by_hand(model: Path, settings: Settings, request: Interaction) -> float:
    """Sigmoid of the mean state at layer 2, without cache, ONNX or scorer."""
    loaded = load_model(find_model(str(model), settings), torch.device("cpu"), torch.float32)
    texts = [context.text for context in request.contexts]
    pass_ = load_layout(LAYOUT).render(request.question, texts, request.answer)
    ((_, states),) = Engine(loaded, 4096).run({"a": Request(pass_, HiddenStates(2), "a")})
    return float(states.mean().sigmoid())


def test_verdicts_come_in_order_each_with_its_own_confidence(
    opened: Callable[..., Predictor], model: Path, settings: Settings
) -> None:
    rows = requests()
    expected = [computed_by_hand(model, settings, row) for row in rows]
    middle = sorted(expected)[3]
    threshold = (middle + sorted(expected)[2]) / 2
    scorer = opened(threshold=repr(threshold))
    verdicts = scorer.decide_interactions(rows)
    assert [v.interaction_id for v in verdicts] == [row.interaction_id for row in rows]
    assert [v.confidence for v in verdicts] == pytest.approx(expected, abs=1e-6)
    assert [v.decision for v in verdicts] == ["show" if c >= threshold else "abstain" for c in expected]
    assert {v.decision for v in verdicts} == {"show", "abstain"}
    assert {(v.threshold, v.version) for v in verdicts} == {(threshold, "v1.2.0")}
    backwards = scorer.decide_interactions(rows[::-1])
    assert [(v.interaction_id, v.decision) for v in backwards] == [
        (v.interaction_id, v.decision) for v in verdicts[::-1]
    ]
    assert [v.confidence for v in backwards] == pytest.approx([v.confidence for v in verdicts[::-1]])


def test_a_verdict_says_what_was_guaranteed_and_how_likely_it_is_right(opened: Callable[..., Predictor]) -> None:
    halved = json.dumps({"method": "isotonic", "knots": [0.0, 1.0], "values": [0.0, 0.5]})
    (verdict,) = opened(guarantee=GUARANTEE, calibration=halved).decide_interactions(requests(1))
    assert verdict.guarantee == make_guarantee().summarize()
    assert verdict.confidence is not None and verdict.probability == pytest.approx(verdict.confidence / 2)
    assert verdict.probability_low is None and verdict.probability_high is None
    interval = json.dumps(
        {"method": "venn_abers", "p0_knots": [], "p0_values": [0.25], "p1_knots": [], "p1_values": [0.75]}
    )
    (verdict,) = opened(calibration=interval).decide_interactions(requests(1))
    assert (verdict.probability_low, verdict.probability, verdict.probability_high) == (0.25, 0.5, 0.75)


def test_a_version_without_a_guarantee_says_so(opened: Callable[..., Predictor]) -> None:
    (verdict,) = opened().decide_interactions(requests(1))
    assert (
        verdict.guarantee is not None
        and verdict.guarantee.status == "none"
        and verdict.probability == verdict.confidence
    )


def test_an_answer_at_the_threshold_is_shown(opened: Callable[..., Predictor]) -> None:
    (verdict,) = opened().decide_interactions(requests(1))
    assert opened(threshold=repr(verdict.confidence)).decide_interactions(requests(1))[0].decision == "show"
    assert opened(threshold=repr(verdict.confidence + 1e-4)).decide_interactions(requests(1))[0].decision == "abstain"


def test_equal_ids_with_different_texts_are_scored_apart(
    opened: Callable[..., Predictor], model: Path, settings: Settings
) -> None:
    rows = [make_interaction_from_texts("Q?", answer, []) for answer in ("Yes.", "No, that is not possible.")]
    assert rows[0].interaction_id == rows[1].interaction_id
    verdicts = opened().decide_interactions(rows)
    assert [v.confidence for v in verdicts] == pytest.approx(
        [computed_by_hand(model, settings, row) for row in rows], abs=1e-6
    )
    assert verdicts[0].confidence != verdicts[1].confidence


def test_an_answer_that_cannot_be_read_is_not_shown(opened: Callable[..., Predictor]) -> None:
    fine, long = requests(2)
    long = long.model_copy(update={"answer": "x" * 600})
    refusing = opened(threshold="0.0")
    verdicts = refusing.decide_interactions([long, fine])
    assert [v.decision for v in verdicts] == ["abstain", "show"]
    assert (
        verdicts[0].confidence is None and verdicts[0].reason is not None and verdicts[0].reason.code is Code.TOO_LONG
    )
    assert verdicts[1].reason is None and verdicts[1].confidence is not None


def test_a_context_that_does_not_fit_is_dropped_where_the_release_says_so(
    opened: Callable[..., Predictor], model: Path, settings: Settings
) -> None:
    short, long = (
        make_interaction_from_texts("Q?", "Yes.", ["first"]),
        make_interaction_from_texts("Q?", "Yes.", ["first", "x" * 600]),
    )
    scorer = opened(too_long="drop_chunks")
    assert scorer.decide_interactions([long])[0].confidence == pytest.approx(
        computed_by_hand(model, settings, short), abs=1e-6
    )


def test_scoring_keeps_nothing(opened: Callable[..., Predictor], settings: Settings) -> None:
    opened().decide_interactions(requests(2))
    assert not list(Path(settings.features).rglob("*"))


def test_nothing_to_score(opened: Callable[..., Predictor]) -> None:
    assert opened().decide_interactions([]) == []


def test_another_base_model_revision_is_refused(opened: Callable[..., Predictor]) -> None:
    with pytest.raises(
        AbstainError, match=r"version v1.2.0 was trained on .*@0123456789abcdef, but .* fetch that revision"
    ):
        opened(model_revision="0123456789abcdef")


def test_a_base_model_whose_weights_changed_is_refused(settings: Settings, tmp_path: Path) -> None:
    own = save_tiny_model(tmp_path / "bank")
    file = release(tmp_path, own, settings)
    assert Predictor.open(file, settings)
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    with pytest.raises(AbstainError, match="or retrain$"):
        Predictor.open(file, settings)


def test_a_changed_layout_is_refused(opened: Callable[..., Predictor]) -> None:
    with pytest.raises(
        AbstainError, match=f"prompt layout {LAYOUT} has changed since version v1.2.0 was trained: restore"
    ):
        opened(layout_digest="0" * 64)


def test_a_layout_that_is_gone_is_named(opened: Callable[..., Predictor]) -> None:
    with pytest.raises(AbstainError, match="no prompt layout 'rag-old-v0'"):
        opened(layout="rag-old-v0")


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {key: None}
            for key in (
                "version",
                "model",
                "model_revision",
                "layout",
                "layout_digest",
                "layer",
                "site",
                "too_long",
                "scorer",
            )
        ),
        {"threshold": None},
        {"threshold": "high"},
        {"layer": "0"},
        {"layer": "middle"},
        {"site": "attention"},
        {"includes_eos": "perhaps"},
        {"calibration": "{"},
        {"calibration": None},
        {"guarantee": "[]"},
        {"guarantee": None},
    ],
)
def test_incomplete_metadata_is_refused(opened: Callable[..., Predictor], changes: dict[str, str | None]) -> None:
    with pytest.raises(AbstainError, match=r"probe.onnx carries no complete metadata: export it with this project"):
        opened(**changes)


def test_bundle_of_another_format_is_refused(opened: Callable[..., Predictor]) -> None:
    with pytest.raises(AbstainError, match="has format none, "):
        opened(format=None)


def test_opening_does_not_load_the_base_model(
    opened: Callable[..., Predictor], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the base model was loaded")

    monkeypatch.setattr("abstain.llm.features.shard_job.load_model", refuse)
    scorer = opened()
    with pytest.raises(AssertionError, match="was loaded"):
        scorer.decide_interactions(requests(1))


def test_latency_p99_times_each_answer(opened: Callable[..., Predictor], monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = opened()
    calls, clock = [], itertools.count()
    head = scorer.scorer.probe
    confidence = type(head).predict
    monkeypatch.setattr(type(head), "predict", lambda self, rows: calls.append(1) or confidence(self, rows))
    monkeypatch.setattr(scorer_latency.time, "perf_counter", lambda: next(clock) / 1000)
    assert measure_scorer_p99_ms(scorer.scorer, n_tokens=16, n_blocks=2, n_runs=5) == pytest.approx(1), (
        "1 ms between two looks"
    )
    assert len(calls) == 1 + 2 * 5, "once to warm up"


def test_the_pass_of_the_base_model_is_timed_without_the_cache(opened: Callable[..., Predictor]) -> None:
    predictor = opened()
    predictor.compute_missing(requests(3))
    passes = predictor.source.load_engine().stats.prompts
    assert measure_base_model_ms(predictor, requests(3)) > 0
    assert predictor.source.load_engine().stats.prompts == passes + 2, "of one answer, once to load the model"
    long = requests(1)[0].model_copy(update={"answer": "x" * 600})
    assert measure_base_model_ms(predictor, [long]) == measure_base_model_ms(predictor, []) == 0
