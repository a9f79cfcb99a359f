"""What paired reviews show about a shadow, and when they are not compare."""

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.metrics.weighted_metrics import row_weights
from abstain.release.champion_comparison import EMPTY_BUDGET, ComparisonBudget
from abstain.release.evaluation_set import CANDIDATE, EvaluationSet
from abstain.release.shadow import ShadowComparison, compare_shadow, parse_shadow, require_enough_reviews
from tests.release.builders import CHAMPION, MIN_N_EFF, PARAMS, make_equal_set, make_set

THRESHOLDS = {CANDIDATE: 0.6, CHAMPION: 0.5}


def compare(paired: EvaluationSet, budget: ComparisonBudget = EMPTY_BUDGET) -> ShadowComparison:
    return compare_shadow(paired, CHAMPION, THRESHOLDS, PARAMS, budget)


def swap(paired: EvaluationSet) -> EvaluationSet:
    own, other = paired.confidences[CANDIDATE], paired.confidences[CHAMPION]
    return replace(paired, confidences={CANDIDATE: other, CHAMPION: own})


def test_compare_shadow_outcome_in_both_directions() -> None:
    clear = make_set(probe=1.6, champion=0.8)
    assert compare(clear).outcome == "better" and compare(swap(clear)).outcome == "worse"
    assert compare(make_set(probe=0.8, champion=0.8, seed=4)).outcome == "inconclusive"
    assert compare(clear).check.limit == pytest.approx(PARAMS.false_promotion_rate / PARAMS.max_comparisons)


def test_compare_shadow_each_at_its_own_threshold() -> None:
    paired = make_set()
    comparison = compare(paired)
    by_name = {metric.metric: metric for metric in comparison.metrics}
    for name, scorer in (("candidate", CANDIDATE), ("champion", CHAMPION)):
        shown = paired.confidences[scorer] >= THRESHOLDS[scorer]
        assert getattr(by_name["shown"], name) == pytest.approx(shown.mean())
        assert getattr(by_name["precision of what is shown"], name) == pytest.approx(paired.correct[shown].mean())
    counts = comparison.shown_counts
    only = (paired.confidences[CANDIDATE] >= 0.6) & ~(paired.confidences[CHAMPION] >= 0.5)
    assert counts["shadow"] == {"answers": only.sum(), "correct": paired.correct[only].sum()}
    assert sum(count["answers"] for count in counts.values()) == len(paired.correct)


def test_compare_shadow_uses_weights() -> None:
    """Production is better on answers sampled with probability 1/50, the shadow on as many that were all sampled."""
    both, other = make_set(seed=1), swap(make_set(seed=2))
    names = (CANDIDATE, CHAMPION)
    mixed = replace(
        both,
        correct=np.concatenate([both.correct, other.correct]),
        groups=np.concatenate([both.groups, other.groups]),
        products=np.concatenate([both.products, other.products]),
        confidences={name: np.concatenate([both.confidences[name], other.confidences[name]]) for name in names},
        weight=np.repeat([1 / 50, 1.0], len(both.correct)),
    )
    assert compare(mixed).outcome == "worse"
    assert compare(replace(mixed, weight=None)).outcome == "inconclusive"


def test_compare_shadow_used_up_budget_raises() -> None:
    with pytest.raises(AbstainError, match="promotion.max_comparisons") as error:
        compare(make_set(), ComparisonBudget(PARAMS.max_comparisons, PARAMS.false_promotion_rate))
    assert error.value.code is Code.NOT_BETTER


def test_compare_shadow_same_confidences_raises() -> None:
    with pytest.raises(AbstainError, match="the same confidences"):
        compare(make_equal_set())


def test_require_enough_reviews_few_rows_or_groups_raises() -> None:
    enough = make_set()
    require_enough_reviews(enough, MIN_N_EFF)
    few = replace(enough, groups=np.array([f"doc-{n % 9}" for n in range(len(enough.correct))]))
    for paired in (few, replace(enough, correct=enough.correct[: MIN_N_EFF - 1])):
        with pytest.raises(AbstainError) as error:
            require_enough_reviews(paired, MIN_N_EFF)
        assert error.value.code is Code.TOO_FEW_LABELS


def test_parse_shadow_damaged_names_remedy() -> None:
    with pytest.raises(AbstainError, match="shadow.json is damaged .*abstain shadow set"):
        parse_shadow('{"candidate": 1}')


def draw_reviews(paired: EvaluationSet, shown: float, withheld: float, seed: int) -> EvaluationSet:
    """Review answers that production shows and withholds with these probabilities."""
    chance = np.where(paired.confidences[CHAMPION] >= THRESHOLDS[CHAMPION], shown, withheld)
    rows = np.random.default_rng(seed).random(len(chance)) < chance
    names = (CANDIDATE, CHAMPION)
    return EvaluationSet(
        correct=paired.correct[rows],
        groups=paired.groups[rows],
        products=paired.products[rows],
        confidences={name: paired.confidences[name][rows] for name in names},
        weight=row_weights(chance[rows]),
    )


def simulate_equal_shadow(runs: int, **options: Any) -> dict[str, float]:
    """Return how often an equal shadow seems better or worse."""
    found = [
        compare(draw_reviews(make_set(rows=1200, probe=0.8, champion=0.8, seed=4 * run), seed=run, **options)).outcome
        for run in range(runs)
    ]
    return {verdict: found.count(verdict) / runs for verdict in ("better", "worse")}


def test_compare_shadow_weights_correct_sampling_bias() -> None:
    assert simulate_equal_shadow(8, shown=0.5, withheld=0.0)["better"] > 0.5
    assert max(simulate_equal_shadow(8, shown=0.25, withheld=0.75).values()) < 0.3, "drawn unevenly, and weighted"


if __name__ == "__main__":
    runs = int(sys.argv[1])
    for chances in (
        {"shown": 0.5, "withheld": 0.0},
        {"shown": 0.25, "withheld": 0.75},
        {"shown": 0.5, "withheld": 0.5},
    ):
        print(chances, simulate_equal_shadow(runs, **chances))
