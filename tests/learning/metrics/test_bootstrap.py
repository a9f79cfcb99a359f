from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from abstain.learning.metrics import bootstrap as module
from abstain.learning.metrics.bootstrap import Estimate, bootstrap, paired_difference, percentile_interval
from abstain.learning.metrics.weighted_metrics import auprc, auroc, brier, weighted_mean
from tests.learning.evaluation.builders import grouped
from tests.tolerance import assert_near


def really_drawn(groups: np.ndarray, draws: int, seed: int) -> list[np.ndarray]:
    """The rows of every draw: groups drawn with replacement, their rows repeated."""
    generator = np.random.default_rng(seed)
    rows_of = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    return [
        np.concatenate([rows_of[i] for i in generator.integers(len(rows_of), size=len(rows_of))]) for _ in range(draws)
    ]


@pytest.mark.parametrize("weighted", [False, True])
def test_figures_of_the_draws_are_those_of_rows_really_drawn(weighted: bool) -> None:
    correct, confidence, groups = grouped(150, 20, 0)
    rounded = np.round(confidence, 1)
    weight = np.random.default_rng(1).random(150) if weighted else np.ones(150)
    oracles = {"auroc": (auroc, roc_auc_score), "auprc": (auprc, average_precision_score)}
    figures = {name: partial(ours, correct, rounded) for name, (ours, _) in oracles.items()}
    found = bootstrap(figures, groups, n_resamples=40, seed=5, weight=weight if weighted else None)
    for name, (_, theirs) in oracles.items():
        expected = [theirs(correct[r], rounded[r], sample_weight=weight[r]) for r in really_drawn(groups, 40, 5)]
        assert found[name].resamples == pytest.approx(expected)
        assert found[name].value == pytest.approx(theirs(correct, rounded, sample_weight=weight))


def test_draws_are_paired() -> None:
    correct, confidence, groups = grouped(120, 20, 0)
    scores = {"a": confidence, "b": confidence.copy(), "worse": 1 - confidence}
    figures = {name: partial(auroc, correct, score) for name, score in scores.items()}
    found = bootstrap(figures, groups, n_resamples=50, seed=5)
    assert_near(found["a"].resamples, found["b"].resamples)
    assert found["a"].resamples + found["worse"].resamples == pytest.approx(np.ones(50))
    alone = bootstrap({"a": figures["a"]}, groups, n_resamples=50, seed=5)
    assert_near(alone["a"].resamples, found["a"].resamples)
    assert not np.array_equal(
        bootstrap({"a": figures["a"]}, groups, n_resamples=50, seed=6)["a"].resamples, found["a"].resamples
    )


def test_a_paired_difference_is_surer_than_two_intervals_say() -> None:
    correct, confidence, groups = grouped(400, 50, 3)
    worse = confidence + 0.15 * np.random.default_rng(0).normal(size=400)
    figures = {name: partial(auroc, correct, score) for name, score in (("own", confidence), ("other", worse))}
    found = bootstrap(figures, groups, n_resamples=300, seed=0)
    difference = paired_difference(found["own"], found["other"])
    low, high = difference.interval
    assert found["own"].interval[0] < found["other"].interval[1]  # they overlap
    assert 0 < low < difference.value < high
    assert difference.value == pytest.approx(found["own"].value - found["other"].value)
    assert difference.probability_positive > 0.97
    assert paired_difference(found["other"], found["own"]).probability_positive == pytest.approx(
        1 - difference.probability_positive
    )
    assert paired_difference(found["own"], found["own"]).probability_positive == 0  # equal is not better


def test_whole_groups_are_drawn() -> None:
    groups = np.repeat(["a", "b", "c"], [1, 10, 100])
    seen: list[np.ndarray] = []

    def keep(weight: np.ndarray) -> Any:
        if weight.ndim == 2:
            seen.append(weight)
        return weight.sum(axis=-1)

    bootstrap({"rows": keep}, groups, n_resamples=200, seed=0)
    drawn = np.concatenate(seen)
    assert drawn.shape == (200, 111)
    per_group = [drawn[:, groups == name] for name in "abc"]
    assert all((times == times[:, :1]).all() for times in per_group)
    times = {tuple(int(part[draw, 0]) for part in per_group) for draw in range(200)}
    assert {sum(drawn) for drawn in times} == {3}
    assert len(times) == 10  # all ways of drawing three of three with replacement


