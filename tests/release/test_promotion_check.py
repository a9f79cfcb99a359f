"""When a candidate passes the promotion checks (docs/studies/thresholds.md).

`python -m tests.release.test_promotion_check 400` prints the table.
"""

import itertools
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
from abstain.release.champion_comparison import EMPTY_BUDGET, ComparisonBudget, check_non_inferior
from abstain.release.evaluation_set import CANDIDATE, EvaluationSet, PromotionCheck
from abstain.release.holdout_guarantee import MissingGuarantee, explain_unchecked_guarantee
from abstain.release.promotion_check import PromotionDecision, describe_failure
from benchmarks.gate import Nights, load_shipped_params, simulate
from benchmarks.guarantee import compute_max_violations
from tests.learning.thresholds.builders import make_guarantee, make_missing_guarantee
from tests.release import builders
from tests.release.builders import CHAMPION, PARAMS, check_set, get_check, get_failed, make_equal_set, make_set
from tests.reports.builders import make_holdout_metrics

BETTER, NOT_WORSE = f"better than champion {CHAMPION}", f"not worse than {CHAMPION}"
WORSE = {"probe": 0.8, "champion": 1.6}
RUNS = 30
MISSING = MissingGuarantee("about 500 more reviews are needed", 500)
UNGUARANTEED = {"missing_guarantee": MISSING, "allow_missing_guarantee": True}


def test_check_candidate_better_is_approved_checks_have_codes() -> None:
    decision, other = check_set(), check_set(target_error_rate=0.1)
    assert decision.is_approved and decision.reasons == []
    codes = {
        "precision": "A402",
        "same hold-out": "A403",
        BETTER: "A401",
        "slice blue": "A402",
        "slice gold": "A402",
        "calibration": "A404",
        "coverage": "A401",
        "newest split": "A401",
        "ONNX parity": "A405",
        "latency": "A404",
    }
    assert [(check.name, str(check.code)) for check in decision.checks] == list(codes.items())
    assert {check.name: str(check.code) for check in other.checks} == codes | {"error rate": "A402"}


def test_check_candidate_equal_scorer_needs_new_threshold() -> None:
    decision = check_set(make_equal_set())
    assert get_failed(decision) == {"new threshold"} and not decision.is_approved
    assert check_set(make_equal_set(), champion_threshold=0.4).is_approved
    missed = {"champion_threshold": 0.4, "threshold": 0.05, "target_precision": 0.95, "max_slice_drop": 0.9}
    assert get_failed(check_set(make_equal_set(), **missed)) == {"precision"}
    many = replace(make_set(), products=np.array([f"p{n % 40}" for n in range(400)]))
    decision = check_set(many, threshold=0.05, target_precision=0.95, max_ece=1.0)
    assert get_failed(decision) == {"precision"}, "small slices are not judged"
    assert all(check.passed is None for check in decision.checks if check.name.startswith("slice"))


def test_check_candidate_error_rate_within_tolerance() -> None:
    holdout = make_set()
    rate = ((holdout.confidences[CANDIDATE] >= builders.MEASURED.threshold) & (holdout.correct == 0)).mean()
    assert 0.01 < rate < 0.2
    kept = check_set(holdout, target_error_rate=rate - 0.01, max_error_rate_excess=0.02)
    assert kept.is_approved and get_check(kept, "error rate").value == pytest.approx(rate)
    missed = check_set(holdout, target_error_rate=rate - 0.015, max_error_rate_excess=0.01)
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
def test_check_precision_allows_for_chance(rows: int, precision: float, tolerance: float, passed: bool | None) -> None:
    decision = check_set(make_imprecise_set(rows, precision), champion=None, max_precision_drop=tolerance)
    check = get_check(decision, "precision")
    assert (check.passed, check.value) == (passed, pytest.approx(precision))


@pytest.mark.parametrize(("documents", "passed"), [(1, False), (4, False), (5, True)])
def test_check_precision_guarantee_few_documents_fails(documents: int, passed: bool) -> None:
    few = replace(make_imprecise_set(100, 0.9), groups=np.arange(100) % documents)
    assert get_check(check_set(few, champion=None), "precision").passed is passed
    unchecked = explain_unchecked_guarantee(few, 0.5, builders.MIN_N_EFF, reviews=300, frozen=False)
    assert (unchecked is None) == passed
    assert unchecked is None or f"{documents} documents" in unchecked.reason


