"""Releases whose live scorer is not the probe: scored one by one, in a backlog, and of answers that are written here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abstain.config.settings import Settings
from abstain.core.contracts import Interaction, Question
from abstain.core.errors import AbstainError
from abstain.learning.estimators.onnx_logistic import fusion_to_onnx, logistic_to_onnx
from abstain.llm.engine.requests import Generate
from abstain.llm.signals.compute_features import read_features
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS
from abstain.llm.signals.writer import WriterScores
from abstain.serving.batch_scoring import score_backlog
from abstain.serving.feature_spec import FeatureSpec
from abstain.serving.gate import DecisionInput, Gate, UnreadAnswer
from abstain.serving.generate import generate_answers
from abstain.serving.live_scorer import LiveScorer
from abstain.serving.predictor import Predictor
from abstain.serving.provided_features import WRITER_SCORES_NAME
from abstain.serving.scorer_latency import make_random_features, measure_scorer_p99_ms
from tests.serving.builders import FUSION, requests

WRITER = WriterScores(
    ("No.",),
    scores={("m@1", False, "writer.sure"): np.arange(20.0)},
    coefficient=(3.0, 0.0, 0.0, -1.0),
    intercept=0.1,
)
KINDS = {"probe": "probe", "min_log_prob": "log_prob", "writer": "writer"}


@pytest.fixture
def serving(opened: Callable[..., Predictor], tmp_path: Path) -> Callable[..., Predictor]:
    """Open a release of this live scorer, whose files have these contents."""

    def open_(name: str, kind: str, **files: bytes) -> Predictor:
        (tmp_path / "bundle" / "parts").mkdir(parents=True, exist_ok=True)
        for part, content in files.items():
            (tmp_path / "bundle" / "parts" / f"{part}.onnx").write_bytes(content)
        sha256 = {part: hashlib.sha256(content).hexdigest() for part, content in files.items()}
        described = {"name": name, "kinds": {name: kind, **KINDS}, "forward_tokens": 40.0, "sha256": sha256}
        return opened(scorer=json.dumps(described))

    return open_


@pytest.fixture
def fused(serving: Callable[..., Predictor]) -> Predictor:
    return serving("fusion_one_pass", "fusion", fusion_one_pass=fusion_to_onnx(FUSION))


@pytest.fixture
def by_writer(serving: Callable[..., Predictor]) -> Predictor:
    content: dict[str, Any] = WRITER.to_dict()
    return serving("writer", "writer", writer=logistic_to_onnx(WRITER.coefficient, WRITER.intercept, content))


def marked(sure: float | None, name: str = "i-0", answer: str = "Yes.") -> Interaction:
    changes = {"interaction_id": name, "answer": answer, "model": "m@1", "writer_scores": sure and {"sure": sure}}
    return requests(1)[0].model_copy(update=changes)


def test_a_fusion_reads_all_of_its_parts(fused: Predictor, serving: Callable[..., Predictor]) -> None:
    rows = requests()
    found = [verdict.confidence for verdict in fused.decide_interactions(rows)]
    assert fused.scorer.kind == "fusion" and len(fused.reader.sources) == 2
    probe = [verdict.confidence for verdict in serving("probe", "probe").decide_interactions(rows)]
    signal = next(one for one in LIKELIHOOD_SIGNALS if one.name == "min_log_prob")
    source = fused.source
    lowest = signal.score(read_features(source.params, source.settings, rows, signal.requires))
    log_odds = [np.log(p / (1 - p)) for p in (np.clip(lowest, 1e-4, None), np.array(probe))]
    z = 0.2 + 0.8 * (log_odds[0] + 3) / 2 + 0.6 * (log_odds[1] - 0.1) / 0.5
    assert found == pytest.approx((1 / (1 + np.exp(-z))).tolist(), abs=1e-5)


def test_a_backlog_is_scored_as_one_by_one(fused: Predictor) -> None:
    """Of the cached ones, one has the states alone, and is read again."""
    fused.reader.sources[0].compute_missing(requests(1))
    fused.compute_missing(requests(4)[1:])
    found = score_backlog(fused, lambda: requests(8), 2, rank=lambda key: -int(key.removeprefix("i-")))
    assert (found.cached, found.computed, found.skipped) == (3, 2, 3)
    alone = {verdict.interaction_id: verdict.confidence for verdict in fused.decide_interactions(requests(8))}
    assert found.confidences == pytest.approx({name: alone[name] for name in found.confidences}, abs=1e-5)


def test_an_answer_that_is_written_here_is_read_once_it_is_there(fused: Predictor, settings: Settings) -> None:
    asked = Question(interaction_id="q-1", question="What is it?", contexts=requests(2)[1].contexts)
    gate = Gate(fused, FeatureSpec.from_scorer(fused.scorer, settings))
    (found,) = generate_answers(gate, [asked], Generate(max_new_tokens=8))
    written = requests(2)[1].model_copy(update={"question": asked.question, "answer": found.text})
    (expected,) = fused.decide_interactions([written])
    assert found.decision.interaction_id == "q-1" and found.text
    assert found.decision.confidence == pytest.approx(expected.confidence, abs=1e-6)


def test_an_answer_too_long_for_the_base_model_is_refused_by_a_fusion_too(fused: Predictor) -> None:
    fine, long = requests(2)
    refused, decided = fused.decide_interactions([long.model_copy(update={"answer": "x" * 600}), fine])
    assert refused.confidence is None and "tokens are more than the 512" in str(refused.reason)
    assert decided.confidence is not None and decided.reason is None


def test_the_writers_scores_need_no_base_model(by_writer: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "abstain.llm.features.shard_job.load_model", lambda *_: pytest.fail("the base model was loaded")
    )
    rows = [marked(15.0), marked(2.0, "i-1"), marked(None, "i-2"), marked(2.0, "i-3", "x" * 600)]
    sure, unsure, silent, long = by_writer.decide_interactions(rows)
    assert sure.confidence is not None and unsure.confidence is not None and sure.confidence > unsure.confidence
    assert long.confidence == unsure.confidence, "there is no window that it would have to fit"
    assert (silent.decision, silent.confidence) == ("abstain", None)
    assert "writer has no score for this answer" in str(silent.reason)
    backlog = score_backlog(by_writer, lambda: rows, 5, rank=len)
    assert backlog.confidences.keys() == {"i-0", "i-1", "i-3"} and (backlog.cached, backlog.computed) == (4, 0)


def test_the_writers_scores_wait_for_no_base_model(by_writer: Predictor, settings: Settings) -> None:
    gate = Gate(by_writer, FeatureSpec.from_scorer(by_writer.scorer, settings))
    scored = gate.score_without_model(DecisionInput("i-0", marked(15.0)))
    assert not isinstance(scored, UnreadAnswer) and scored.decision.confidence is not None
    nothing = gate.score_without_model(DecisionInput("i-1", None))
    assert not isinstance(nothing, UnreadAnswer) and nothing.decision.decision == "unavailable"
    assert f"the scorer needs more: {WRITER_SCORES_NAME};" in str(nothing.decision.reason)


def test_latency_is_of_all_parts(fused: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = make_random_features(fused.scorer)
    assert answers.features.keys() == set(fused.scorer.requires)
    np.testing.assert_array_equal(fused.scorer.score(answers), fused.scorer.score(make_random_features(fused.scorer)))
    calls: list[int] = []
    for part in fused.scorer.scorer.components.values():  # type: ignore[attr-defined]
        of_part = type(part).score
        monkeypatch.setattr(type(part), "score", lambda self, found, own=of_part: calls.append(1) or own(self, found))
    assert measure_scorer_p99_ms(fused.scorer, n_tokens=16, n_blocks=1, n_runs=3) > 0
    assert len(calls) == 2 * (1 + 3), "each part, once to warm up"


@pytest.mark.parametrize("content", [b"", b"another"])
def test_a_part_that_is_missing_or_another_one_is_refused(fused: Predictor, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bundle" / "parts" / "fusion_one_pass.onnx"
    file.write_bytes(content) if content else file.unlink()
    with pytest.raises(AbstainError, match=r"fusion_one_pass.onnx is missing or another file than was released: fetch"):
        LiveScorer.open(tmp_path / "bundle" / "probe.onnx")
