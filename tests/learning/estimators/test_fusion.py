import json

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from abstain.core.errors import AbstainError
from abstain.core.labels import Labels
from abstain.learning.estimators.fusion import REGULARIZATION_STRENGTHS, Fusion, fit_fusion
from abstain.learning.estimators.onnx_logistic import OnnxLogistic, fusion_to_onnx, logistic_to_onnx


def make_table(rows: int = 600, seed: int = 0) -> tuple[pd.DataFrame, Labels]:
    """Two scores that know different halves of the truth, one that knows nothing, and one that never changes."""
    generator = np.random.default_rng(seed)
    first, second = generator.normal(size=(2, rows))
    correct = (first + second + 0.5 * generator.normal(size=rows) > 0).astype(int)
    one, two = 1 / (1 + np.exp(-first)), 1 / (1 + np.exp(-second))
    scores = pd.DataFrame({"one": one, "two": two, "noise": generator.random(rows), "flat": 0.5})
    return scores, Labels(correct, np.ones(rows), generator.integers(40, size=rows))


def test_fit_fusion_has_no_negative_coefficient() -> None:
    scores, labels = make_table()
    upside_down = scores.assign(one=1 - scores["one"])  # turned round, it would tell half of the truth
    fusion, without = fit_fusion(upside_down, labels).fusion, fit_fusion(scores.drop(columns="one"), labels).fusion
    assert fusion.coefficients["one"] == 0 < fusion.coefficients["two"]
    assert fusion.score(upside_down) == pytest.approx(without.score(scores), abs=1e-6)


def test_fit_fusion_regularization_is_chosen_out_of_fold() -> None:
    """Scores that know each group's verdict by heart, and nothing of other groups."""
    generator = np.random.default_rng(3)
    groups = np.repeat(np.arange(30), 10)
    scores = pd.DataFrame(generator.random((30, 25))[groups], columns=[f"s{n}" for n in range(25)])
    labels = Labels((np.arange(30) % 2)[groups], np.ones(300), groups)
    assert fit_fusion(scores, labels).fusion.strength == REGULARIZATION_STRENGTHS[0]


@pytest.mark.parametrize("weights", [np.ones(600), np.random.default_rng(5).random(600)])
def test_fit_fusion_unbounded_matches_scikit_learn(weights: np.ndarray) -> None:
    scores, labels = make_table()
    labels = Labels(labels.correct, weights, labels.groups)
    fusion = fit_fusion(scores[["one", "two"]], labels).fusion
    logit = np.log(scores[["one", "two"]] / (1 - scores[["one", "two"]]))
    model = LogisticRegression(C=fusion.strength, tol=1e-8)
    model.fit((logit - logit.mean()) / logit.std(ddof=0), labels.correct, sample_weight=weights)
    assert [*fusion.coefficient, fusion.intercept] == pytest.approx([*model.coef_[0], *model.intercept_], abs=1e-4)


def test_fit_fusion_is_independent_of_thread_count() -> None:
    table = make_table(3000)
    with threadpool_limits(1):
        expected = fit_fusion(*table)
    with threadpool_limits(2):
        assert fit_fusion(*table).fusion == expected.fusion


def test_fusion_missing_scores_are_finite_and_learnt_from() -> None:
    scores, labels = make_table()
    scores.loc[::7, "noise"] = np.nan
    scores["told"] = np.where(labels.correct == 1, np.random.default_rng(2).random(600), np.nan)
    fusion = fit_fusion(scores, labels).fusion
    assert fusion.missing_coefficient[fusion.names.index("told")] < -0.2
    assert np.isfinite([fusion.score(scores.iloc[[1]].assign(noise=noise)) for noise in (0.01, 0.99, np.nan)]).all()
    (without_scores,) = set(fusion.score(scores.assign(**dict.fromkeys(fusion.names, np.nan))))
    assert 0 < without_scores < 1


