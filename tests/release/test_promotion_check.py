"""When a candidate passes the promotion checks (docs/studies/thresholds.md).

`python -m tests.release.test_promotion_check 400` prints the table.
"""

import sys
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from abstain.core.codes import Code
from abstain.learning.metrics.bootstrap import BootstrapConfig
from abstain.learning.thresholds.guarantee import HoldoutResult
from abstain.release import evaluation_set
from abstain.release.champion_comparison import EMPTY_BUDGET, ComparisonBudget
from abstain.release.evaluation_set import CANDIDATE, EvaluationSet, PromotionCheck
from abstain.release.holdout_guarantee import MissingGuarantee, explain_unchecked_guarantee
from abstain.release.promotion_check import PromotionDecision, describe_failure
from tests.learning.thresholds.builders import make_guarantee, make_missing_guarantee
from tests.release.builders import (
    CHAMPION,
    MEASURED,
    MIN_N_EFF,
    PARAMS,
    check_set,
    compute_true_auroc,
    get_check,
    get_failed,
    make_equal_set,
    make_related_set,
    make_set,
)
from tests.reports.builders import make_holdout_metrics

BETTER, NOT_WORSE = f"better than champion {CHAMPION}", f"not worse than {CHAMPION}"
WORSE = {"probe": 0.8, "champion": 1.6}


def test_check_candidate_better_is_approved_all_checks_run() -> None:
    decision = check_set()
    assert decision.is_approved and decision.reasons == []
    assert [check.name for check in decision.checks] == [
        "precision",
        "same hold-out",
        BETTER,
        "slice blue",
        "slice gold",
        "calibration",
        "coverage",
        "newest split",
        "ONNX parity",
        "latency",
    ]


def test_check_candidate_equal_scorer_needs_new_threshold() -> None:
    decision = check_set(make_equal_set())
    assert get_failed(decision) == {"new threshold"} and not decision.is_approved
    moved = replace(MEASURED, champion_threshold=0.4)
    assert check_set(make_equal_set(), candidate=moved).is_approved
    missed = replace(moved, threshold=0.05, target_precision=0.95)
    assert get_failed(check_set(make_equal_set(), candidate=missed, max_slice_drop=0.9)) == {"precision"}


def test_check_candidate_missed_precision_small_slices_fails() -> None:
    many = replace(make_set(), products=np.array([f"p{n % 40}" for n in range(400)]))
    decision = check_set(many, candidate=replace(MEASURED, threshold=0.05, target_precision=0.95), max_ece=1.0)
    assert get_failed(decision) == {"precision"}
    assert all(check.passed is None for check in decision.checks if check.name.startswith("slice"))


def test_check_candidate_error_rate_within_tolerance() -> None:
    holdout = make_set()
    rate = ((holdout.confidences[CANDIDATE] >= MEASURED.threshold) & (holdout.correct == 0)).mean()
    assert 0.01 < rate < 0.2
    kept = check_set(holdout, candidate=replace(MEASURED, target_error_rate=rate - 0.01), max_error_rate_excess=0.02)
    assert kept.is_approved and get_check(kept, "error rate").value == pytest.approx(rate)
    missed = check_set(holdout, candidate=replace(MEASURED, target_error_rate=rate - 0.015), max_error_rate_excess=0.01)
    assert get_failed(missed) == {"error rate"}


def make_imprecise_set(rows: int, precision: float) -> EvaluationSet:
    """Every answer is shown, and in each group of ten the same share is correct."""
    correct = (np.arange(rows) % 100 < 100 * precision).astype(int)
    groups = np.random.default_rng(1).permutation(rows) % 10
    confidences = {CANDIDATE: np.full(rows, 0.9), "length_only": np.linspace(0, 1, rows)}
    return EvaluationSet(correct, groups, np.full(rows, "gold"), confidences)