def test_check_precision_guarantee_few_shown_or_one_heavy_fails() -> None:
    holdout, heavy = make_set(), np.ones(400)
    top = float(np.sort(holdout.confidences[CANDIDATE])[-5])
    decision = check_set(holdout, threshold=top, target_precision=0.5)
    assert get_failed(decision) == {"precision", "coverage"}
    assert get_check(decision, "precision").value == 1.0
    heavy[int(np.argmax(holdout.confidences[CANDIDATE]))] = 1e4
    decision = check_set(replace(holdout, weight=heavy))
    assert "precision" in get_failed(decision) and get_check(decision, "precision").value > 0.99


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
    # Half of alpha was spent when there were to be two comparisons; with a hundred, fifty are left.
    many = PARAMS.model_copy(update={"max_comparisons": 100})
    for used in range(2, 52):
        one = one.spend(many)
        assert one is not None and one.used == used
    assert one.spend(many) is None


def test_decision_used_comparison_and_is_approved_if_judged() -> None:
    assert check_set().used_comparison and check_set(make_set(**WORSE)).used_comparison
    assert not check_set(**UNGUARANTEED).used_comparison and not check_set(champion=None).used_comparison
    assert not PromotionDecision().is_approved
    assert not PromotionDecision((PromotionCheck(Code.NOT_BETTER, "reported", None, 1.0, 0.0, ""),)).is_approved


def test_check_coverage_drop_adds_prior_loss_if_same_target() -> None:
    holdout = make_equal_set()
    few, half = map(float, np.quantile(holdout.confidences[CANDIDATE], [0.9, 0.55]))
    assert get_failed(check_set(holdout, threshold=few)) == {"coverage"}
    changed = check_set(holdout, threshold=few, same_target=False)
    coverage = get_check(changed, "coverage")
    assert changed.is_approved and coverage.passed is None and np.isnan(coverage.value)
    loss = np.mean(holdout.confidences[CANDIDATE] >= 0.5) - 0.45
    assert 0.05 < loss < 0.2
    once, twice = (check_set(holdout, threshold=half, prior_coverage_loss=prior) for prior in (0.0, 0.19))
    assert get_failed(once) == set() and get_failed(twice) == {"coverage"}
    values = [get_check(decision, "coverage").value for decision in (once, twice)]
    assert values == pytest.approx([-loss, -loss - 0.19], abs=0.01) and values[1] == pytest.approx(values[0] - 0.19)


def test_check_candidate_parity_latency_and_calibration_limits() -> None:
    for field, limit, name in (("parity", 1e-4, "ONNX parity"), ("latency_p99_ms", 20.0, "latency")):
        assert check_set(**{field: limit}).is_approved
        for wrong in (float("nan"), 1.005 * limit):
            decision = check_set(**{field: wrong})
            assert get_failed(decision) == {name} and not decision.is_approved
    overconfident = make_set()
    overconfident.confidences[CANDIDATE] = 0.9 + 0.1 * overconfident.confidences[CANDIDATE]
    decision = check_set(overconfident)
    assert "calibration" in get_failed(decision) and get_check(decision, BETTER).passed


@pytest.mark.parametrize(
    ("newest", "passed"),
    [
        (make_set(rows=60, probe=0.2, champion=2.0, seed=10), False),
        (make_set(rows=19, probe=0.2, champion=2.0, seed=10), None),
        (make_set(rows=60, probe=0.9, champion=1.3, seed=31), None),
        (EvaluationSet(*[np.array([], int)] * 3, dict.fromkeys((CANDIDATE, CHAMPION), np.array([]))), None),
        (replace(make_set(seed=10), correct=np.ones(400, int)), None),
    ],
    ids=["worse", "too few", "may be chance", "empty", "one class"],
)
def test_check_newest_drop_judges_by_rows(newest: EvaluationSet, passed: bool | None) -> None:
    decision = check_set(newest=newest)
    check = get_check(decision, "newest split")
    assert check.passed is passed and (check.value < -0.02) == (len(newest.correct) in (19, 60))
    assert decision.is_approved == (passed is None)


