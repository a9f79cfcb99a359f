import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Question
from abstain.core.errors import AbstainError
from abstain.learning.estimators.fusion import Fusion
from abstain.learning.estimators.onnx_logistic import fusion_to_onnx, logistic_to_onnx
from abstain.llm.engine.requests import EOS, NLL, Generate
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.features.shard_job import LocalRunner
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.compute_features import FeatureReader, read_features
from abstain.llm.signals.context_conditions import make_condition_requests
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS, NLL_WITH_CONTEXT
from abstain.llm.signals.writer import WriterScores
from abstain.serving import scorer_latency
from abstain.serving.batch_scoring import BatchScores, score_backlog
from abstain.serving.feature_spec import FeatureSpec
from abstain.serving.gate import DecisionInput, Gate, UnreadAnswer
from abstain.serving.generate import generate_answers
from abstain.serving.live_scorer import LiveScorer
from abstain.serving.log_probs import AnswerLogProbs
from abstain.serving.nll_regressor import NllRegressor
from abstain.serving.predictor import Predictor
from abstain.serving.provided_features import WRITER_SCORES_NAME, MissingFeatures, build_provided_features
from abstain.serving.scorer_latency import make_random_features, measure_scorer_p99_ms
from abstain.serving.service.shadow import reuse_features
from tests.llm.builders import WIDTH
from tests.serving.builders import FUSION, LAYOUT, requests, write_scorer
from tests.serving.conftest import Open

WRITER = WriterScores(
    ("No.",),
    scores={("m@1", False, "writer.sure"): np.arange(20.0)},
    coefficient=(3.0, 0.0, 0.0, -1.0),
    intercept=0.1,
)
WRITER_ONNX = logistic_to_onnx(WRITER.coefficient, WRITER.intercept, WRITER.to_dict())


@pytest.fixture
def fused(opened: Open, tmp_path: Path) -> Predictor:
    content = fusion_to_onnx(FUSION)
    return opened(scorer=write_scorer(tmp_path / "bundle", "fusion_one_pass", fusion_one_pass=content))


def backlog(scorer: Predictor, at_most: int) -> BatchScores:
    """Of eight answers; the last of those that are not cached are the first to be read."""
    return score_backlog(scorer, lambda: requests(8), at_most, rank=lambda key: -int(key.removeprefix("i-")))


def make_row(sure: float | None, name: str = "i-0", answer: str = "Yes.") -> Interaction:
    changes = {"interaction_id": name, "answer": answer, "model": "m@1", "writer_scores": sure and {"sure": sure}}
    return requests(1)[0].model_copy(update=changes)


def test_fusion_reads_all_of_its_parts(fused: Predictor, opened: Open) -> None:
    rows = requests()
    refused, *decisions = fused.decide_interactions([rows[1].model_copy(update={"answer": "x" * 600}), *rows])
    assert refused.confidence is None and refused.reason is not None and refused.reason.code is Code.TOO_LONG
    assert (refused.decision, {decision.reason for decision in decisions}) == ("abstain", {None})
    assert len(fused.reader.sources) == 2
    probe = [decision.confidence for decision in opened().decide_interactions(rows)]
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