@pytest.mark.parametrize(
    ("rows", "precision", "tolerance", "passed"),
    [
        (100, 0.72, 0.01, None),  # may be chance
        (2000, 0.72, 0.01, False),
        (100, 0.5, 0.01, False),
        (2000, 0.79, 0.03, True),
    ],
)
def test_check_precision_guarantee_allows_for_chance(
    rows: int, precision: float, tolerance: float, passed: bool | None
) -> None:
    decision = check_set(make_imprecise_set(rows, precision), champion=None, max_precision_drop=tolerance)
    check = get_check(decision, "precision")
    assert (check.passed, check.value) == (passed, pytest.approx(precision))


@pytest.mark.parametrize(("documents", "passed"), [(1, False), (4, False), (5, True)])
def test_check_precision_guarantee_few_documents_fails(documents: int, passed: bool) -> None:
    few = replace(make_imprecise_set(100, 0.9), groups=np.arange(100) % documents)
    assert get_check(check_set(few, champion=None), "precision").passed is passed
    unchecked = explain_unchecked_guarantee(few, 0.5, MIN_N_EFF, reviews=300, frozen=False)
    assert (unchecked is None) == passed
    assert unchecked is None or f"{documents} documents" in unchecked.reason


def test_check_candidate_few_shown_answers_fail() -> None:
    holdout = make_set()
    top = float(np.sort(holdout.confidences[CANDIDATE])[-5])
    decision = check_set(holdout, candidate=replace(MEASURED, threshold=top, target_precision=0.5))
    assert get_failed(decision) == {"precision", "coverage"}
    assert get_check(decision, "precision").value == 1.0


def test_check_better_little_better_on_few_answers_fails() -> None:
    decision = check_set(make_set(rows=60, probe=1.0, champion=0.95), min_n_eff=60)
    (reason,) = (reason for reason in decision.reasons if reason.field == BETTER)
    assert reason.code is Code.NOT_BETTER
    assert describe_failure(reason).startswith(f"the check `{BETTER}` failed: ")


def test_check_better_alpha_of_one_comparison_decides() -> None:
    close = make_set(probe=1.0, champion=1.1)
    p_value = get_check(check_set(close), BETTER).value
    assert 0 < p_value < 0.5
    for rate, passed in ((2 * p_value + 0.001, True), (2 * p_value - 0.001, False)):
        decision = check_set(close, false_promotion_rate=rate, max_comparisons=2)
        assert get_check(decision, BETTER).passed is passed


def test_check_better_used_up_budget_fails() -> None:
    one, two = EMPTY_BUDGET.spend(PARAMS), ComparisonBudget(2, 0.1)
    assert one == ComparisonBudget(1, 0.05) and one.spend(PARAMS) == two and two.spend(PARAMS) is None
    assert check_set(budget=one).is_approved
    assert get_failed(check_set(budget=two)) == {BETTER}
    assert check_set(budget=two, champion=None).is_approved


def test_comparison_budget_adds_changed_alphas() -> None:
    """Half of alpha was spent when there were to be two comparisons; with a hundred, fifty are left."""
    budget, many = ComparisonBudget(1, 0.05), PARAMS.model_copy(update={"max_comparisons": 100})
    for _ in range(50):
        spent = budget.spend(many)
        assert spent is not None
        budget = spent
    assert budget.used == 51 and budget.spend(many) is None


def test_used_comparison_only_with_guarantee_and_champion() -> None:
    assert check_set().used_comparison and check_set(make_set(**WORSE)).used_comparison
    assert not check_set(candidate=UNGUARANTEED).used_comparison and not check_set(champion=None).used_comparison


def test_check_coverage_drop_fails_unless_target_changed() -> None:
    holdout = make_equal_set()
    few = float(np.quantile(holdout.confidences[CANDIDATE], 0.9))
    assert get_failed(check_set(holdout, candidate=replace(MEASURED, threshold=few))) == {"coverage"}
    changed = check_set(holdout, candidate=replace(MEASURED, threshold=few, same_target=False))
    coverage = get_check(changed, "coverage")
    assert changed.is_approved and coverage.passed is None and np.isnan(coverage.value)