def test_check_newest_drop_limit_is_max_newest_drop() -> None:
    newest = make_set(rows=300, probe=0.6, champion=1.5, seed=20)
    drop = -get_check(check_set(newest=newest), "newest split").value
    assert drop > 0.1
    assert get_check(check_set(newest=newest, max_newest_drop=drop + 1e-9), "newest split").passed
    assert get_check(check_set(newest=newest, max_newest_drop=drop - 1e-9), "newest split").passed is False


def test_check_products_few_documents_are_not_judged() -> None:
    """All answers about one document may be wrong together; two of them do not tell how often."""
    for documents in (["doc-0"], ["doc-0", "doc-1"]):
        holdout = make_set()
        few = np.isin(holdout.groups, documents)
        holdout.confidences[CANDIDATE][few] = 0.9
        holdout.correct[few] = np.arange(few.sum()) % 2
        decision = check_set(replace(holdout, products=np.where(few, "new", "gold")), min_n_eff=8, max_ece=1.0)
        check = get_check(decision, "slice new")
        assert check.value < check.limit and check.passed is None


def test_check_products_below_floor_fails_unless_small() -> None:
    holdout = make_set()
    shown = np.flatnonzero((holdout.products == "gold") & (holdout.confidences[CANDIDATE] >= 0.5))
    holdout.correct[shown[: int(0.4 * len(shown))]] = 0
    decision = check_set(holdout, max_ece=1.0)
    assert get_failed(decision) == {"slice gold"}
    assert get_check(decision, "slice gold").limit == pytest.approx(0.65)
    assert get_check(decision, "slice blue").passed
    holdout = make_set()
    holdout.correct[:30] = 0
    small = replace(holdout, products=np.where(np.arange(400) < 30, "rare", holdout.products))
    decision = check_set(small, max_ece=1.0)
    rare = get_check(decision, "slice rare")
    assert (rare.passed, rare.value) == (None, 0.0) and decision.is_approved


def check_after_erasure(holdout: EvaluationSet, **options: Any) -> PromotionDecision:
    return check_set(holdout, rule="non_inferior", max_ece=1.0, **options)


def test_check_non_inferior_fails_if_clearly_worse_only() -> None:
    equal, better, worse = map(check_after_erasure, (make_equal_set(), make_set(), make_set(**WORSE)))
    names = {NOT_WORSE, "as precise", "newest split", "same hold-out", "precision", "latency"}
    assert equal.is_approved and {check.name for check in equal.checks} >= names
    assert get_check(equal, NOT_WORSE).value == 1
    assert better.is_approved and get_check(better, NOT_WORSE).value >= get_check(check_set(), BETTER).value
    assert NOT_WORSE in get_failed(worse) and get_check(worse, NOT_WORSE).value < 0.05
    assert BETTER in get_failed(check_set(make_set(**WORSE)))


@pytest.mark.heavy
def test_check_non_inferior_power_grows_with_rows() -> None:
    few, many = (
        sum(check_after_erasure(builders.make_related_set(rows, 1.2, 1.2, seed)).is_approved for seed in range(20))
        for rows in (60, 1000)
    )
    assert many >= 19 and few < many


@pytest.mark.heavy
def test_check_non_inferior_keeps_error_level() -> None:
    margin = builders.compute_true_auroc(1.0) - builders.compute_true_auroc(0.9)
    passed = {0.5: 0, 1: 0, 2: 0}
    for share, seed in itertools.product(passed, range(100)):
        params = PARAMS.model_copy(update={"erasure_margin": share * margin})
        passed[share] += (
            check_non_inferior(builders.make_related_set(500, 0.9, 1.0, seed), CHAMPION, params).passed is True
        )
    assert passed[0.5] <= passed[1] <= 12 and passed[2] >= 40, passed


