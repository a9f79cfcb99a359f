"""What an engine gave, as what the live scorer reads; what it needs besides is named, and may be read by the base model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from abstain.core.errors import AbstainError
from abstain.learning.estimators.fusion import Fusion
from abstain.learning.estimators.onnx_logistic import fusion_to_onnx, logistic_to_onnx
from abstain.llm.engine.requests import EOS, NLL
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.context_conditions import make_condition_requests
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS, NLL_WITH_CONTEXT
from abstain.serving.live_scorer import LiveScorer
from abstain.serving.log_probs import AnswerLogProbs
from abstain.serving.nll_regressor import NllRegressor
from abstain.serving.predictor import Predictor
from abstain.serving.provided_features import MissingFeatures, build_provided_features
from tests.llm.builders import WIDTH
from tests.serving.builders import LAYOUT, requests
from tests.serving.test_live_scorer import WRITER

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
def serving(opened: Callable[..., Predictor], tmp_path: Path) -> Callable[..., Predictor]:
    """Open a release, whose probe reads no EOS, of a signal, the writer's scores, or a fusion of several parts."""

    def open_(*names: str) -> Predictor:
        kinds = {one: "probe" if one == "probe" else "writer" if one == "writer" else "log_prob" for one in names}
        files = {"writer": logistic_to_onnx(WRITER.coefficient, WRITER.intercept, WRITER.to_dict())}
        files = {name: content for name, content in files.items() if name in names}
        if len(names) > 1:
            many = (0.0,) * len(names)
            files["all"] = fusion_to_onnx(
                Fusion(tuple(names), many, (1.0,) * len(names), (0.7,) * len(names), many, 0.2, 1.0)
            )
            kinds["all"] = "fusion"
        (tmp_path / "bundle" / "parts").mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (tmp_path / "bundle" / "parts" / f"{name}.onnx").write_bytes(content)
        sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        name = "all" if len(names) > 1 else names[0]
        described: dict[str, Any] = {"name": name, "kinds": kinds, "forward_tokens": 1.0, "sha256": sha256}
        return opened(scorer=json.dumps(described), includes_eos="false")

    return open_


def lacks(scorer: LiveScorer, states: Tensor | None = None, log_probs: AnswerLogProbs | None = None) -> tuple[str, ...]:
    found = build_provided_features(scorer, ROW, states, log_probs)
    return found.names if isinstance(found, MissingFeatures) else ()


def score(scorer: LiveScorer, found: FeatureBatch | MissingFeatures) -> float:
    assert isinstance(found, FeatureBatch)
    (value,) = scorer.score(found)
    return float(value)


def test_a_probe_needs_its_states_alone(serving: Callable[..., Predictor]) -> None:
    scorer = serving("probe").scorer
    assert lacks(scorer, log_probs=KNOWN) == ("the hidden states of the answer",)
    for row in (ROW, None):
        found = build_provided_features(scorer, row, STATES + 1, None)
        assert score(scorer, found) == pytest.approx(1 / (1 + np.exp(-1)))


@pytest.mark.parametrize("name", NEEDS)
def test_a_signal_needs_what_its_definition_names(name: str, serving: Callable[..., Predictor]) -> None:
    scorer = serving(name).scorer
    assert lacks(scorer, log_probs=WITHOUT_EOS) == NEEDS[name]
    assert lacks(scorer, log_probs=KNOWN) == tuple(one for one in NEEDS[name] if one != EOS_NAME)
    assert "the NLLs and entropies of the answer" in lacks(scorer, STATES)


def test_log_probabilities_score_as_the_signal_defines(serving: Callable[..., Predictor]) -> None:
    """The same as the base model's own NLLs do; EOS counts where the definition counts it."""
    expected = {
        "sequence_log_prob": -2.25 / 3,
        "mean_log_prob": -2.375 / 4,
        "min_log_prob": -1.5,
        "joint_log_prob": -2.25,
    }
    for name, log_p in expected.items():
        scorer = serving(name).scorer
        assert score(scorer, build_provided_features(scorer, None, None, KNOWN)) == pytest.approx(np.exp(log_p))
        if not NEEDS[name]:
            assert score(scorer, build_provided_features(scorer, ROW, None, WITHOUT_EOS)) == pytest.approx(
                np.exp(log_p)
            )


def test_all_signals_are_known() -> None:
    assert {one.name for one in LIKELIHOOD_SIGNALS} == NEEDS.keys()