def test_check_coverage_drop_adds_prior_loss() -> None:
    holdout = make_equal_set()
    measured = replace(MEASURED, threshold=float(np.quantile(holdout.confidences[CANDIDATE], 0.55)))
    loss = np.mean(holdout.confidences[CANDIDATE] >= 0.5) - 0.45
    assert 0.05 < loss < 0.2
    once, twice = (check_set(holdout, candidate=measured, prior_coverage_loss=prior) for prior in (0.0, 0.19))
    assert get_check(once, "coverage").value == pytest.approx(-loss, abs=0.01)
    assert get_failed(once) == set() and get_failed(twice) == {"coverage"}
    assert get_check(twice, "coverage").value == pytest.approx(get_check(once, "coverage").value - 0.19)


def test_check_better_one_class_fails() -> None:
    decision = check_set(replace(make_set(), correct=np.ones(400, int)))
    check = get_check(decision, BETTER)
    assert check.passed is False and np.isnan(check.value)


@pytest.mark.parametrize(
    ("measured", "name"),
    [
        ({"parity": float("nan")}, "ONNX parity"),
        ({"latency_p99_ms": float("nan")}, "latency"),
        ({"parity": 2e-4}, "ONNX parity"),
        ({"latency_p99_ms": 20.1}, "latency"),
    ],
)
def test_check_candidate_parity_and_latency_limits(measured: dict[str, float], name: str) -> None:
    decision = check_set(candidate=replace(MEASURED, **measured))
    assert get_failed(decision) == {name} and not decision.is_approved
    assert check_set(candidate=replace(MEASURED, parity=1e-4, latency_p99_ms=20.0)).is_approved


def test_check_candidate_uncalibrated_fails() -> None:
    overconfident = make_set()
    overconfident.confidences[CANDIDATE] = 0.9 + 0.1 * overconfident.confidences[CANDIDATE]
    decision = check_set(overconfident)
    assert "calibration" in get_failed(decision) and get_check(decision, BETTER).passed


@pytest.mark.parametrize(
    ("newest", "passed"),
    [
        ({"rows": 60, "probe": 0.2, "champion": 2.0, "seed": 10}, False),
        ({"rows": 19, "probe": 0.2, "champion": 2.0, "seed": 10}, None),  # too few
        ({"rows": 60, "probe": 0.9, "champion": 1.3, "seed": 31}, None),  # may be chance
    ],
)
def test_check_newest_drop_judges_by_rows(newest: dict[str, Any], passed: bool | None) -> None:
    decision = check_set(newest=make_set(**newest))
    check = get_check(decision, "newest split")
    assert check.passed is passed and check.value < -0.02
    assert decision.is_approved == (passed is None)


def test_check_newest_drop_limit_is_max_newest_drop() -> None:
    newest = make_set(rows=300, probe=0.6, champion=1.5, seed=20)
    drop = -get_check(check_set(newest=newest), "newest split").value
    assert drop > 0.1
    assert get_check(check_set(newest=newest, max_newest_drop=drop + 1e-9), "newest split").passed
    assert get_check(check_set(newest=newest, max_newest_drop=drop - 1e-9), "newest split").passed is False


def test_check_newest_drop_empty_or_one_class_is_not_judged() -> None:
    nothing = np.array([])
    empty = EvaluationSet(nothing.astype(int), nothing, nothing, {CANDIDATE: nothing, CHAMPION: nothing})
    for newest in (empty, replace(make_set(seed=10), correct=np.ones(400, int))):
        decision = check_set(newest=newest)
        assert decision.is_approved and get_check(decision, "newest split").passed is None


@pytest.mark.parametrize("documents", [1, 2])
def test_check_products_few_documents_are_not_judged(documents: int) -> None:
    """All answers about one document may be wrong together; two of them do not tell how often."""
    holdout = make_set()
    few = np.isin(holdout.groups, [f"doc-{n}" for n in range(documents)])
    holdout.confidences[CANDIDATE][few] = 0.9
    holdout.correct[few] = np.arange(few.sum()) % 2
    decision = check_set(replace(holdout, products=np.where(few, "new", "gold")), min_n_eff=8, max_ece=1.0)
    check = get_check(decision, "slice new")
    assert check.value < check.limit and check.passed is None


