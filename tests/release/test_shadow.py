"""Which reviews are compared, what they show about a shadow, and the metrics of two versions."""

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.decision_log.queries import PairedDecision
from abstain.data.store.dataframes import INTERACTION_DTYPES, REVIEW_DTYPES, THUMB_DTYPES, StoreFrames
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.weighted_metrics import row_weights
from abstain.release.champion_comparison import EMPTY_BUDGET, ComparisonBudget
from abstain.release.evaluation_set import CANDIDATE, EvaluationSet
from abstain.release.metric_comparison import compare_metrics
from abstain.release.paired_reviews import hash_reviews, join_paired_reviews, make_evaluation_set
from abstain.release.shadow import ShadowComparison, compare_shadow, parse_shadow, require_enough_reviews
from tests.checkout import shipped_params
from tests.factories import later
from tests.release.builders import CHAMPION, MIN_N_EFF, PARAMS, check_set, make_equal_set, make_set

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
    with pytest.raises(AbstainError, match="the same confidences"):
        compare(make_equal_set())
    with pytest.raises(AbstainError, match="max_comparisons", check=lambda error: error.code is Code.NOT_BETTER):
        compare(clear, ComparisonBudget(PARAMS.max_comparisons, PARAMS.false_promotion_rate))


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
    mixed = EvaluationSet(
        *(np.concatenate([getattr(one, name) for one in (both, other)]) for name in ("correct", "groups", "products")),
        {name: np.concatenate([both.confidences[name], other.confidences[name]]) for name in THRESHOLDS},
        weight=np.repeat([1 / 50, 1.0], len(both.correct)),
    )
    assert compare(mixed).outcome == "worse"
    assert compare(replace(mixed, weight=None)).outcome == "inconclusive"


def test_shadow_too_few_reviews_or_damaged_file_raise() -> None:
    enough = make_set()
    require_enough_reviews(enough, MIN_N_EFF)
    few = replace(enough, groups=np.array([f"doc-{n % 9}" for n in range(len(enough.correct))]))
    for paired in (few, replace(enough, correct=enough.correct[: MIN_N_EFF - 1])):
        with pytest.raises(AbstainError, check=lambda error: error.code is Code.TOO_FEW_LABELS):
            require_enough_reviews(paired, MIN_N_EFF)
    with pytest.raises(AbstainError, match="shadow.json is damaged .*abstain shadow set"):
        parse_shadow('{"candidate": 1}')


