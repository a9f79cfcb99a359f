import math
from functools import partial

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from abstain.learning.metrics import bootstrap as module
from abstain.learning.metrics.bootstrap import Estimate, bootstrap, paired_difference, percentile_interval
from abstain.learning.metrics.weighted_metrics import auprc, auroc, brier, weighted_mean
from tests.learning.evaluation.builders import make_grouped


def draw_rows(groups: np.ndarray, draws: int, seed: int) -> list[np.ndarray]:
    """The rows of every draw: groups drawn with replacement, their rows repeated."""
    generator = np.random.default_rng(seed)
    rows_of = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    drawn = (generator.integers(len(rows_of), size=len(rows_of)) for _ in range(draws))
    return [np.concatenate([rows_of[i] for i in draw]) for draw in drawn]


@pytest.mark.parametrize("weighted", [False, True])
def test_bootstrap_equals_metrics_of_drawn_rows(weighted: bool) -> None:
    correct, confidence, groups = make_grouped(150, 20, 0)
    rounded = np.round(confidence, 1)
    weight = np.random.default_rng(1).random(150) if weighted else np.ones(150)
    oracles = {"auroc": (auroc, roc_auc_score), "auprc": (auprc, average_precision_score)}
    figures = {name: partial(ours, correct, rounded) for name, (ours, _) in oracles.items()}
    found = bootstrap(figures, groups, n_resamples=40, seed=5, weight=weight if weighted else None)
    for name, (_, theirs) in oracles.items():
        expected = [theirs(correct[r], rounded[r], sample_weight=weight[r]) for r in draw_rows(groups, 40, 5)]
        assert found[name].resamples == pytest.approx(expected)
        assert found[name].value == pytest.approx(theirs(correct, rounded, sample_weight=weight))


def test_paired_difference_is_narrower_than_two_intervals() -> None:
    correct, confidence, groups = make_grouped(400, 50, 3)
    worse = confidence + 0.15 * np.random.default_rng(0).normal(size=400)
    figures = {name: partial(auroc, correct, score) for name, score in (("own", confidence), ("other", worse))}
    found = bootstrap(figures, groups, n_resamples=300, seed=0)
    difference = paired_difference(found["own"], found["other"])
    low, high = difference.interval
    assert found["own"].interval[0] < found["other"].interval[1]  # they overlap
    assert 0 < low < difference.value < high
    assert difference.value == pytest.approx(found["own"].value - found["other"].value)
    assert difference.probability_positive > 0.97
    reverse = paired_difference(found["other"], found["own"])
    assert reverse.probability_positive == pytest.approx(1 - difference.probability_positive)
    assert paired_difference(found["own"], found["own"]).probability_positive == 0  # equal is not better


def test_bootstrap_block_size_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    correct, confidence, groups = make_grouped(90, 20, 0)
    figures = {"auroc": partial(auroc, correct, confidence), "brier": partial(brier, correct, confidence)}
    whole = bootstrap(figures, groups, n_resamples=23, seed=5)
    for cells in (1, 4 * 90, 7 * 90 + 1):
        monkeypatch.setattr(module, "MAX_BLOCK_WEIGHTS", cells)
        parts = bootstrap(figures, groups, n_resamples=23, seed=5)
        for name, estimate in whole.items():
            assert parts[name].resamples == pytest.approx(estimate.resamples, abs=1e-15)


def test_bootstrap_interval_has_nominal_coverage() -> None:
    """95 % intervals of a mean whose truth is known, over 200 data sets: far fewer than 180 hits would be a fault."""
    hits, groups = 0, np.arange(150)
    for seed in range(200):
        share = partial(weighted_mean, (np.random.default_rng(seed).random(150) < 0.7).astype(int))
        low, high = bootstrap({"share": share}, groups, n_resamples=200, seed=seed)["share"].interval
        hits += low <= 0.7 <= high
    assert 180 <= hits < 200


def test_percentile_interval_ignores_few_nan() -> None:
    draws = np.array([np.nan, *np.linspace(0, 1, 101), np.nan])
    assert percentile_interval(draws) == (pytest.approx(0.025), pytest.approx(0.975))
    assert percentile_interval(draws, confidence_level=0.5) == (pytest.approx(0.25), pytest.approx(0.75))
    for interval in (percentile_interval(np.full(3, np.nan)), Estimate(math.nan, np.array([0.1, 0.2])).interval):
        assert np.isnan(interval).all()
    for undefined, known in ((5, True), (6, False)):
        some = np.concatenate([np.linspace(0, 1, 100 - undefined), np.full(undefined, np.nan)])
        assert [math.isfinite(bound) for bound in percentile_interval(some)] == [known, known]


def test_bootstrap_one_class_resamples_give_no_interval() -> None:
    """Two groups of one class each: half of all draws have one class alone."""
    figure = partial(auroc, np.array([1, 1, 0, 0]), np.array([0.9, 0.8, 0.2, 0.1]))
    found = bootstrap({"auroc": figure}, np.array(["a", "a", "b", "b"]), n_resamples=400, seed=0)["auroc"]
    assert 0.4 < np.isnan(found.resamples).mean() < 0.6
    assert found.value == 1 and all(math.isnan(bound) for bound in found.interval)
    assert found.probability_positive == pytest.approx(1 - np.isnan(found.resamples).mean())


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_bootstrap_single_group_has_no_interval(rows: int) -> None:
    share = partial(weighted_mean, np.ones(rows))
    found = bootstrap({"share": share}, np.zeros(rows, int), n_resamples=30, seed=0)["share"]
    assert found.value == 1 or rows == 0
    assert np.isnan(found.resamples).tolist() == [True] * 30
    assert all(math.isnan(bound) for bound in found.interval)
    assert found.probability_positive == 0
