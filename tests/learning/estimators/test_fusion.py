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


def make_table(rows: int = 600, seed: int = 0) -> tuple[pd.DataFrame, Labels]:
    """Two scores that know different halves of the truth, one that knows nothing, and one that never changes."""
    generator = np.random.default_rng(seed)
    first, second = generator.normal(size=(2, rows))
    correct = (first + second + 0.5 * generator.normal(size=rows) > 0).astype(int)
    scores = pd.DataFrame(
        {
            "one": 1 / (1 + np.exp(-first)),
            "two": 1 / (1 + np.exp(-second)),
            "noise": generator.random(rows),
            "flat": 0.5,
        }
    )
    return scores, Labels(correct, np.ones(rows), generator.integers(40, size=rows))


def test_fit_fusion_beats_its_components() -> None:
    fusion = fit_fusion(*make_table()).fusion
    scores, labels = make_table(seed=1)
    fused = roc_auc_score(labels.correct, fusion.score(scores))
    assert fused > max(roc_auc_score(labels.correct, scores[name]) for name in ("one", "two")) + 0.05
    assert abs(fusion.coefficients["noise"]) < 0.2 * min(fusion.coefficients[name] for name in ("one", "two"))
    assert "flat" not in fusion.names


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
    scores, labels = make_table(3000)
    found = set()
    for threads in (1, 2):
        with threadpool_limits(threads):
            found.add(fit_fusion(scores, labels).fusion)
    assert len(found) == 1


def test_fusion_missing_scores_give_finite_confidence() -> None:
    scores, labels = make_table()
    scores.loc[::7, "noise"] = np.nan
    fusion = fit_fusion(scores, labels).fusion
    assert np.isfinite([fusion.score(scores.iloc[[1]].assign(noise=noise)) for noise in (0.01, 0.99, np.nan)]).all()
    (without_scores,) = set(fusion.score(scores.assign(**dict.fromkeys(fusion.names, np.nan))))
    assert 0 < without_scores < 1


def test_fit_fusion_learns_from_missing_scores() -> None:
    scores, labels = make_table()
    scores = scores.assign(told=np.where(labels.correct == 1, np.random.default_rng(2).random(600), np.nan))
    fusion = fit_fusion(scores, labels).fusion
    assert fusion.missing_coefficient[fusion.names.index("told")] < -0.2


def test_fusion_survives_json() -> None:
    scores, labels = make_table(100)
    fusion = fit_fusion(scores, labels).fusion
    again = Fusion.from_dict(json.loads(json.dumps(fusion.to_dict())))
    assert again == fusion and np.array_equal(again.score(scores), fusion.score(scores))


def test_fit_fusion_clips_extremes_and_drops_near_zero() -> None:
    scores, labels = make_table()
    tiny = scores.assign(tiny=np.random.default_rng(3).random(600) * 9e-5)
    fusion = fit_fusion(tiny, labels).fusion
    assert "tiny" not in fusion.names
    assert np.array_equal(fusion.score(tiny.assign(tiny=0.5)), fusion.score(tiny))
    assert np.isfinite(fit_fusion(scores.round(), labels).fusion.score(scores.assign(one=0.0))).all()


def test_fit_fusion_without_signal_raises() -> None:
    scores, labels = make_table(50)
    with pytest.raises(AbstainError, match="one class only"):
        fit_fusion(scores, Labels(np.ones(50), labels.weight, labels.groups))
    with pytest.raises(AbstainError, match="no scorer separates"):
        fit_fusion(scores[["flat"]], labels)
    one_group = Labels(labels.correct, labels.weight, np.zeros(50))
    assert fit_fusion(scores, one_group).fusion.strength > 0


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


def test_fusion_drop_unused_keeps_confidences() -> None:
    scores, labels = make_table()
    fusion = fit_fusion(scores.assign(opposite=1 - scores["one"]), labels).fusion
    used = fusion.drop_unused()
    assert fusion.coefficients["opposite"] == 0 and set(used.names) == set(fusion.names) - {
        name for name, weight in fusion.coefficients.items() if not weight
    }
    assert used.score(scores) == pytest.approx(fusion.score(scores.assign(opposite=0.3)), abs=1e-12)
    nothing = Fusion(("one",), (0.0,), (1.0,), (0.0,), (0.0,), intercept=0.5, strength=1.0)
    assert nothing.drop_unused() == nothing
