import numpy as np
import pytest

from abstain.learning.metrics.weighted_metrics import effective_sample_size
from abstain.learning.thresholds.design_effect import GroupTotals, compute_group_totals, estimate_intraclass_correlation
from benchmarks.guarantee import Population


def make_totals(
    correct: list[int], groups: list[int], weight: list[float] | None = None, metric: str = "precision"
) -> GroupTotals:
    """At two thresholds, of which the second shows nothing."""
    confidence, of = np.full(len(correct), 0.5), np.ones(len(correct)) if weight is None else np.array(weight)
    return compute_group_totals(confidence, np.array(correct), of, np.array(groups), np.array([0.5, 0.9]), metric)


def test_effective_size_is_kish_or_the_number_of_groups() -> None:
    found = make_totals([1, 0, 1, 1], [0, 1, 2, 3])
    assert estimate_intraclass_correlation(found)[1].tolist() == [0, 0], "independent answers"
    assert found.compute_effective_size(np.zeros(2)) == pytest.approx([4, 0])
    weight = [1.0, 0.25, 1.0, 0.25]
    uneven = make_totals([1, 0, 0, 1], [0, 1, 2, 3], weight)
    assert uneven.compute_effective_size(np.zeros(2))[0] == pytest.approx(effective_sample_size(np.array(weight)))
    assert uneven.incorrect_share[0] == pytest.approx(1.25 / 2.5)
    alike = make_totals([1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0], [n // 3 for n in range(12)])
    estimate, above = estimate_intraclass_correlation(alike)
    assert estimate[0] == above[0] == pytest.approx(1)
    assert alike.compute_effective_size(above)[0] == pytest.approx(4)


def test_effective_size_heavy_incorrect_answers_count_less() -> None:
    """A third of the weight is incorrect: the squares weigh 2 * (2/3)^2 + 1 * (1/3)^2 = 1, of 3 * 2/9 if all were alike."""
    found = make_totals([1] * 16 + [0] * 2, list(range(18)), [0.25] * 16 + [1.0] * 2)
    assert found.compute_effective_size(np.zeros(2))[0] == pytest.approx(6**2 / 3 / 1.5)
    light = make_totals([1] * 2 + [0] * 4, list(range(6)), [1.0] * 2 + [0.25] * 4)
    assert light.incorrect_share[0] == pytest.approx(1 / 3)
    assert light.compute_effective_size(np.zeros(2))[0] == pytest.approx(3**2 / 2.25)
    of_all = make_totals([1, 0, 1, 1], [0, 0, 1, 1], metric="error_rate")
    assert of_all.incorrect_share == pytest.approx([0.25, 0]), "the withheld answers count, too"
    assert of_all.compute_effective_size(np.array([0.0, 0.0])) == pytest.approx([4, 4])


@pytest.mark.parametrize("liked_often", [1.0, 0.25])
def test_intraclass_correlation_is_independent_of_sampling(liked_often: float) -> None:
    """A latent correlation of 0.2 at three in ten incorrect answers is one of 0.12 of being incorrect."""
    rows = Population(0.6, 0.2, liked_often).draw(2000, 10, np.random.default_rng(3))
    assert rows.weight is not None and rows.groups is not None
    of = (rows.confidence, rows.correct, rows.weight)
    found = compute_group_totals(*of, rows.groups, np.array([0.0]), "precision")
    (estimate,), (above,) = estimate_intraclass_correlation(found)
    assert estimate == pytest.approx(0.11, abs=0.02)
    assert estimate < above < estimate + 0.02
    other_groups = np.random.default_rng(1).permutation(rows.groups)
    shuffled = compute_group_totals(*of, other_groups, np.array([0.0]), "precision")
    assert estimate_intraclass_correlation(shuffled)[0][0] < 0.01


def test_intraclass_correlation_pools_tables_by_pairs() -> None:
    together = make_totals([1, 1, 0, 0], [0, 0, 1, 1])
    apart = make_totals([1, 0, 1, 0], [0, 0, 1, 1])
    assert estimate_intraclass_correlation(together)[0][0] == pytest.approx(1)
    assert estimate_intraclass_correlation(apart)[0][0] == 0
    assert estimate_intraclass_correlation(together, apart)[0][0] == pytest.approx(0)
    assert estimate_intraclass_correlation(together, together, apart)[0][0] == pytest.approx(1 / 3)


def test_intraclass_correlation_adds_the_jackknife_error() -> None:
    """Of four pairs two agree and two do not: leaving one out moves the estimate of 0 by a third, up or down."""
    pairs = make_totals([1, 1, 0, 0, 1, 0, 1, 0], [0, 0, 1, 1, 2, 2, 3, 3])
    (estimate, _), (above, _) = estimate_intraclass_correlation(pairs)
    assert estimate == pytest.approx(0) and above == pytest.approx(np.sqrt(3 / 4 * 4 / 9))
    for correct, bound in (([1, 1, 0, 0, 0, 0], 1), ([1, 0, 1, 0, 1, 0], 0)):
        estimates, aboves = estimate_intraclass_correlation(make_totals(correct, [0, 0, 1, 1, 2, 2]))
        assert estimates[0] == aboves[0] == pytest.approx(bound), "clipped to a share"


@pytest.mark.parametrize("metric", ["precision", "error_rate"])
def test_design_effect_of_a_threshold_ignores_the_others(metric: str) -> None:
    rows = np.random.default_rng(0)
    confidence, correct = rows.random(60), (rows.random(60) < 0.7).astype(int)
    weight, groups = rows.integers(1, 5, 60).astype(float), np.arange(60) // 4

    def compute(thresholds: list[float], scale: float = 1) -> np.ndarray:
        table = compute_group_totals(confidence, correct, weight * scale, groups, np.array(thresholds), metric)
        icc = estimate_intraclass_correlation(table)[1]
        return np.stack([table.incorrect_share, icc, table.compute_effective_size(icc)])

    assert compute([0.2, 0.6]) == pytest.approx(np.hstack([compute([0.2]), compute([0.6])]))
    assert compute([0.2, 0.6], scale=0.001) == pytest.approx(compute([0.2, 0.6]))
    counted = weight * ((confidence >= 0.6) | (metric == "error_rate"))
    expected = np.average((confidence >= 0.6) & (correct == 0), weights=counted)
    assert compute([0.6])[0] == pytest.approx(expected)