def test_fit_fusion_clips_extremes_and_drops_near_zero() -> None:
    scores, labels = make_table()
    tiny = scores.assign(tiny=np.random.default_rng(3).random(600) * 9e-5)
    fusion = fit_fusion(tiny, labels).fusion
    assert {"tiny", "flat"}.isdisjoint(fusion.names)
    assert np.array_equal(fusion.score(tiny.assign(tiny=0.5)), fusion.score(tiny))
    assert np.isfinite(fit_fusion(scores.round(), labels).fusion.score(scores.assign(one=0.0))).all()


def test_fit_fusion_without_signal_raises() -> None:
    scores, labels = make_table(50)
    with pytest.raises(AbstainError, match="one class only"):
        fit_fusion(scores, Labels(np.ones(50), labels.weight, labels.groups))
    with pytest.raises(AbstainError, match="no scorer separates"):
        fit_fusion(scores[["flat"]], labels)


def test_fit_fusion_training_confidences_are_out_of_fold() -> None:
    """A score that tells every group's own answers apart, and another way in each group, is worth nothing for others."""
    drawn = np.random.default_rng(5)
    groups = np.repeat(np.arange(40), 6)
    correct = drawn.integers(0, 2, len(groups))
    scores = pd.DataFrame({f"group_{at}": np.where(groups == at, 0.1 + 0.8 * correct, 0.5) for at in range(40)})
    labels = Labels(correct, np.ones(len(groups)), groups)
    fitted = fit_fusion(scores, labels)
    assert roc_auc_score(correct, fitted.out_of_fold) < 0.6
    one_group = Labels(correct, np.ones(len(groups)), np.zeros(len(groups)))
    assert np.isnan(fit_fusion(scores, one_group).out_of_fold).all()


def test_fusion_json_and_drop_unused_keep_confidences() -> None:
    scores, labels = make_table()
    fusion = fit_fusion(scores.assign(opposite=1 - scores["one"]), labels).fusion
    used = fusion.drop_unused()
    again = Fusion.from_dict(json.loads(json.dumps(used.to_dict())))
    assert again == used and np.array_equal(again.score(scores), used.score(scores))
    weighing = {name for name, weight in fusion.coefficients.items() if weight}
    assert set(used.names) == weighing < set(fusion.names) and "opposite" not in weighing
    assert used.score(scores) == pytest.approx(fusion.score(scores.assign(opposite=0.3)), abs=1e-12)
    nothing = Fusion(("one",), (0.0,), (1.0,), (0.0,), (0.0,), intercept=0.5, strength=1.0)
    assert nothing.drop_unused() == nothing


FUSION = Fusion(("one", "two"), (0.3, -0.2), (1.5, 0.8), (0.7, 1.2), (-0.4, 0.1), intercept=0.25, strength=1.0)


def test_fusion_to_onnx_matches_fusion() -> None:
    """Scores of 0 and 1, whose log-odds are infinite, and missing ones among them."""
    drawn = np.random.default_rng(0)
    scores = drawn.random((200, 2))
    scores[:4] = [[0, 1], [1, 0], [np.nan, 0.5], [np.nan, np.nan]]
    file = OnnxLogistic(fusion_to_onnx(FUSION))
    assert file.metadata == {"names": ["one", "two"]}
    expected = FUSION.score(pd.DataFrame(scores, columns=FUSION.names))
    np.testing.assert_allclose(file.predict(scores), expected, rtol=1e-9)
    assert expected[3] == pytest.approx(1 / (1 + np.exp(-(0.25 - 0.4 + 0.1))))
    assert file.predict(scores[:0]).shape == (0,)


def test_logistic_to_onnx_matches_formula_with_metadata() -> None:
    inputs = np.random.default_rng(1).normal(size=(50, 3))
    file = OnnxLogistic(logistic_to_onnx((0.5, -1.0, 2.0), -0.3, {"refusals": ["No"]}))
    assert file.metadata == {"refusals": ["No"]}
    np.testing.assert_allclose(file.predict(inputs), 1 / (1 + np.exp(-(inputs @ [0.5, -1.0, 2.0] - 0.3))), rtol=1e-9)
