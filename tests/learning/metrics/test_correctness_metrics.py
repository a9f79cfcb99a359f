from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, mean_squared_error, roc_auc_score

from abstain.core.errors import AbstainError
from abstain.learning.metrics.bootstrap import BootstrapConfig
from abstain.learning.metrics.correctness_metrics import evaluate_estimates, make_statistics, tune_t

NAN = float("nan")
score = st.integers(0, 20).map(lambda n: n / 20)
rows = st.lists(st.tuples(score, score, st.integers(0, 3).map(float)), min_size=1, max_size=30)


def arrays(rows: list[tuple[float, float, float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    true, predicted, weight = (np.array(column) for column in zip(*rows, strict=True))
    return true, predicted, weight


def values(true: np.ndarray, predicted: np.ndarray, t: float, weight: np.ndarray | None = None, b: float | None = None):
    own = np.ones(len(true)) if weight is None else weight
    return {name: figure(own) for name, figure in make_statistics(true, predicted, t, b).items()}


def sample(rows: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True scores, noisy views of them, and 30 groups."""
    generator = np.random.default_rng(seed)
    true = generator.beta(5, 2, rows)
    return true, np.clip(true + 0.15 * generator.normal(size=rows), 0, 1), generator.integers(30, size=rows)


@pytest.mark.heavy
@given(rows, score)
def test_the_figures_are_those_of_scikit_learn(rows: list[tuple[float, float, float]], t: float) -> None:
    true, predicted, weight = arrays(rows)
    assume(weight.sum() > 0)
    found = values(true, predicted, t, weight)
    correct, shown = true >= t, predicted >= t
    assert found["mse"] == pytest.approx(mean_squared_error(true, predicted, sample_weight=weight))
    assert found["accuracy"] == pytest.approx(accuracy_score(correct, shown, sample_weight=weight))
    assert found["positive"] == pytest.approx(np.average(correct, weights=weight))
    if (weight * (correct | shown)).sum():
        assert found["f1"] == pytest.approx(f1_score(correct, shown, sample_weight=weight))
    else:
        assert math.isnan(found["f1"])
    if 0 < (weight * correct).sum() < weight.sum():
        assert found["auroc"] == pytest.approx(roc_auc_score(correct, predicted, sample_weight=weight))
    else:
        assert math.isnan(found["auroc"])


@pytest.mark.heavy
@given(rows, score, score)
def test_with_a_buffer_the_rest_is_judged_and_the_others_are_counted(
    rows: list[tuple[float, float, float]], t: float, b: float
) -> None:
    true, predicted, weight = arrays(rows)
    assume(weight.sum() > 0)
    rest = ~((predicted >= t - b) & (predicted <= t + b))
    found = values(true, predicted, t, weight, b)
    assert found["withheld"] == pytest.approx(weight[~rest].sum() / weight.sum())
    for name in ("accuracy", "f1"):
        alone = values(true[rest], predicted[rest], t, weight[rest])[name]
        assert found[f"{name}_buffered"] == pytest.approx(alone, nan_ok=True)
    assert {name: found[name] for name in values(true, predicted, t)} == pytest.approx(
        values(true, predicted, t, weight), nan_ok=True
    )


@pytest.mark.heavy
@given(rows, score, score)
def test_many_draws_are_each_what_their_weights_give(
    rows: list[tuple[float, float, float]], t: float, b: float
) -> None:
    true, predicted, weight = arrays(rows)
    draws = np.stack([weight, np.ones(len(weight)), weight[::-1]])
    for figure in make_statistics(true, predicted, t, b).values():
        np.testing.assert_allclose(figure(draws), [figure(draw) for draw in draws])


def test_a_score_of_exactly_t_is_correct_and_is_called_so() -> None:
    found = values(np.array([0.9, 0.95, 1.0]), np.array([0.94, 0.95, 1.0]), 0.95)
    assert (found["positive"], found["accuracy"], found["f1"], found["auroc"]) == (pytest.approx(2 / 3), 1, 1, 1)
    assert values(np.array([1.0, 0.0]), np.array([1.0, 1.0]), 1.0)["positive"] == 0.5
    at_the_edge = values(np.array([0.5, 0.5]), np.array([0.25, 0.75]), 0.5, b=0.25)
    assert at_the_edge["withheld"] == 1 and math.isnan(at_the_edge["accuracy_buffered"])


def test_a_row_of_the_table_has_every_figure_with_an_interval_around_it() -> None:
    true, predicted, groups = sample()
    row = evaluate_estimates(true, predicted, 0.7, groups, None, BootstrapConfig(300, 0), buffer=0.05)
    assert (row["threshold"], row["labelled"], row["note"]) == (0.7, 300, None)
    names = list(make_statistics(true, predicted, 0.7, 0.05))
    assert len(names) == 8
    for name in names:
        assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]
    assert row["accuracy_buffered"] > row["accuracy"] > 0.7
    assert row == evaluate_estimates(true, predicted, 0.7, groups, None, BootstrapConfig(300, 0), buffer=0.05)
    of_rows = evaluate_estimates(true, predicted, 0.7, np.arange(300), None, BootstrapConfig(300, 0))
    assert of_rows["auroc"] == row["auroc"] and of_rows["auroc_low"] != row["auroc_low"], "drawn by groups"
    assert "withheld" not in evaluate_estimates(true, predicted, 0.7, groups, None, BootstrapConfig(10, 0))


def test_answers_whose_true_score_is_unknown_count_nowhere() -> None:
    true, predicted, groups = sample()
    unknown = np.arange(300) % 3 == 0
    some = values(np.where(unknown, NAN, true), predicted, 0.7, b=0.05)
    assert some == pytest.approx(values(true[~unknown], predicted[~unknown], 0.7, b=0.05))
    row = evaluate_estimates(np.where(unknown, NAN, true), predicted, 0.7, groups, None, BootstrapConfig(10, 0))
    assert row["labelled"] == 200 and row["note"] is None


def test_a_prediction_that_is_missing_counts_as_nothing() -> None:
    true, predicted = np.array([0.9, 0.2, 0.8]), np.array([0.9, 0.3, NAN])
    found = values(true, predicted, 0.5)
    assert found["mse"] == pytest.approx((0.1**2 + 0.8**2) / 3)
    assert (found["accuracy"], found["auroc"]) == (pytest.approx(2 / 3), 0.5)
    row = evaluate_estimates(true, np.full(3, NAN), 0.5, np.arange(3), None, BootstrapConfig(10, 0), buffer=0.1)
    assert row["note"] == "no answer has a predicted score"
    assert all(math.isnan(row[name]) for name in ("mse", "auroc", "accuracy", "f1"))


@pytest.mark.parametrize(
    ("true", "note"),
    [
        ([0.8, 0.9, 1.0], "all answers reach t = 0.7: there is no AUROC of one class"),
        ([0.1, 0.2, NAN], "no answers reach t = 0.7: there is no AUROC of one class"),
        ([NAN, NAN, NAN], "no answer that counts has a true score"),
    ],
)
def test_of_one_class_there_is_no_auroc_and_it_is_said(true: list[float], note: str) -> None:
    predicted = np.array([0.2, 0.8, 0.9])
    row = evaluate_estimates(np.array(true), predicted, 0.7, np.arange(3), None, BootstrapConfig(20, 0))
    assert row["note"] == note
    assert all(math.isnan(row[name]) for name in ("auroc", "auroc_low", "auroc_high"))


def test_what_is_no_correctness_score_is_refused() -> None:
    fine = np.array([0.5, NAN, 1 + 1e-7])
    assert values(fine, fine, 0.7)["mse"] == 0
    for wrong in (np.array([-3.0, 0.0, 0.5]), np.array([0.0, 1.1, 0.5])):
        for true, predicted in ((fine, wrong), (wrong, fine)):
            with pytest.raises(ValueError, match=r"is no range of correctness scores: they lie in \[0, 1\]"):
                make_statistics(true, predicted, 0.5)
    with pytest.raises(ValueError, match="a buffer of -0.1"):
        make_statistics(fine, fine, 0.5, -0.1)


@pytest.mark.heavy
@given(rows, st.lists(score, min_size=1, max_size=6), st.sampled_from([0.05, 0.2, 0.4]))
def test_the_tuned_threshold_has_the_best_merit_of_those_that_leave_both_classes(
    rows: list[tuple[float, float, float]], candidates: list[float], share: float
) -> None:
    true, predicted, weight = arrays(rows)
    assume(weight.sum() > 0)
    merit = {}
    for t in candidates:
        positive = np.average(true >= t, weights=weight)
        if share <= min(positive, 1 - positive):
            found = values(true, predicted, t, weight)
            merit[t] = (found["f1"] + found["auroc"]) / 2
    if not merit:
        with pytest.raises(AbstainError, match="no candidate for t leaves both classes"):
            tune_t(true, predicted, candidates, weight, share)
        return
    tuned = tune_t(true, predicted, candidates, weight, share)
    assert tuned == min(t for t in merit if merit[t] == max(merit.values()))


def test_a_threshold_that_nearly_all_answers_reach_is_not_chosen_though_its_f1_is_best() -> None:
    true, predicted, _ = sample(600)
    f1 = {t: values(true, predicted, t)["f1"] for t in (0.3, 0.6, 0.75)}
    assert max(f1, key=lambda t: f1[t]) == 0.3
    assert tune_t(true, predicted, [0.3, 0.6, 0.75]) == 0.6
    assert tune_t(true, predicted, [0.3, 0.6, 0.75], min_class_share=0.01) == 0.3


def test_where_no_threshold_will_do_it_says_how_many_reach_each() -> None:
    true = np.array([0.8, 0.9, 0.95, 1.0])
    with pytest.raises(
        AbstainError,
        match=r"no candidate for t leaves both classes 30% of the training answers \(100% reach 0.7, 25% reach 0.98\): "
        "give candidates nearer to the median",
    ):
        tune_t(true, true, [0.98, 0.7], min_class_share=0.3)
    with pytest.raises(AbstainError, match="there are no candidates"):
        tune_t(true, true, [])
    with pytest.raises(AbstainError):
        tune_t(true, np.full(4, NAN), [0.92])
