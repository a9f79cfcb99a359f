"""Releases whose live scorer is not the probe: scored one by one, in a backlog, and of answers that are written here."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Question
from abstain.learning.estimators.onnx_logistic import fusion_to_onnx, logistic_to_onnx
from abstain.llm.engine.requests import Generate
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.features.shard_job import LocalRunner
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.compute_features import FeatureReader, read_features
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS
from abstain.llm.signals.writer import WriterScores
from abstain.serving import scorer_latency
from abstain.serving.batch_scoring import BatchScores, score_backlog
from abstain.serving.feature_spec import FeatureSpec
from abstain.serving.gate import DecisionInput, Gate, UnreadAnswer
from abstain.serving.generate import generate_answers
from abstain.serving.predictor import Predictor
from abstain.serving.provided_features import WRITER_SCORES_NAME
from abstain.serving.scorer_latency import make_random_features, measure_scorer_p99_ms
from abstain.serving.service.shadow import reuse_features
from tests.serving.builders import FUSION, requests, write_scorer
from tests.serving.conftest import Open

WRITER = WriterScores(
    ("No.",),
    scores={("m@1", False, "writer.sure"): np.arange(20.0)},
    coefficient=(3.0, 0.0, 0.0, -1.0),
    intercept=0.1,
)
WRITER_ONNX = logistic_to_onnx(WRITER.coefficient, WRITER.intercept, WRITER.to_dict())


@pytest.fixture
def open_scorer(opened: Open, tmp_path: Path) -> Open:
    """Open a release of this live scorer, whose files have these contents."""

    def open_(name: str, **files: bytes) -> Predictor:
        return opened(scorer=write_scorer(tmp_path / "bundle", name, **files))

    return open_


@pytest.fixture
def fused(open_scorer: Open) -> Predictor:
    return open_scorer("fusion_one_pass", fusion_one_pass=fusion_to_onnx(FUSION))


def backlog(scorer: Predictor, at_most: int) -> BatchScores:
    """Of eight answers; the last of those that are not cached are the first to be read."""
    return score_backlog(scorer, lambda: requests(8), at_most, rank=lambda key: -int(key.removeprefix("i-")))


def make_row(sure: float | None, name: str = "i-0", answer: str = "Yes.") -> Interaction:
    changes = {"interaction_id": name, "answer": answer, "model": "m@1", "writer_scores": sure and {"sure": sure}}
    return requests(1)[0].model_copy(update=changes)


def test_fusion_reads_all_of_its_parts(fused: Predictor, open_scorer: Open) -> None:
    rows = requests()
    refused, *decisions = fused.decide_interactions([rows[1].model_copy(update={"answer": "x" * 600}), *rows])
    assert refused.confidence is None and refused.reason is not None and refused.reason.code is Code.TOO_LONG
    assert (refused.decision, {decision.reason for decision in decisions}) == ("abstain", {None})
    assert len(fused.reader.sources) == 2
    probe = [decision.confidence for decision in open_scorer("probe").decide_interactions(rows)]
    signal = next(signal for signal in LIKELIHOOD_SIGNALS if signal.name == "min_log_prob")
    source = fused.source
    lowest = signal.score(read_features(source.params, source.settings, rows, signal.requires))
    log_odds = [np.log(p / (1 - p)) for p in (np.clip(lowest, 1e-4, None), np.array(probe))]
    z = 0.2 + 0.8 * (log_odds[0] + 3) / 2 + 0.6 * (log_odds[1] - 0.1) / 0.5
    confidences = [decision.confidence for decision in decisions]
    assert confidences == pytest.approx((1 / (1 + np.exp(-z))).tolist(), abs=1e-5)


def test_score_backlog_of_a_fusion_as_one_by_one(fused: Predictor) -> None:
    """Of the cached ones, one has the states alone, and is read again."""
    fused.reader.sources[0].compute_missing(requests(1))
    fused.compute_missing(requests(4)[1:])
    scores = backlog(fused, at_most=2)
    assert (scores.cached, scores.computed, scores.skipped) == (3, 2, 3)
    alone = {decision.interaction_id: decision.confidence for decision in fused.decide_interactions(requests(8))}
    assert scores.confidences == pytest.approx({name: alone[name] for name in scores.confidences}, abs=1e-5)


def test_generate_answers_reads_for_a_fusion_afterwards(fused: Predictor, settings: Settings) -> None:
    asked = Question(interaction_id="q-1", question="What is it?", contexts=requests(2)[1].contexts)
    gate = Gate(fused, FeatureSpec.from_scorer(fused.scorer, settings))
    (generated,) = generate_answers(gate, [asked], Generate(max_new_tokens=8))
    written = requests(2)[1].model_copy(update={"question": asked.question, "answer": generated.text})
    (expected,) = fused.decide_interactions([written])
    assert generated.decision.interaction_id == "q-1" and generated.text
    assert generated.decision.confidence == pytest.approx(expected.confidence, abs=1e-6)


def test_writer_scores_need_no_base_model(
    open_scorer: Open, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("abstain.llm.features.shard_job.load_model", lambda *_: pytest.fail("it was loaded"))
    by_writer = open_scorer("writer", writer=WRITER_ONNX)
    rows = [make_row(15.0), make_row(2.0, "i-1"), make_row(None, "i-2"), make_row(2.0, "i-3", "x" * 600)]
    sure, unsure, silent, long = by_writer.decide_interactions(rows)
    assert sure.confidence is not None and unsure.confidence is not None and sure.confidence > unsure.confidence
    assert long.confidence == unsure.confidence, "there is no window that it would have to fit"
    assert (silent.decision, silent.confidence) == ("abstain", None)
    assert silent.reason is not None and silent.reason.code is Code.NOTHING_TO_SCORE
    backlog = score_backlog(by_writer, lambda: rows, 5, rank=len)
    assert backlog.confidences.keys() == {"i-0", "i-1", "i-3"} and (backlog.cached, backlog.computed) == (4, 0)
    gate = Gate(by_writer, FeatureSpec.from_scorer(by_writer.scorer, settings))
    scored, nothing = (gate.score_without_model(DecisionInput("i-0", row)) for row in (rows[0], None))
    assert not isinstance(scored, UnreadAnswer) and scored.decision.confidence == sure.confidence
    assert not isinstance(nothing, UnreadAnswer) and nothing.decision.decision == "unavailable"
    assert WRITER_SCORES_NAME in str(nothing.decision.reason)


def test_measure_scorer_p99_ms_times_all_parts(fused: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = make_random_features(fused.scorer)
    assert answers.features.keys() == set(fused.scorer.requires)
    np.testing.assert_array_equal(fused.scorer.score(answers), fused.scorer.score(make_random_features(fused.scorer)))
    calls, clock = list[int](), itertools.count()
    for part in fused.scorer.components.values():
        of_part = type(part).score
        monkeypatch.setattr(type(part), "score", lambda self, found, own=of_part: calls.append(1) or own(self, found))
    monkeypatch.setattr(scorer_latency.time, "perf_counter", lambda: next(clock) / 1000)
    assert measure_scorer_p99_ms(fused.scorer, n_tokens=16, n_blocks=2, n_runs=3) == pytest.approx(1)
    assert len(calls) == 2 * (1 + 2 * 3), "each part, once to warm up"


def test_score_backlog_caches_its_features(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = opened()
    first, again = backlog(scorer, at_most=2), backlog(scorer, at_most=2)
    assert set(first.confidences) == {"i-6", "i-7"}
    assert (again.cached, again.computed, again.skipped) == (2, 2, 4)
    assert first.confidences.items() <= again.confidences.items()
    scorer.source.compute_missing(requests(8))
    monkeypatch.setattr(LocalRunner, "run", lambda self, shards: pytest.fail("nothing was to be read"))
    assert (backlog(scorer, at_most=5).cached, backlog(scorer, at_most=0).skipped) == (8, 0)


def test_score_backlog_gives_sampled_rows_no_better_chance(opened: Open) -> None:
    scorer = opened()
    scorer.source.compute_missing(requests(4))
    ranks, sampled = {"i-1": 0, "i-6": 1}, {"i-0", "i-1"}
    scores = score_backlog(scorer, lambda: requests(8), 2, rank=lambda key: ranks.get(key, 2), sampled_ids=sampled)
    assert set(scores.confidences) == {"i-2", "i-3", "i-1", "i-6"}
    assert (scores.cached, scores.computed, scores.skipped) == (2, 2, 4)


def test_score_backlog_has_no_confidence_of_unreadable(opened: Open) -> None:
    scorer, rows = opened(), requests(2)
    rows[0] = rows[0].model_copy(update={"answer": "x" * 600})
    scores = score_backlog(scorer, lambda: rows, 5, rank=len)
    assert (set(scores.confidences), scores.skipped) == ({"i-1"}, 0)
    assert score_backlog(scorer, list, 5, rank=len) == BatchScores({}, 0, 0, 0)


@dataclass(frozen=True)
class ReadsTexts:
    """A scorer that runs a model of its own on the answer's text."""

    requires: tuple[FeatureRequest, ...] = ()

    def score(self, answers: FeatureBatch) -> np.ndarray:
        return np.array([len(row.answer) / 100 for row in answers.interactions])

    def estimate_forward_tokens(self, interactions: Sequence[Interaction]) -> float:
        return 7.0


def test_scorer_with_own_model_reads_whole_answers(opened: Open, settings: Settings) -> None:
    plain = opened()
    scorer = replace(plain.scorer, scorer=ReadsTexts())
    predictor = replace(plain, scorer=scorer, reader=FeatureReader(()))
    assert scorer.needs_model and scorer.running
    scores = backlog(predictor, at_most=2)
    assert scores.confidences == {row.interaction_id: len(row.answer) / 100 for row in requests(8)[6:]}
    assert (scores.cached, scores.computed, scores.skipped) == (0, 2, 6), "none is scored without its texts"
    (decision,) = predictor.decide_interactions(requests(1))
    assert decision.forward_tokens == 7
    gate = Gate(predictor, FeatureSpec.from_scorer(scorer, settings))
    assert isinstance(gate.score_without_model(DecisionInput("i-0", requests(1)[0])), UnreadAnswer)
    assert reuse_features(gate, gate, FeatureBatch(requests(1), {})) is None, "a shadow runs no model beside its turn"