def test_check_products_below_floor_fails() -> None:
    holdout = make_set()
    shown = np.flatnonzero((holdout.products == "gold") & (holdout.confidences[CANDIDATE] >= 0.5))
    holdout.correct[shown[: int(0.4 * len(shown))]] = 0
    decision = check_set(holdout, max_ece=1.0)
    assert get_failed(decision) == {"slice gold"}
    assert get_check(decision, "slice gold").limit == pytest.approx(0.65)
    assert get_check(decision, "slice blue").passed


def test_check_products_small_product_is_not_judged() -> None:
    holdout = make_set()
    products = holdout.products.astype(object)
    products[:30] = "rare"
    holdout.correct[:30] = 0
    decision = check_set(replace(holdout, products=products), max_ece=1.0)
    rare = get_check(decision, "slice rare")
    assert (rare.passed, rare.value) == (None, 0.0) and decision.is_approved


def check_after_erasure(holdout: EvaluationSet, **options: Any) -> PromotionDecision:
    return check_set(holdout, rule="non_inferior", max_ece=1.0, **options)


def test_check_non_inferior_equal_is_approved() -> None:
    decision = check_after_erasure(make_equal_set())
    names = {NOT_WORSE, "as precise", "newest split", "same hold-out", "precision", "latency"}
    assert decision.is_approved and {check.name for check in decision.checks} >= names
    assert get_check(decision, NOT_WORSE).value == 1


@pytest.mark.heavy
def test_check_non_inferior_power_grows_with_rows() -> None:
    passed = {
        rows: sum(check_after_erasure(make_related_set(rows, 1.2, 1.2, seed)).is_approved for seed in range(20))
        for rows in (60, 1000)
    }
    assert passed[1000] >= 19 and passed[60] < passed[1000]


def test_check_non_inferior_clearly_worse_fails() -> None:
    decision = check_after_erasure(make_set(**WORSE))
    assert NOT_WORSE in get_failed(decision) and get_check(decision, NOT_WORSE).value < 0.05
    assert BETTER in get_failed(check_set(make_set(**WORSE)))


@pytest.mark.heavy
def test_check_non_inferior_keeps_error_level() -> None:
    margin = compute_true_auroc(1.0) - compute_true_auroc(0.9)
    passed = {
        share: sum(
            get_check(
                check_after_erasure(make_related_set(500, 0.9, 1.0, seed), erasure_margin=share * margin), NOT_WORSE
            ).passed
            is True
            for seed in range(100)
        )
        for share in (0.5, 1, 2)
    }
    assert passed[0.5] <= passed[1] <= 12 and passed[2] >= 40, passed


def test_check_non_inferior_wider_margin_is_monotonic() -> None:
    holdout = make_related_set(400, 1.1, 1.2, seed=3)
    chances = [
        get_check(check_after_erasure(holdout, erasure_margin=margin), NOT_WORSE).value
        for margin in (1e-9, 0.01, 0.05, 0.5)
    ]
    assert chances == sorted(chances) and chances[0] < 0.95 <= chances[-1]


def test_check_non_inferior_better_passes() -> None:
    decision = check_after_erasure(make_set())
    assert decision.is_approved
    assert get_check(decision, NOT_WORSE).value >= get_check(check_set(), BETTER).value


def test_check_non_inferior_uses_weights() -> None:
    holdout = make_related_set(400, 1.1, 1.2, seed=3)
    wrong = (holdout.confidences[CANDIDATE] < holdout.confidences[CHAMPION]) & (holdout.correct == 1)
    even, uneven, same = (
        get_check(check_after_erasure(replace(holdout, weight=weight)), NOT_WORSE).value
        for weight in (None, np.where(wrong, 1.0, 0.2), np.full(400, 7.0))
    )
    assert uneven < even and same == pytest.approx(even)


