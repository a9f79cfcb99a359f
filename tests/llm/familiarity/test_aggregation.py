import pytest

from abstain.llm.familiarity.aggregation import aggregate, compute_threshold

pytest.importorskip("wordfreq", reason="the extra `familiarity` is not installed")

CONCEPTS, SCORES = ["water", "Glissando Maximus", "photosynthesis"], [0.9, 0.1, 0.4]


def test_aggregate_weights_halve_from_the_rarest() -> None:
    """Eq. 7 with r = 2: the rarest first."""
    expected = (0.1 + 0.4 / 2 + 0.9 / 4) / (1 + 1 / 2 + 1 / 4)
    assert aggregate(CONCEPTS, SCORES, "weighted") == pytest.approx(expected)


def test_aggregate_without_ranking_uses_the_given_order() -> None:
    expected = (0.9 + 0.1 / 2 + 0.4 / 4) / (1 + 1 / 2 + 1 / 4)
    assert aggregate(CONCEPTS, SCORES, "weighted", ranking=False) == pytest.approx(expected)


def test_aggregate_minimum_and_rarest() -> None:
    assert aggregate(CONCEPTS, [0.9, 0.3, 0.2], "minimum") == 0.2
    assert aggregate(CONCEPTS, [0.9, 0.3, 0.2], "rarest") == 0.3


def test_aggregate_ranks_very_rare_concepts() -> None:
    """f of eq. 6 is 0 for both: e to the power of -1000 and of -2000."""
    assert aggregate(["Nash", "Xyzzy Plugh"], [0.0, 1.0], "rarest") == 1.0


def test_compute_threshold_is_a_low_quantile() -> None:
    assert compute_threshold([0.5] * 9) == 0.5
    scores = [at / 1000 for at in range(1000)]
    assert compute_threshold(scores) == pytest.approx(0.05, abs=0.02)
    assert compute_threshold(scores) == compute_threshold(scores)
