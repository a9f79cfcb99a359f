"""What an engine gave, as what the live scorer reads; what it needs besides is named, and may be read by the base model."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from abstain.core.errors import AbstainError
from abstain.learning.estimators.fusion import Fusion
from abstain.learning.estimators.onnx_logistic import fusion_to_onnx
from abstain.llm.engine.requests import EOS, NLL
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.context_conditions import make_condition_requests
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS, NLL_WITH_CONTEXT
from abstain.serving.live_scorer import LiveScorer
from abstain.serving.log_probs import AnswerLogProbs
from abstain.serving.nll_regressor import NllRegressor
from abstain.serving.predictor import Predictor
from abstain.serving.provided_features import WRITER_SCORES_NAME, MissingFeatures, build_provided_features
from tests.llm.builders import WIDTH
from tests.serving.builders import LAYOUT, requests, write_scorer
from tests.serving.conftest import Open
from tests.serving.test_live_scorer import WRITER_ONNX

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
    expected = {
        "sequence_log_prob": -2.25 / 3,
        "mean_log_prob": -2.375 / 4,
        "min_log_prob": -1.5,
        "joint_log_prob": -2.25,
    }
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