def test_check_precision_difference_less_precise_fails() -> None:
    holdout = make_equal_set()
    measured = replace(MEASURED, threshold=0.05, champion_threshold=0.8, target_precision=0.5)
    decision = check_set(holdout, candidate=measured, rule="non_inferior")
    check = get_check(decision, "as precise")
    assert get_failed(decision) == {"as precise"} and check.value < check.limit
    shows_nothing = check_set(holdout, candidate=replace(measured, champion_threshold=1.1), rule="non_inferior")
    assert get_check(shows_nothing, "as precise").passed is None


@pytest.mark.parametrize("changes", [{"correct": np.ones(400, int)}, {"groups": np.full(400, "doc-0")}])
def test_check_non_inferior_uninformative_holdout_fails(changes: dict[str, np.ndarray]) -> None:
    assert NOT_WORSE in get_failed(check_after_erasure(replace(make_equal_set(), **changes)))


def test_check_candidate_erasure_keeps_other_limits() -> None:
    measured = replace(MEASURED, parity=1.0, latency_p99_ms=99.0, threshold=0.05, target_precision=0.95)
    decision = check_set(
        make_equal_set(), candidate=measured, rule="non_inferior", same_holdout=False, max_slice_drop=0.9
    )
    assert {"ONNX parity", "latency", "same hold-out", "precision"} <= get_failed(decision)


def test_check_candidate_accepted_worse_is_not_judged() -> None:
    sets = make_set(**WORSE), make_set(rows=60, probe=0.2, champion=2.0, seed=10)
    measured = replace(MEASURED, target_precision=0.6)
    names = (NOT_WORSE, "newest split")
    assert set(names) <= get_failed(check_set(*sets, candidate=measured, rule="non_inferior"))
    decision = check_set(*sets, candidate=measured, rule="accepted")
    assert decision.is_approved
    checks = [get_check(decision, name) for name in names]
    assert all(check.passed is None and check.value < check.limit for check in checks)
    assert not check_set(*sets, candidate=replace(measured, parity=1.0), rule="accepted").is_approved
    changed = check_set(*sets, candidate=measured, rule="accepted", same_holdout=False)
    assert get_failed(changed) == {"same hold-out"}


def test_check_same_holdout_counts_erased_answers() -> None:
    assert get_failed(check_set(same_holdout=False)) == {"same hold-out"}
    assert "without 3 of its answers" in get_check(check_set(erased=3), "same hold-out").message


def test_check_candidate_first_version_beats_baselines() -> None:
    decision = check_set(champion=None)
    names = {check.name for check in decision.checks}
    assert decision.is_approved
    assert {"better than length_only", "better than base rate"} < names and "same hold-out" not in names


@pytest.mark.parametrize(
    ("measured", "failed"),
    [
        ({"threshold": 0.0, "target_precision": 0.5}, {"better than base rate"}),  # shows everything
        ({"threshold": 1.1}, {"better than base rate", "precision"}),  # shows nothing
        ({"threshold": float("nan")}, {"better than base rate", "precision"}),
    ],
)
def test_check_candidate_first_version_useless_threshold_fails(measured: dict[str, float], failed: set[str]) -> None:
    assert get_failed(check_set(candidate=replace(MEASURED, **measured), champion=None)) == failed


def test_check_candidate_first_version_equal_to_length_fails() -> None:
    holdout = make_set()
    holdout.confidences["length_only"] = holdout.confidences[CANDIDATE].copy()
    assert get_failed(check_set(holdout, champion=None)) == {"better than length_only"}


def test_is_approved_without_judged_check_is_false() -> None:
    assert not PromotionDecision().is_approved
    assert not PromotionDecision((PromotionCheck(Code.NOT_BETTER, "reported", None, 1.0, 0.0, ""),)).is_approved