def test_writer_scores_need_no_base_model(serving: Open, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abstain.llm.features.shard_job.load_model", lambda *_: pytest.fail("it was loaded"))
    by_writer = serving("writer")
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


def test_scorer_with_own_model_reads_whole_answers(opened: Open, settings: Settings) -> None:
    plain = opened()
    on_texts = SimpleNamespace(
        requires=(),
        score=lambda answers: np.array([len(row.answer) / 100 for row in answers.interactions]),
        estimate_forward_tokens=lambda interactions: 7.0,
    )
    scorer = replace(plain.scorer, scorer=on_texts)
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


ROW = requests(3)[2]
STATES = torch.linspace(-1, 1, 3 * WIDTH).reshape(3, WIDTH)
KNOWN = AnswerLogProbs((-0.5, -0.25, -1.5), -0.125)
WITHOUT_EOS = AnswerLogProbs(KNOWN.token_log_probs, None)
EOS_NAME, ENTROPIES = "the log-probability of EOS", "the entropies of the answer's tokens"
ALONE = "the NLLs and entropies of the answer, without context"
NEEDS = {
    "sequence_log_prob": (),
    "joint_log_prob": (),
    "mean_log_prob": (EOS_NAME,),
    "min_log_prob": (EOS_NAME,),
    "entropy": (ENTROPIES,),
    "context_gain": (ALONE,),
}
"""What each signal needs besides the log-probabilities of the answer's own tokens."""


@pytest.fixture
def serving(opened: Open, tmp_path: Path) -> Open:
    """Open a release, whose probe reads no EOS, of a signal, the writer's scores, or a fusion of several parts."""

    def open_(*names: str) -> Predictor:
        files, name = {"writer": WRITER_ONNX} if "writer" in names else {}, names[0]
        if len(names) > 1:
            name, count = "fusion", len(names)
            fusion = Fusion(names, (0.0,) * count, (1.0,) * count, (0.7,) * count, (0.0,) * count, 0.2, 1.0)
            files["fusion"] = fusion_to_onnx(fusion)
        return opened(scorer=write_scorer(tmp_path / "bundle", name, **files), includes_eos="false")

    return open_


def lacks(scorer: LiveScorer, states: Tensor | None = None, log_probs: AnswerLogProbs | None = None) -> tuple[str, ...]:
    features = build_provided_features(scorer, ROW, states, log_probs)
    return features.names if isinstance(features, MissingFeatures) else ()


def score(scorer: LiveScorer, features: FeatureBatch | MissingFeatures) -> float:
    (value,) = scorer.score(features)
    return float(value)


def test_provided_features_of_a_probe_are_states_alone(serving: Open) -> None:
    scorer = serving("probe").scorer
    assert lacks(scorer, log_probs=KNOWN) == ("the hidden states of the answer",)
    for row in (ROW, None):
        features = build_provided_features(scorer, row, STATES + 1, None)
        assert score(scorer, features) == pytest.approx(1 / (1 + np.exp(-1)))
    scorer = serving("writer").scorer
    assert build_provided_features(scorer, None, None, None).names == (WRITER_SCORES_NAME,), "they need the answer"
    marked = ROW.model_copy(update={"model": "m@1", "writer_scores": {"sure": 15.0}})
    assert score(scorer, build_provided_features(scorer, marked, None, None)) > 0.5


@pytest.mark.parametrize("name", NEEDS)
def test_provided_features_of_a_signal_name_missing_ones(name: str, serving: Open) -> None:
    assert {signal.name for signal in LIKELIHOOD_SIGNALS} == NEEDS.keys()
    scorer = serving(name).scorer
    assert lacks(scorer, log_probs=WITHOUT_EOS) == NEEDS[name]
    assert lacks(scorer, log_probs=KNOWN) == tuple(one for one in NEEDS[name] if one != EOS_NAME)
    assert "the NLLs and entropies of the answer" in lacks(scorer, STATES)


def test_provided_log_probs_score_as_the_signal_defines(serving: Open) -> None:
    """The same as the base model's own NLLs do; EOS counts where the definition counts it."""
    expected = {"sequence_log_prob": -0.75, "mean_log_prob": -2.375 / 4, "min_log_prob": -1.5, "joint_log_prob": -2.25}
    for name, log_p in expected.items():
        scorer = serving(name).scorer
        features = build_provided_features(scorer, ROW, STATES, KNOWN)
        assert list(features.features) == [FeatureRequest(NLL(("answer", EOS)))], "states that it does not read"
        assert score(scorer, features) == pytest.approx(np.exp(log_p))
        if not NEEDS[name]:
            features = build_provided_features(scorer, None, None, WITHOUT_EOS)
            assert score(scorer, features) == pytest.approx(np.exp(log_p))


def test_provided_features_of_a_regressor_lack_conditions(serving: Open) -> None:
    """Its file puts medians in place of what is missing, so that nothing shows it."""
    scorer = serving("probe").scorer
    conditions = SimpleNamespace(llm=SimpleNamespace(layout=LAYOUT))
    regressor = NllRegressor(SimpleNamespace(predict=lambda table: pytest.fail("scored with half of it")), conditions)
    scorer = LiveScorer(scorer.probe, scorer.metadata, scorer.llm, "linear", None, regressor)
    features = build_provided_features(scorer, ROW, STATES, KNOWN)
    assert isinstance(features, MissingFeatures) and features.features == {}
    assert set(features.names) == set(lacks(scorer)) and len(features.names) == len(scorer.requires)
    named = {f"the NLLs and entropies of the {part}" for part in ("answer", "prompt", "context")}
    assert {ALONE, *named} <= set(features.names)
    assert len(scorer.requires) == len(make_condition_requests(LAYOUT))


def test_provided_features_of_a_fusion_lack_those_of_its_parts(serving: Open) -> None:
    scorer = serving("probe", "min_log_prob", "sequence_log_prob").scorer
    assert lacks(scorer, STATES, WITHOUT_EOS) == (EOS_NAME,)
    assert lacks(scorer, STATES) == ("the NLLs and entropies of the answer",)
    assert lacks(scorer) == ("the hidden states of the answer", "the NLLs and entropies of the answer")
    features = build_provided_features(scorer, ROW, STATES, KNOWN)
    parts = [float(part.score(features)[0]) for part in scorer.components.values()]
    z = 0.2 + 0.7 * sum(np.log(p / (1 - p)) for p in parts)
    assert score(scorer, features) == pytest.approx(1 / (1 + np.exp(-z)), abs=1e-5)
    with pytest.raises(AbstainError, match="2 tokens .* 3"):
        build_provided_features(scorer, ROW, STATES[:2], KNOWN)


@pytest.mark.parametrize("log_probs", [None, WITHOUT_EOS])
def test_reader_reads_missing_features(serving: Open, log_probs: AnswerLogProbs | None) -> None:
    """Log-probabilities that do not suffice for all parts are read anew; the states are used as given."""
    predictor = serving("probe", "min_log_prob", "sequence_log_prob")
    answer = len(ROW.answer.encode())
    states = torch.ones(answer, WIDTH)
    known = log_probs and AnswerLogProbs((-0.5,) * answer, None)
    features = build_provided_features(predictor.scorer, ROW, states, known)
    assert isinstance(features, MissingFeatures) and features.features.keys() == {predictor.source.feature_request}
    other = requests(2)[1]
    read = predictor.reader.read([ROW, other], [features.features, {}])
    alone = predictor.reader.read([ROW, other])
    assert torch.equal(read.batch.features[predictor.source.feature_request][0], states)
    for request, row in ((NLL_WITH_CONTEXT, 0), (NLL_WITH_CONTEXT, 1), (predictor.source.feature_request, 1)):
        torch.testing.assert_close(read.batch.features[request][row], alone.batch.features[request][row])
    assert read.unreadable == [None, None]
    assert read.forward_tokens[1] == alone.forward_tokens[1]


def test_reader_reads_nothing_where_all_is_provided(serving: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = serving("probe", "min_log_prob")
    monkeypatch.setattr("abstain.llm.features.shard_job.load_model", lambda *_: pytest.fail("it was loaded"))
    long = ROW.model_copy(update={"answer": "x" * 600})
    features = build_provided_features(predictor.scorer, long, STATES, KNOWN)
    assert isinstance(features, FeatureBatch)
    read = predictor.reader.read([long], [{request: values[0] for request, values in features.features.items()}])
    assert read.unreadable == [None] and read.forward_tokens == [0.0]
    assert predictor.scorer.score(read.batch) == predictor.scorer.score(features)