def test_the_draws_do_not_depend_on_how_many_are_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    correct, confidence, groups = grouped(90, 20, 0)
    figures = {"auroc": partial(auroc, correct, confidence), "brier": partial(brier, correct, confidence)}
    whole = bootstrap(figures, groups, n_resamples=23, seed=5)
    for cells in (1, 4 * 90, 7 * 90 + 1):
        monkeypatch.setattr(module, "MAX_BLOCK_WEIGHTS", cells)
        parts = bootstrap(figures, groups, n_resamples=23, seed=5)
        for name, estimate in whole.items():
            assert parts[name].resamples == pytest.approx(estimate.resamples, abs=1e-15)


def test_the_interval_of_grouped_answers_is_wider_than_that_of_single_ones() -> None:
    correct, _, groups = grouped(300, 12, 1)

    def width(by: np.ndarray) -> float:
        low, high = bootstrap({"share": partial(weighted_mean, correct)}, by, n_resamples=300, seed=0)["share"].interval
        return high - low

    assert width(groups) > 1.5 * width(np.arange(300))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """95 % intervals of a mean whose truth is known, over 200 data sets: far fewer than 180 hits would be a fault."""
    hits = 0
    for seed in range(200):
        correct = (np.random.default_rng(seed).random(150) < 0.7).astype(int)
        low, high = bootstrap({"share": partial(weighted_mean, correct)}, np.arange(150), n_resamples=200, seed=seed)[
            "share"
        ].interval
        hits += low <= 0.7 <= high
    assert 180 <= hits < 200


def test_the_bootstrap_carries_the_weights() -> None:
    correct, confidence, groups = grouped(120, 20, 0)
    figure = {"a": partial(auroc, correct, confidence)}
    plain = bootstrap(figure, groups, n_resamples=50, seed=5)["a"]
    assert_near(bootstrap(figure, groups, n_resamples=50, seed=5, weight=np.ones(120))["a"].resamples, plain.resamples)
    times = np.random.default_rng(0).integers(1, 4, size=120)
    repeated = {"a": partial(auroc, np.repeat(correct, times), np.repeat(confidence, times))}
    expected = bootstrap(repeated, np.repeat(groups, times), n_resamples=50, seed=5)["a"]
    weighted = bootstrap(figure, groups, n_resamples=50, seed=5, weight=times.astype(float))["a"]
    assert weighted.resamples == pytest.approx(expected.resamples)
    assert weighted.value == pytest.approx(expected.value)


def test_interval_leaves_a_few_nan_draws_out() -> None:
    draws = np.array([np.nan, *np.linspace(0, 1, 101), np.nan])
    assert percentile_interval(draws) == (pytest.approx(0.025), pytest.approx(0.975))
    assert percentile_interval(draws, confidence_level=0.5) == (pytest.approx(0.25), pytest.approx(0.75))
    assert all(math.isnan(bound) for bound in percentile_interval(np.full(3, np.nan)))


@pytest.mark.parametrize(("undefined", "known"), [(5, True), (6, False)])
def test_what_is_not_defined_in_more_than_one_draw_of_twenty_has_no_interval(undefined: int, known: bool) -> None:
    draws = np.concatenate([np.linspace(0, 1, 100 - undefined), np.full(undefined, np.nan)])
    assert [math.isfinite(bound) for bound in percentile_interval(draws)] == [known, known]


def test_a_draw_of_one_class_is_no_win_and_makes_no_figure_sure() -> None:
    """Two groups of one class each: half of all draws have one class alone."""
    correct, groups = np.array([1, 1, 0, 0]), np.array(["a", "a", "b", "b"])
    found = bootstrap(
        {"auroc": partial(auroc, correct, np.array([0.9, 0.8, 0.2, 0.1]))}, groups, n_resamples=400, seed=0
    )["auroc"]
    assert 0.4 < np.isnan(found.resamples).mean() < 0.6
    assert found.value == 1 and all(math.isnan(bound) for bound in found.interval)
    assert found.probability_positive == pytest.approx(1 - np.isnan(found.resamples).mean())


def test_a_figure_that_is_not_defined_has_no_interval() -> None:
    assert all(math.isnan(bound) for bound in Estimate(math.nan, np.array([0.1, 0.2])).interval)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_less_than_two_groups_say_nothing_about_others(rows: int) -> None:
    found = bootstrap({"share": partial(weighted_mean, np.ones(rows))}, np.zeros(rows, int), n_resamples=30, seed=0)[
        "share"
    ]
    assert found.value == 1 or rows == 0
    assert np.isnan(found.resamples).tolist() == [True] * 30
    assert all(math.isnan(bound) for bound in found.interval)
    assert found.probability_positive == 0