@pytest.mark.parametrize("champion", [CHAMPION, None])
def test_check_candidate_weight_counts_as_repeated_rows(champion: str | None) -> None:
    even = replace(make_set(), weight=np.ones(400))
    assert check_set(even, champion=champion) == check_set(champion=champion)
    once = make_set(rows=300, probe=1.1, champion=1.0)
    times = np.where(once.products == "gold", 3, 1)
    thrice = EvaluationSet(
        *(np.repeat(column, times) for column in (once.correct, once.groups, once.products)),
        {name: np.repeat(confidence, times) for name, confidence in once.confidences.items()},
    )
    weighted = check_set(*[replace(once, weight=times / 3)] * 2, champion=champion)
    whole = check_set(thrice, thrice, champion=champion)
    for actual, expected in zip(weighted.checks, whole.checks, strict=True):
        assert (actual.name, actual.passed) == (expected.name, expected.passed)
        assert actual.value == pytest.approx(expected.value)
    assert get_check(weighted, "precision").value != pytest.approx(get_check(check_set(once), "precision").value)


def test_check_precision_guarantee_one_heavy_answer_fails() -> None:
    holdout = make_set()
    heavy = np.ones(400)
    heavy[int(np.argmax(holdout.confidences[CANDIDATE]))] = 1e4
    decision = check_set(replace(holdout, weight=heavy))
    assert "precision" in get_failed(decision) and get_check(decision, "precision").value > 0.99


@pytest.mark.parametrize("champion", [CHAMPION, None])
def test_check_better_single_group_fails(champion: str | None) -> None:
    decision = check_set(replace(make_set(), groups=np.full(400, "doc-0")), champion=champion)
    better = [check for check in decision.checks if check.name.startswith("better than")]
    assert better and all(check.passed is False and not check.value > 0 for check in better)


MISSING = MissingGuarantee("about 500 more reviews are needed", 500)
UNGUARANTEED = replace(MEASURED, missing_guarantee=MISSING, allow_missing_guarantee=True)


def test_check_candidate_missing_guarantee_only_if_allowed() -> None:
    few = make_set(rows=12, probe=0.0)
    first = check_set(few, few, candidate=UNGUARANTEED, champion=None)
    assert first.is_approved and not check_set(few, few, champion=None).is_approved
    judged = {check.name for check in first.checks if check.passed is not None}
    assert judged == {"guarantee", "ONNX parity", "latency"}
    for changes, failed in (({"allow_missing_guarantee": False}, "guarantee"), ({"latency_p99_ms": 21}, "latency")):
        rejected = check_set(few, few, candidate=replace(UNGUARANTEED, **changes), champion=None)
        assert get_failed(rejected) == {failed}


AT_THRESHOLD = {
    "coverage": 0.4,
    "precision": 0.9,
    "shown": 40,
    "precision_low": 0.8,
    "precision_high": None,
    "error_rate_low": None,
    "error_rate_high": 0.06,
}


def test_conclude_guarantee_active_unchecked_or_missing() -> None:
    holdout = make_holdout_metrics(AT_THRESHOLD, rows=100)
    tuned, missing = make_guarantee(status="unchecked", holdout=None), make_missing_guarantee(500)
    for allowed in (True, False):
        decision = check_set(candidate=replace(UNGUARANTEED, allow_missing_guarantee=allowed), champion=None)
        assert decision.is_approved is allowed and decision.conclude(missing, holdout) == missing
        assert decision.conclude(tuned, holdout) == tuned.model_copy(update={"additional_reviews": 500})
    kept, missed = check_set(), check_set(candidate=replace(MEASURED, target_precision=1.2))
    assert not missed.is_approved and missed.conclude(tuned, holdout) == tuned
    result = HoldoutResult(reviews=40, value=0.9, low=0.8, high=None)
    assert kept.conclude(tuned, holdout) == tuned.model_copy(update={"status": "active", "holdout": result})
    error_rate = tuned.model_copy(update={"metric": "error_rate"})
    result = HoldoutResult(reviews=100, value=0.4 * (1 - 0.9), low=None, high=0.06)
    assert kept.conclude(error_rate, holdout).holdout == result