def test_a_regressor_needs_every_condition(serving: Callable[..., Predictor]) -> None:
    """Its file puts medians in place of what is missing, so that nothing tells."""

    class Untouched:
        def predict(self, table: object) -> np.ndarray:
            raise AssertionError("scored with half of its inputs")

    scorer = serving("probe").scorer
    regressor = NllRegressor(Untouched(), LAYOUT)  # type: ignore[arg-type]
    scorer = LiveScorer(scorer.probe, scorer.metadata, scorer.llm, "linear", "regressor", None, regressor)
    answer = "the NLLs and entropies of the answer"
    found = build_provided_features(scorer, ROW, STATES, KNOWN)
    assert isinstance(found, MissingFeatures) and found.features == {}
    assert set(found.names) == set(lacks(scorer)) and len(found.names) == len(scorer.requires)
    assert {answer, ALONE, "the NLLs and entropies of the prompt", "the NLLs and entropies of the context"} <= set(
        found.names
    )
    assert len(scorer.requires) == len(make_condition_requests(LAYOUT))


def test_the_writers_scores_need_the_answer(serving: Callable[..., Predictor]) -> None:
    scorer = serving("writer").scorer
    assert build_provided_features(scorer, None, None, None).names == (
        "the answer, with the scores that its writer gave it",
    )  # type: ignore[union-attr]
    marked = ROW.model_copy(update={"model": "m@1", "writer_scores": {"sure": 15.0}})
    assert score(scorer, build_provided_features(scorer, marked, None, None)) > 0.5


def test_a_fusion_needs_what_any_of_its_parts_needs(serving: Callable[..., Predictor]) -> None:
    scorer = serving("probe", "min_log_prob", "sequence_log_prob").scorer
    assert lacks(scorer, STATES, WITHOUT_EOS) == (EOS_NAME,)
    assert lacks(scorer, STATES) == ("the NLLs and entropies of the answer",)
    assert lacks(scorer) == ("the hidden states of the answer", "the NLLs and entropies of the answer")
    found = build_provided_features(scorer, ROW, STATES, KNOWN)
    parts = [float(part.score(found)[0]) for part in scorer.components]  # type: ignore[arg-type]
    z = 0.2 + 0.7 * sum(np.log(p / (1 - p)) for p in parts)
    assert score(scorer, found) == pytest.approx(1 / (1 + np.exp(-z)), abs=1e-5)


@pytest.mark.parametrize("log_probs", [None, WITHOUT_EOS])
def test_what_is_missing_is_read_by_the_base_model(
    serving: Callable[..., Predictor], log_probs: AnswerLogProbs | None
) -> None:
    """Log-probabilities that do not suffice for all parts are read anew; the states are used as given."""
    predictor = serving("probe", "min_log_prob", "sequence_log_prob")
    answer = len(ROW.answer.encode())
    states = torch.ones(answer, WIDTH)
    known = log_probs and AnswerLogProbs((-0.5,) * answer, None)
    found = build_provided_features(predictor.scorer, ROW, states, known)
    assert isinstance(found, MissingFeatures) and found.features.keys() == {predictor.source.feature_request}
    other = requests(2)[1]
    read = predictor.reader.read([ROW, other], [found.features, {}])
    alone = predictor.reader.read([ROW, other])
    assert torch.equal(read.batch.features[predictor.source.feature_request][0], states)
    for reading, row in ((NLL_WITH_CONTEXT, 0), (NLL_WITH_CONTEXT, 1), (predictor.source.feature_request, 1)):
        torch.testing.assert_close(read.batch.features[reading][row], alone.batch.features[reading][row])
    assert read.unreadable == [None, None]
    assert read.forward_tokens[1] == alone.forward_tokens[1]


def test_nothing_is_read_where_all_is_given(serving: Callable[..., Predictor], monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = serving("probe", "min_log_prob")
    monkeypatch.setattr(
        "abstain.llm.features.shard_job.load_model", lambda *_: pytest.fail("the base model was loaded")
    )
    long = ROW.model_copy(update={"answer": "x" * 600})
    found = build_provided_features(predictor.scorer, long, STATES, KNOWN)
    assert isinstance(found, FeatureBatch)
    given = [{reading: of[0] for reading, of in found.features.items()}]
    read = predictor.reader.read([long], given)  # type: ignore[arg-type]
    assert read.unreadable == [None] and read.forward_tokens == [0.0]
    assert predictor.scorer.score(read.batch) == predictor.scorer.score(found)


def test_states_and_log_probabilities_are_of_one_answer(serving: Callable[..., Predictor]) -> None:
    scorer = serving("probe", "min_log_prob").scorer
    with pytest.raises(AbstainError, match="states of 2 tokens and log-probabilities of 3"):
        build_provided_features(scorer, ROW, STATES[:2], KNOWN)


def test_a_reading_of_no_scorer_is_left_out(serving: Callable[..., Predictor]) -> None:
    found = build_provided_features(serving("min_log_prob").scorer, ROW, STATES, KNOWN)
    assert isinstance(found, FeatureBatch) and list(found.features) == [FeatureRequest(NLL(("answer", EOS)))]
    sources: Sequence[object] = serving("min_log_prob").reader.sources
    assert len(sources) == 1
