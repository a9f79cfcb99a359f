import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, mean_squared_error, roc_auc_score

from abstain.core.errors import AbstainError
from abstain.learning.metrics.bootstrap import BootstrapConfig
from abstain.learning.metrics.correctness_metrics import EstimateMetrics, evaluate_estimates, make_statistics, tune_t

NAN = float("nan")
score = st.integers(0, 20).map(lambda n: n / 20)
rows = st.lists(st.tuples(score, score, st.integers(0, 3).map(float)), min_size=1, max_size=30)


def make_arrays(rows: list[tuple[float, float, float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    true, predicted, weight = (np.array(column) for column in zip(*rows, strict=True))
    assume(weight.sum() > 0)
    return true, predicted, weight


def compute(
    true: np.ndarray, predicted: np.ndarray, t: float, weight: np.ndarray | None = None, b: float | None = None
):
    own = np.ones(len(true)) if weight is None else weight
    return {name: figure(own) for name, figure in make_statistics(true, predicted, t, b).items()}


def make_sample(rows: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True scores, noisy views of them, and 30 groups."""
    generator = np.random.default_rng(seed)
    true = generator.beta(5, 2, rows)
    return true, np.clip(true + 0.15 * generator.normal(size=rows), 0, 1), generator.integers(30, size=rows)


@pytest.mark.heavy
@given(rows, score)
def test_make_statistics_match_scikit_learn(rows: list[tuple[float, float, float]], t: float) -> None:
    true, predicted, weight = make_arrays(rows)
    correct, shown = true >= t, predicted >= t
    expected = {
        "mse": mean_squared_error(true, predicted, sample_weight=weight),
        "accuracy": accuracy_score(correct, shown, sample_weight=weight),
        "positive": np.average(correct, weights=weight),
        "f1": f1_score(correct, shown, sample_weight=weight) if (weight * (correct | shown)).sum() else NAN,
        "auroc": NAN,
    }
    if 0 < (weight * correct).sum() < weight.sum():
        expected["auroc"] = roc_auc_score(correct, predicted, sample_weight=weight)
    statistics = compute(true, predicted, t, weight)
    assert {name: statistics[name] for name in expected} == pytest.approx(expected, nan_ok=True)


@pytest.mark.heavy
@given(rows, score, score)
def test_make_statistics_buffer_withholds_and_measures_rest(
    rows: list[tuple[float, float, float]], t: float, b: float
) -> None:
    true, predicted, weight = make_arrays(rows)
    rest = ~((predicted >= t - b) & (predicted <= t + b))
    statistics = compute(true, predicted, t, weight, b)
    assert statistics["withheld"] == pytest.approx(weight[~rest].sum() / weight.sum())
    for name in ("accuracy", "f1"):
        alone = compute(true[rest], predicted[rest], t, weight[rest])[name]
        assert statistics[f"{name}_buffered"] == pytest.approx(alone, nan_ok=True)
    without = compute(true, predicted, t, weight)
    assert {name: statistics[name] for name in without} == pytest.approx(without, nan_ok=True)


@pytest.mark.heavy
@given(rows, score, score)
def test_make_statistics_resamples_equal_single_weights(
    rows: list[tuple[float, float, float]], t: float, b: float
) -> None:
    true, predicted, weight = (np.array(column) for column in zip(*rows, strict=True))
    draws = np.stack([weight, np.ones(len(weight)), weight[::-1]])
    for figure in make_statistics(true, predicted, t, b).values():
        np.testing.assert_allclose(figure(draws), [figure(draw) for draw in draws])


def test_evaluate_estimates_has_every_statistic_with_interval() -> None:
    true, predicted, groups = make_sample()
    row = evaluate_estimates(true, predicted, 0.7, groups, None, BootstrapConfig(300, 0), buffer=0.05)
    assert (row.threshold, row.labelled, row.note) == (0.7, 300, None)
    names = list(make_statistics(true, predicted, 0.7, 0.05))
    assert len(names) == 8
    for name in names:
        assert row.get(f"{name}_low") < row.get(name) < row.get(f"{name}_high")
    assert row.get("accuracy_buffered") > row.accuracy > 0.7
    by_rows = evaluate_estimates(true, predicted, 0.7, np.arange(300), None, BootstrapConfig(300, 0))
    assert by_rows.auroc == row.auroc and by_rows.get("auroc_low") != row.get("auroc_low"), "resampled by groups"
    assert by_rows.get("withheld") is None


def test_evaluate_estimates_unknown_true_or_predicted_scores() -> None:
    true, predicted, groups = make_sample()
    unknown = np.arange(300) % 3 == 0
    some = compute(np.where(unknown, NAN, true), predicted, 0.7, b=0.05)
    assert some == pytest.approx(compute(true[~unknown], predicted[~unknown], 0.7, b=0.05))
    row = evaluate_estimates(np.where(unknown, NAN, true), predicted, 0.7, groups, None, BootstrapConfig(10, 0))
    assert row.labelled == 200 and row.note is None
    true, predicted = np.array([0.9, 0.2, 0.8]), np.array([0.9, 0.3, NAN])
    missing = compute(true, predicted, 0.5)
    assert missing["mse"] == pytest.approx((0.1**2 + 0.8**2) / 3), "no prediction is one of 0"
    assert (missing["accuracy"], missing["auroc"]) == (pytest.approx(2 / 3), 0.5)
    row = evaluate_estimates(true, np.full(3, NAN), 0.5, np.arange(3), None, BootstrapConfig(10, 0), buffer=0.1)
    assert row.note == "no answer has a predicted score"
    assert {row.mse, row.auroc, row.accuracy, row.f1} == {None}


@pytest.mark.parametrize(
    ("true", "note"), [([0.8, 0.9, 1.0], "all answers"), ([0.1, 0.2, NAN], "no answers"), ([NAN] * 3, "no answer that")]
)
def test_evaluate_estimates_one_class_has_note_and_no_auroc(true: list[float], note: str) -> None:
    predicted = np.array([0.2, 0.8, 0.9])
    row = evaluate_estimates(np.array(true), predicted, 0.7, np.arange(3), None, BootstrapConfig(20, 0))
    assert row.note is not None and row.note.startswith(note)
    assert {row.auroc, row.get("auroc_low"), row.get("auroc_high")} == {None}
    assert EstimateMetrics.model_validate(row.to_dict()) == row


@pytest.mark.parametrize("wrong", [[-3.0, 0.0, 0.5], [0.0, 1.1, 0.5]])
def test_make_statistics_score_out_of_range_raises(wrong: list[float]) -> None:
    scores = np.array([0.5, NAN, 1 + 1e-7])
    assert compute(scores, scores, 0.7)["mse"] == 0
    for true, predicted in ((scores, np.array(wrong)), (np.array(wrong), scores)):
        with pytest.raises(ValueError, match=r"\[0, 1\]"):
            make_statistics(true, predicted, 0.5)
    with pytest.raises(ValueError, match=r"-0\.1"):
        make_statistics(scores, scores, 0.5, -0.1)


@pytest.mark.heavy
@given(rows, st.lists(score, min_size=1, max_size=6), st.sampled_from([0.05, 0.2, 0.4]))
def test_tune_t_maximizes_mean_of_f1_and_auroc(
    rows: list[tuple[float, float, float]], candidates: list[float], share: float
) -> None:
    true, predicted, weight = make_arrays(rows)
    merit = {}
    for t in candidates:
        positive = np.average(true >= t, weights=weight)
        if share <= min(positive, 1 - positive):
            statistics = compute(true, predicted, t, weight)
            merit[t] = (statistics["f1"] + statistics["auroc"]) / 2
    if not merit:
        with pytest.raises(AbstainError, match="no candidate for t leaves both classes"):
            tune_t(true, predicted, candidates, weight, share)
        return
    tuned = tune_t(true, predicted, candidates, weight, share)
    assert tuned == min(t for t in merit if merit[t] == max(merit.values()))


def test_tune_t_without_two_classes_names_shares() -> None:
    true, predicted, _ = make_sample(600)
    assert tune_t(true, predicted, [0.3, 0.6, 0.75]) == 0.6, "almost all reach 0.3, whose F1 is the highest"
    true = np.array([0.8, 0.9, 0.95, 1.0])
    with pytest.raises(AbstainError, match=r"100% reach 0\.7, 25% reach 0\.98"):
        tune_t(true, true, [0.98, 0.7], min_class_share=0.3)
    for predicted, candidates in ((true, []), (np.full(4, NAN), [0.92])):
        with pytest.raises(AbstainError):
            tune_t(true, predicted, candidates)


def test_evaluate_estimates_beside_the_constant_that_is_known() -> None:
    """The difference is paired: estimates that are the constant lose nothing to it, in any resample."""
    true, predicted, groups = make_sample()
    resampling = BootstrapConfig(n_resamples=100, seed=0)
    found = evaluate_estimates(true, predicted, 0.5, groups, None, resampling, constant=0.6).to_dict()
    assert found["mse_constant"] == pytest.approx(((true - 0.6) ** 2).mean())
    assert found["mse_difference"] == pytest.approx(found["mse"] - found["mse_constant"])
    assert found["mse_difference_high"] < 0, "these estimates are better"
    same = evaluate_estimates(true, np.full(len(true), 0.6), 0.5, groups, None, resampling, constant=0.6).to_dict()
    assert same["mse_difference_low"] == same["mse_difference_high"] == 0