def draw_reviews(paired: EvaluationSet, shown: float, withheld: float, seed: int) -> EvaluationSet:
    """Review answers that production shows and withholds with these probabilities."""
    chance = np.where(paired.confidences[CHAMPION] >= THRESHOLDS[CHAMPION], shown, withheld)
    rows = np.random.default_rng(seed).random(len(chance)) < chance
    return EvaluationSet(
        *(column[rows] for column in (paired.correct, paired.groups, paired.products)),
        {name: paired.confidences[name][rows] for name in THRESHOLDS},
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


Reviews = list[tuple[str, bool, float | None]]
"""Answer, whether it is correct, and inclusion probability."""


def make_pair(key: str, shadow: float = 0.25, probability: float | None = 0.5) -> PairedDecision:
    return PairedDecision(key, True, 0.75, probability, 0.5, shadow >= 0.5, shadow, 0.2, 0.5)


def join(pairs: list[PairedDecision], reviews: Reviews) -> pd.DataFrame:
    """Join pairs with reviews of answers q-0, q-1 ..., of which each two are about one document."""
    numbers = range(200)
    interactions = pd.DataFrame(
        dict.fromkeys(INTERACTION_DTYPES)
        | {"interaction_id": [f"q-{n}" for n in numbers], "group": [f"doc-{n // 2}" for n in numbers]}
    )
    columns = pd.DataFrame(reviews, columns=["interaction_id", "correct", "inclusion_probability"])
    times = [later(n) for n in range(len(reviews))]
    columns = columns.assign(complete=True, truthful=True, reviewed_at=times, reviewer="sme-1")
    thumbs, frame = (
        part.reindex(columns=list(dtypes)).astype(dtypes)
        for part, dtypes in ((pd.DataFrame(), THUMB_DTYPES), (columns, REVIEW_DTYPES))
    )
    return join_paired_reviews(pairs, StoreFrames(interactions, thumbs, frame), shipped_params().labels)


def test_join_paired_reviews_last_review_counts() -> None:
    rows = join(
        [make_pair("q-3", 0.9), make_pair("q-1"), make_pair("q-2"), make_pair("elsewhere")],
        [("q-1", True, 0.5), ("q-3", True, 0.25), ("q-3", False, 0.25), ("q-9", True, 0.5)],
    )
    assert rows["interaction_id"].tolist() == ["q-1", "q-3"]
    assert rows["correct"].tolist() == [1, 0] and rows["group"].tolist() == ["doc-0", "doc-1"]
    evaluation = make_evaluation_set(rows, "v1.0.0")
    assert evaluation.confidences[CANDIDATE].tolist() == [0.25, 0.9]
    assert evaluation.confidences["v1.0.0"].tolist() == [0.75, 0.75]
    assert evaluation.weight == pytest.approx(np.array([0.5, 1.0]))
    assert evaluation.probabilities is not None and evaluation.champion_probability is not None
    unknown = join([make_pair("q-1", probability=None)], [("q-1", True, 0.5)])
    assert make_evaluation_set(unknown, "v1.0.0").champion_probability is None


def test_join_paired_reviews_drops_self_selected_and_unreviewed() -> None:
    reviews: Reviews = [("q-1", True, 0.5), ("q-2", False, None), ("q-3", True, 0.5)]
    assert join([make_pair(f"q-{n}") for n in range(5)], reviews)["interaction_id"].tolist() == ["q-1", "q-3"]
    for rows in (join([], []), join([make_pair("q-1")], []), join([], reviews)):
        assert len(rows) == 0 and len(make_evaluation_set(rows, "v1.0.0").correct) == 0


def test_hash_reviews_changes_with_compared_reviews() -> None:
    both, reviews = [make_pair("q-1"), make_pair("q-2")], [("q-1", True, 0.5)]
    first = hash_reviews(join(both, reviews))
    assert first == hash_reviews(join([*reversed(both), make_pair("q-5")], [*reviews, ("q-9", True, 0.5)]))
    for other in ([("q-1", False, 0.5)], [("q-1", True, 0.4)], [*reviews, ("q-2", True, 0.5)]):
        assert hash_reviews(join(both, other)) != first


def test_compare_metrics_values_and_interval_of_difference() -> None:
    both = make_set(rows=600, probe=1.4, champion=0.8)
    own, other = both.confidences[CANDIDATE], both.confidences[CHAMPION]
    compared = compare_metrics(replace(both, probabilities=own, champion_probability=other), CHAMPION)
    by_name = {comparison.metric: comparison for comparison in compared}
    ranking = ["AUROC", "AURC", "errors caught, 15 % withheld", "share of the errors that could be caught"]
    assert list(by_name) == [*ranking, "Brier score"]
    for metric, name in ((metrics.auroc, "AUROC"), (metrics.brier, "Brier score")):
        expected = pytest.approx((metric(both.correct, own), metric(both.correct, other)))
        assert (by_name[name].candidate, by_name[name].champion) == expected
    assert by_name["AUROC"].low > 0 and by_name["Brier score"].high < 0 and by_name["AURC"].high < 0
    for comparison in compared:
        assert comparison.low <= comparison.difference <= comparison.high
        assert comparison.difference == pytest.approx(comparison.candidate - comparison.champion)
    assert [found.metric for found in compare_metrics(both, CHAMPION)] == ranking, "no probabilities, no Brier score"
    assert [found.metric for found in check_set().champion_comparison] == ranking
    assert check_set(champion=None).champion_comparison == ()


if __name__ == "__main__":
    for chances in ((0.5, 0.0), (0.25, 0.75), (0.5, 0.5)):
        print(chances, simulate_equal_shadow(int(sys.argv[1]), shown=chances[0], withheld=chances[1]))