def test_check_non_inferior_grows_with_margin_and_is_weighted() -> None:
    holdout = builders.make_related_set(400, 1.1, 1.2, seed=3)

    def compute(weight: np.ndarray | None = None, margin: float = PARAMS.erasure_margin) -> float:
        decision = check_after_erasure(replace(holdout, weight=weight), erasure_margin=margin)
        return float(get_check(decision, NOT_WORSE).value)

    chances = [compute(margin=margin) for margin in (1e-9, 0.01, 0.05, 0.5)]
    assert chances == sorted(chances) and chances[0] < 0.95 <= chances[-1]
    wrong = (holdout.confidences[CANDIDATE] < holdout.confidences[CHAMPION]) & (holdout.correct == 1)
    assert compute(np.where(wrong, 1.0, 0.2)) < compute() == pytest.approx(compute(np.full(400, 7.0)))


def test_check_precision_difference_less_precise_fails() -> None:
    holdout = make_equal_set()
    measured = {"threshold": 0.05, "champion_threshold": 0.8, "target_precision": 0.5}
    decision = check_set(holdout, rule="non_inferior", **measured)
    check = get_check(decision, "as precise")
    assert get_failed(decision) == {"as precise"} and check.value < check.limit
    shows_nothing = check_set(holdout, rule="non_inferior", **measured | {"champion_threshold": 1.1})
    assert get_check(shows_nothing, "as precise").passed is None


@pytest.mark.parametrize("changes", [{"correct": np.ones(400, int)}, {"groups": np.full(400, "doc-0")}])
def test_check_candidate_uninformative_holdout_fails(changes: dict[str, np.ndarray]) -> None:
    assert NOT_WORSE in get_failed(check_after_erasure(replace(make_equal_set(), **changes)))
    for champion in (CHAMPION, None):
        decision = check_set(replace(make_set(), **changes), champion=champion)
        better = [check for check in decision.checks if check.name.startswith("better than")]
        assert better and all(check.passed is False and not check.value > 0 for check in better)


def test_check_candidate_erasure_keeps_other_limits() -> None:
    measured = {"parity": 1.0, "latency_p99_ms": 99.0, "threshold": 0.05, "target_precision": 0.95}
    decision = check_set(make_equal_set(), rule="non_inferior", same_holdout=False, max_slice_drop=0.9, **measured)
    assert {"ONNX parity", "latency", "same hold-out", "precision"} <= get_failed(decision)
    assert get_failed(check_set(same_holdout=False)) == {"same hold-out"}
    assert "without 3 of its answers" in get_check(check_set(erased=3), "same hold-out").message


def test_check_candidate_accepted_worse_is_not_judged() -> None:
    def check(rule: str, **options: Any) -> PromotionDecision:
        newest = make_set(rows=60, probe=0.2, champion=2.0, seed=10)
        return check_set(make_set(**WORSE), newest, target_precision=0.6, rule=rule, **options)

    decision, failed = check("accepted"), get_failed(check("non_inferior"))
    assert decision.is_approved
    for name in (NOT_WORSE, "newest split"):
        found = get_check(decision, name)
        assert found.passed is None and found.value < found.limit and name in failed
    assert not check("accepted", parity=1.0).is_approved
    assert get_failed(check("accepted", same_holdout=False)) == {"same hold-out"}


def test_check_candidate_first_version_beats_baselines() -> None:
    holdout = make_set()
    decision = check_set(holdout, champion=None)
    names = {check.name for check in decision.checks}
    assert decision.is_approved
    assert {"better than length_only", "better than base rate"} < names and "same hold-out" not in names
    holdout.confidences["length_only"] = holdout.confidences[CANDIDATE].copy()
    assert get_failed(check_set(holdout, champion=None)) == {"better than length_only"}


@pytest.mark.parametrize(("threshold", "failed"), [(0.0, set()), (1.1, {"precision"}), (float("nan"), {"precision"})])
def test_check_candidate_first_version_shows_all_or_none_fails(threshold: float, failed: set[str]) -> None:
    decision = check_set(champion=None, threshold=threshold, target_precision=0.5)
    assert get_failed(decision) == {"better than base rate"} | failed


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


