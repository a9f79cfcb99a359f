import numpy as np
import pytest

from abstain.monitoring import drift
from abstain.monitoring.drift import classifier_two_sample_test, combine_p_values, measure_novelty, permutation_test
from abstain.monitoring.group_permutation import GroupedSamples
from benchmarks.monitoring import ALARMS, SHIFTS, Traffic, measure_drift_alarms

TESTS = [permutation_test, classifier_two_sample_test, measure_novelty]
REWRITTEN, NEW_TOPIC = SHIFTS[1:]


@pytest.mark.heavy
@pytest.mark.parametrize(
    "recurring",
    ["none", pytest.param("all", marks=pytest.mark.soak(twin="test_drift_tests_without_drift_raise_few_alarms"))],
)
def test_drift_tests_without_drift_raise_few_alarms(recurring: str) -> None:
    # 5 % are at most 4 of 20 in 997 of 1,000 such tests.
    assert (measure_drift_alarms(Traffic(recurring), SHIFTS[0], (400, 300), 4, 5) <= 4 / 20).all()  # type: ignore[arg-type]


@pytest.mark.heavy
@pytest.mark.parametrize("recurring", ["all", "half"])
def test_drift_tests_find_one_rewritten_product_of_ten(recurring: str) -> None:
    shares = measure_drift_alarms(Traffic(recurring), REWRITTEN, (600, 300), 1, 2)  # type: ignore[arg-type]
    assert dict(zip(ALARMS, shares, strict=True))["inputs (both)"] == 1


def test_measure_novelty_finds_a_new_topic() -> None:
    traffic = Traffic()
    before, groups = traffic.draw_rows(1500, 0)
    now, own = traffic.draw_rows(400, 1, new_topic=0.1)
    result = measure_novelty(before, now, groups, own, 0)
    assert result.p_value <= 0.05 and result.share > result.expected + 0.03
    assert all(example < 40 for example in result.examples) and result.examples
    assert measure_novelty(before, before[:300], groups, groups[:300], 0).share < 0.05, "these recur"


def test_permutation_test_examples_are_moved_rows() -> None:
    before, groups = Traffic().draw_rows(600, 0)
    now, own = Traffic().draw_rows(300, 1, rewritten=2.0)
    assert {own[one] // 10 for one in permutation_test(before, now, groups, own, 0).examples} == {0}


def test_permutation_test_ignores_frequencies_of_documents() -> None:
    # Its rows are as they were: documents are compared with themselves.
    generator = np.random.default_rng(0)
    groups, own = np.repeat([0, 1], [300, 30]), np.repeat([0, 1], [30, 300])
    before, now = (10.0 * of[:, None] + generator.standard_normal((330, 5)) for of in (groups, own))
    assert permutation_test(before, now, groups, own, 0).p_value > 0.05


@pytest.mark.parametrize("test", TESTS)
def test_drift_tests_of_one_document_or_no_rows_find_nothing(test) -> None:  # type: ignore[no-untyped-def]
    generator = np.random.default_rng(0)
    before, now = (generator.standard_normal((rows, 8)) for rows in (200, 100))
    result = test(before, now, np.zeros(200), np.zeros(100), 0)
    assert np.isnan(result.p_value) or result.p_value > 0.05
    for n_before, n_now in ((20, 0), (0, 20), (0, 0)):
        result = test(before[:n_before], now[:n_now], np.arange(n_before), np.arange(n_now), 0)
        assert np.isnan(result.p_value) and result.examples == []


@pytest.mark.parametrize("test", TESTS)
def test_drift_tests_are_deterministic(test) -> None:  # type: ignore[no-untyped-def]
    (before, groups), (now, own) = Traffic().draw_rows(200, 0), Traffic().draw_rows(100, 1)
    assert test(before, now, groups, own, 5) == test(before, now, groups, own, 5)


@pytest.mark.heavy
def test_permutation_test_reduces_many_long_vectors() -> None:
    generator = np.random.default_rng(0)
    before = generator.standard_normal((drift.MAX_ROWS + 500, 700)).astype(np.float32)
    now = generator.standard_normal((drift.MAX_ROWS + 500, 700)).astype(np.float32) + 0.2
    groups = np.arange(drift.MAX_ROWS + 500) % 50
    result = permutation_test(before, now, groups, groups, 0)
    assert result.p_value < 0.05 and max(result.examples) < drift.MAX_ROWS + 500


def test_permutation_test_samples_rows_with_their_documents() -> None:
    groups = np.repeat(np.arange(50), (drift.MAX_ROWS + 500) // 50)
    noise = np.random.default_rng(1).standard_normal((2, len(groups), 4))
    assert permutation_test(*(5.0 * groups[:, None] + noise), groups, groups, 0).p_value > 0.05


def test_grouped_samples_new_documents_have_equal_rows() -> None:
    generator = np.random.default_rng(0)
    sides = GroupedSamples.from_groups(np.repeat([1, 2, 3], 40), np.repeat([3, 4, 5], [10, 2, 2]), generator)
    assert set(sides.group[sides.in_both]) == {2}
    assert np.bincount(sides.group[sides.group_representatives]).tolist() == [2, 2, 2, 2, 2]


def test_combine_p_values_multiplies_the_least() -> None:
    assert combine_p_values([0.02, 0.5]) == 0.04
    assert combine_p_values([0.02, float("nan")]) == 0.02
    assert combine_p_values([0.9, 0.8]) == 1.0
    assert np.isnan(combine_p_values([])) and np.isnan(combine_p_values([float("nan")]))


def test_permute_rows_keeps_counts_of_each_document() -> None:
    generator = np.random.default_rng(0)
    sides = GroupedSamples.from_groups(np.repeat(["a", "b"], [30, 3]), np.repeat(list("abc"), [2, 20, 5]), generator)
    labels = sides.permute_rows(generator)
    counts = {name: labels[:, sides.group == at].sum(axis=1) for at, name in enumerate("abc")}
    assert all((counts[name] == expected).all() for name, expected in {"a": 2, "b": 20, "c": 0}.items())
    assert (labels[0] == (sides.in_window & sides.in_both)).all() and (labels[1:] != labels[0]).any()
