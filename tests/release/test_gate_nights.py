"""The promotion checks night after night, simulated (docs/studies/thresholds.md, `python -m benchmarks.gate`)."""

import pytest

from benchmarks.gate import Nights, load_shipped_params, simulate
from benchmarks.guarantee import compute_max_violations

RUNS = 30


@pytest.mark.heavy
def test_promotion_equal_candidates_keep_error_levels() -> None:
    """Twelve nights that share the alpha, one after another on the same small hold-out."""
    nights = Nights(20, 10, 3, carried=0.8, params=load_shipped_params(max_comparisons=12, false_promotion_rate=0.1))
    result = simulate(nights, 12, RUNS)
    assert result.promotion_rate * RUNS <= compute_max_violations(RUNS)
    assert result.degradation_rate <= 0.1, result.rate_by_check


@pytest.mark.heavy
def test_promotion_better_candidate_within_five_nights() -> None:
    nights = Nights(50, 20, 4, carried=0.8, auroc_gain=0.05)
    assert simulate(nights, 5, RUNS).promotion_rate >= 0.6