def test_check_candidate_missing_guarantee_only_if_allowed() -> None:
    few = make_set(rows=12, probe=0.0)
    first = check_set(few, few, champion=None, **UNGUARANTEED)
    assert first.is_approved and not check_set(few, few, champion=None).is_approved
    judged = {check.name for check in first.checks if check.passed is not None}
    assert judged == {"guarantee", "ONNX parity", "latency"}
    for changes, failed in (({"allow_missing_guarantee": False}, "guarantee"), ({"latency_p99_ms": 21}, "latency")):
        assert get_failed(check_set(few, few, champion=None, **UNGUARANTEED | changes)) == {failed}


def test_conclude_guarantee_active_unchecked_or_missing() -> None:
    limits = {"precision_low": 0.8, "precision_high": None, "error_rate_low": None, "error_rate_high": 0.06}
    holdout = make_holdout_metrics({"coverage": 0.4, "precision": 0.9, "shown": 40, **limits}, rows=100)
    tuned, missing = make_guarantee(status="unchecked", holdout=None), make_missing_guarantee(500)
    for allowed in (True, False):
        decision = check_set(champion=None, **UNGUARANTEED | {"allow_missing_guarantee": allowed})
        assert decision.is_approved is allowed and decision.conclude(missing, holdout) == missing
        assert decision.conclude(tuned, holdout) == tuned.model_copy(update={"additional_reviews": 500})
    kept, missed = check_set(), check_set(target_precision=1.2)
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
    return explain_unchecked_guarantee(holdout, threshold, builders.MIN_N_EFF, reviews=reviews, frozen=frozen)


@pytest.mark.parametrize(("shown", "more"), [(0, None), (1, 1140), (12, 40), (13, 33), (19, 4)])
def test_explain_unchecked_guarantee_too_few_shown(shown: int, more: int | None) -> None:
    unchecked = explain(make_shown_set(shown))
    assert (unchecked.n_eff_shown, unchecked.additional_reviews) == (shown, more)
    assert f"shows {shown or 'none'} of" in unchecked.reason
    assert more is None or f"about {more:,} more reviews" in unchecked.reason


def test_explain_unchecked_guarantee_counts_n_eff_unless_frozen() -> None:
    assert explain(make_shown_set(20)) is None
    assert explain(make_shown_set(20), 0.95) is not None
    weight = np.repeat([1.0, 0.1, 1.0], [10, 30, 50])
    unchecked = explain(replace(make_shown_set(40), weight=weight), reviews=100)
    assert unchecked.n_eff_shown == pytest.approx(13**2 / 10.3) and unchecked.additional_reviews == 22
    frozen = explain(make_shown_set(12), frozen=True)
    assert frozen.additional_reviews is None and "split.holdout_frozen_at" in frozen.reason


def test_check_candidate_unchecked_guarantee_counts_as_none() -> None:
    few = make_shown_set(12)
    few.confidences["length_only"] = few.confidences[CANDIDATE]
    first = check_set(few, few, champion=None, missing_guarantee=explain(few), allow_missing_guarantee=True)
    assert first.is_approved and not first.has_guarantee and first.additional_reviews == 40
    guarantee = get_check(first, "guarantee")
    assert guarantee.message.startswith("not checked yet") and (guarantee.value, guarantee.limit) == (12, 20)


def print_passed_when_worse(samples: int) -> None:
    """Print how often a worse candidate replaces a tainted champion: a row for each correlation and loss."""
    for correlation, loss in itertools.product((0.9, 0.99, 0.999), (0.0, 0.01, 0.02, 0.04)):
        sharpness = NormalDist().inv_cdf(builders.compute_true_auroc(1.0) - loss) / 2**0.5
        shares = []
        for rows in (100, 200, 500, 1000):
            sets = (builders.make_related_set(rows, sharpness, 1.0, seed, correlation) for seed in range(samples))
            shares.append(np.mean([check_non_inferior(one, CHAMPION, PARAMS).passed for one in sets]))
        print(f"| {correlation} | {loss} |", " | ".join(f"{share:.1%}" for share in shares), "|")


if __name__ == "__main__":
    evaluation_set.RESAMPLING = BootstrapConfig(100, 3)
    print_passed_when_worse(int(sys.argv[1]))


@pytest.mark.soak(twin="test_promotion_better_candidate_within_five_nights")
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
