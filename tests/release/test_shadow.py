"""What paired reviews say of a shadow, and when they say nothing."""

from __future__ import annotations

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
from tests.release.test_promotion_check import MIN_N_EFF, PARAMS, window

CHAMPION = "v1.0.0"
THRESHOLDS = {CANDIDATE: 0.6, CHAMPION: 0.5}


def compared(paired: EvaluationSet, budget: ComparisonBudget = EMPTY_BUDGET) -> ShadowComparison:
    return compare_shadow(paired, CHAMPION, THRESHOLDS, PARAMS, budget)


def swapped(paired: EvaluationSet) -> EvaluationSet:
    own, other = paired.confidences[CANDIDATE], paired.confidences[CHAMPION]
    return replace(paired, confidences={CANDIDATE: other, CHAMPION: own})


def test_it_is_told_apart_in_either_direction_at_the_level_of_a_look() -> None:
    clear = window(probe=1.6, champion=0.8)
    assert compared(clear).outcome == "better" and compared(swapped(clear)).outcome == "worse"
    assert compared(window(probe=0.8, champion=0.8, seed=4)).outcome == "inconclusive"
    assert compared(clear).check.limit == pytest.approx(PARAMS.false_promotion_rate / PARAMS.max_comparisons)


def test_each_shows_at_its_own_threshold() -> None:
    paired = window()
    found = {one.metric: one for one in compared(paired).metrics}
    for name, who in (("candidate", CANDIDATE), ("champion", CHAMPION)):
        shown = paired.confidences[who] >= THRESHOLDS[who]
        assert getattr(found["shown"], name) == pytest.approx(shown.mean())
        assert getattr(found["precision of what is shown"], name) == pytest.approx(paired.correct[shown].mean())
    counts = compared(paired).shown_counts
    own, other = (paired.confidences[who] >= THRESHOLDS[who] for who in (CANDIDATE, CHAMPION))
    assert counts["shadow"] == {"answers": (own & ~other).sum(), "correct": paired.correct[own & ~other].sum()}
    assert sum(of["answers"] for of in counts.values()) == len(paired.correct)


def test_answers_that_were_drawn_rarely_weigh_more() -> None:
    """Production is better where answers were drawn one time in fifty; the shadow on the others, which are as many."""
    both, other = window(seed=1), swapped(window(seed=2))
    names = (CANDIDATE, CHAMPION)
    mixed = replace(
        both,
        correct=np.concatenate([both.correct, other.correct]),
        groups=np.concatenate([both.groups, other.groups]),
        products=np.concatenate([both.products, other.products]),
        confidences={name: np.concatenate([both.confidences[name], other.confidences[name]]) for name in names},
        weight=np.repeat([1 / 50, 1.0], len(both.correct)),
    )
    assert compared(mixed).outcome == "worse"
    assert compared(replace(mixed, weight=None)).outcome == "inconclusive"


def test_without_a_look_left_nothing_is_compared() -> None:
    with pytest.raises(AbstainError, match="as often as promotion.max_comparisons allows") as error:
        compared(window(), ComparisonBudget(PARAMS.max_comparisons, PARAMS.false_promotion_rate))
    assert error.value.code is Code.NOT_BETTER


def test_one_scorer_with_another_threshold_is_no_comparison() -> None:
    twin = window()
    twin.confidences[CANDIDATE] = twin.confidences[CHAMPION].copy()
    with pytest.raises(AbstainError, match="the same confidences"):
        compared(twin)


def test_too_few_reviews_or_documents_are_no_comparison() -> None:
    enough = window()
    require_enough_reviews(enough, MIN_N_EFF)
    few = replace(enough, groups=np.array([f"doc-{n % 9}" for n in range(len(enough.correct))]))
    for paired in (few, replace(enough, correct=enough.correct[: MIN_N_EFF - 1])):
        with pytest.raises(AbstainError) as error:
            require_enough_reviews(paired, MIN_N_EFF)
        assert error.value.code is Code.TOO_FEW_LABELS


def test_a_damaged_file_is_named_with_its_remedy() -> None:
    with pytest.raises(AbstainError, match="shadow.json is damaged .*abstain shadow set"):
        parse_shadow('{"candidate": 1}')


def reviewed(paired: EvaluationSet, shown: float, withheld: float, seed: int) -> EvaluationSet:
    """`paired` as far as reviews of it come: of what production shows and of what it withholds with these chances."""
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


def false_verdicts(runs: int, **options: Any) -> dict[str, float]:
    """How often an equal shadow is told apart, by which verdict."""
    found = [
        compared(reviewed(window(rows=1200, probe=0.8, champion=0.8, seed=4 * run), seed=run, **options)).outcome
        for run in range(runs)
    ]
    return {verdict: found.count(verdict) / runs for verdict in ("better", "worse")}


def test_an_equal_shadow_seems_better_where_only_what_production_shows_is_reviewed() -> None:
    assert false_verdicts(8, shown=0.5, withheld=0.0)["better"] > 0.5
    assert max(false_verdicts(8, shown=0.25, withheld=0.75).values()) < 0.3, "drawn unevenly, and weighted"


if __name__ == "__main__":
    runs = int(sys.argv[1])
    for chances in (
        {"shown": 0.5, "withheld": 0.0},
        {"shown": 0.25, "withheld": 0.75},
        {"shown": 0.5, "withheld": 0.5},
    ):
        print(chances, false_verdicts(runs, **chances))