def make_shown_set(shown: int, hidden: int = 50) -> EvaluationSet:
    confidence = np.repeat([0.9, 0.1], [shown, hidden])
    rows = len(confidence)
    return EvaluationSet(np.ones(rows, int), np.arange(rows), np.full(rows, "gold"), {CANDIDATE: confidence})


def explain(holdout: EvaluationSet, threshold: float = 0.5, *, reviews: int = 60, frozen: bool = False) -> Any:
    return explain_unchecked_guarantee(holdout, threshold, MIN_N_EFF, reviews=reviews, frozen=frozen)


@pytest.mark.parametrize(("shown", "more"), [(0, None), (1, 1140), (12, 40), (13, 33), (19, 4)])
def test_explain_unchecked_guarantee_too_few_shown(shown: int, more: int | None) -> None:
    unchecked = explain(make_shown_set(shown))
    assert (unchecked.n_eff_shown, unchecked.additional_reviews) == (shown, more)
    assert f"shows {shown or 'none'} of" in unchecked.reason
    assert more is None or f"about {more:,} more reviews" in unchecked.reason


def test_explain_unchecked_guarantee_enough_shown_is_none() -> None:
    assert explain(make_shown_set(20)) is None
    assert explain(make_shown_set(20), 0.95) is not None


def test_explain_unchecked_guarantee_counts_n_eff() -> None:
    weight = np.repeat([1.0, 0.1, 1.0], [10, 30, 50])
    unchecked = explain(replace(make_shown_set(40), weight=weight), reviews=100)
    assert unchecked.n_eff_shown == pytest.approx(13**2 / 10.3) and unchecked.additional_reviews == 22


def test_explain_unchecked_guarantee_frozen_names_no_number() -> None:
    unchecked = explain(make_shown_set(12), frozen=True)
    assert unchecked.additional_reviews is None and "split.holdout_frozen_at" in unchecked.reason


def test_check_candidate_unchecked_guarantee_counts_as_none() -> None:
    few = make_shown_set(12)
    few.confidences["length_only"] = few.confidences[CANDIDATE]
    measured = replace(MEASURED, missing_guarantee=explain(few), allow_missing_guarantee=True)
    first = check_set(few, few, candidate=measured, champion=None)
    assert first.is_approved and not first.has_guarantee and first.additional_reviews == 40
    guarantee = get_check(first, "guarantee")
    assert guarantee.message.startswith("not checked yet") and (guarantee.value, guarantee.limit) == (12, 20)


@pytest.mark.parametrize("target", [None, 0.1])
def test_check_candidate_checks_have_their_codes(target: float | None) -> None:
    decision = check_set(candidate=replace(MEASURED, target_error_rate=target))
    codes = {
        "error rate": "A402",
        "precision": "A402",
        "slice gold": "A402",
        "same hold-out": "A403",
        "better than champion v1.0.0": "A401",
        "calibration": "A404",
        "coverage": "A401",
        "newest split": "A401",
        "ONNX parity": "A405",
        "latency": "A404",
    }
    found = {check.name: str(check.code) for check in decision.checks if check.name != "slice blue"}
    assert found == {name: code for name, code in codes.items() if name != "error rate" or target}


def print_passed_when_worse(samples: int) -> None:
    """Print how often a worse candidate replaces a tainted champion: a row for each correlation and loss."""
    for correlation in (0.9, 0.99, 0.999):
        for loss in (0.0, 0.01, 0.02, 0.04):
            sharpness = NormalDist().inv_cdf(compute_true_auroc(1.0) - loss) / 2**0.5
            shares = []
            for rows in (100, 200, 500, 1000):
                sets = (make_related_set(rows, sharpness, 1.0, seed, correlation) for seed in range(samples))
                shares.append(np.mean([get_check(check_after_erasure(one), NOT_WORSE).passed for one in sets]))
            print(f"| {correlation} | {loss} |", " | ".join(f"{share:.1%}" for share in shares), "|")


if __name__ == "__main__":
    evaluation_set.RESAMPLING = BootstrapConfig(100, 3)
    print_passed_when_worse(int(sys.argv[1]))
