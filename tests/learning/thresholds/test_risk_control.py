import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom

from abstain.config.params import ThresholdParams
from abstain.core.errors import AbstainError
from abstain.learning.thresholds.guarantee import MIN_GROUPS, VOID_IF, Guarantee, TargetMetric, can_check
from abstain.learning.thresholds.outcomes import ControlledThreshold, InfeasibleThreshold
from abstain.learning.thresholds.reviews_needed import estimate_reviews_needed
from abstain.learning.thresholds.risk_control import (
    ReviewedAnswers,
    choose_candidate_thresholds,
    control_risk,
    control_risk_by_params,
)
from benchmarks.guarantee import (
    Cell,
    Population,
    as_if_independent,
    compute_max_violations,
    find_guaranteed_threshold,
    find_heuristic_threshold,
    make_procedure,
    make_threshold_params,
)
from tests.learning.thresholds.builders import EVIDENCE, make_guarantee, make_missing_guarantee

RUNS = 500
CELLS = {
    "incorrect answers that weigh more": Cell(Population(0.75, 0.0, review_ratio=4.0), 150, 10),
    "documents that err together": Cell(Population(0.75, 0.2), 20, 30),
    "such documents, unevenly reviewed": Cell(Population(0.75, 0.2, review_ratio=0.25), 20, 30),
    "scores that are alike within a document, too": Cell(Population(0.85, 0.2, score_correlation=0.3), 50, 10),
    "confidences that say nothing": Cell(Population(0.503, 0.0, base_rate=0.78), 50, 10),
    "an error rate": Cell(Population(0.75, 0.2), 50, 10, make_threshold_params(0.1, "error_rate")),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", CELLS)
def test_control_risk_violation_rate_is_within_alpha(name: str) -> None:
    found = CELLS[name].run({"guarantee": find_guaranteed_threshold}, RUNS)["guarantee"]
    assert found.n_violated <= compute_max_violations(RUNS)


@pytest.mark.heavy
@pytest.mark.soak(twin="test_control_risk_violation_rate_is_within_alpha")
def test_control_risk_naive_procedures_violate_more_often() -> None:
    overlooking = {"documents": make_procedure(as_if_independent), "that it was tuned": find_heuristic_threshold}
    found = CELLS["documents that err together"].run(overlooking, 300)
    assert all(record.n_violated > compute_max_violations(300) for record in found.values())

    def without_weights(tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams) -> float | None:
        return find_guaranteed_threshold(replace(tested, weight=None), replace(training, weight=None), params)

    found = CELLS["incorrect answers that weigh more"].run({"weights": without_weights}, 100)
    assert found["weights"].n_violated > compute_max_violations(100)


@pytest.mark.heavy
@pytest.mark.parametrize("liked_often", [1.0, 0.25], ids=["even", "uneven"])
def test_control_risk_twenty_documents_keep_coverage(liked_often: float) -> None:
    cell = Cell(Population(0.75, 0.1, liked_often), 20, 30)
    found = cell.run({"guarantee": find_guaranteed_threshold}, 150)["guarantee"]
    assert found.mean_coverage >= 0.6 * cell.population.compute_max_coverage(cell.params)


def test_control_risk_few_documents_give_no_guarantee() -> None:
    tested, enough = (replace(make_answers((0.9, 80, 0)), groups=np.arange(80) % groups) for groups in (8, MIN_GROUPS))
    made = control_risk_by_params(tested, enough, make_threshold_params())
    assert isinstance(made, InfeasibleThreshold) and made.groups == 8
    assert (made.reviews_needed, made.additional_reviews) == (80 * MIN_GROUPS / 8, 20)
    assert f"about 8 documents were reviewed: review answers about {MIN_GROUPS} or more" in made.to_guarantee().message
    assert isinstance(control_risk_by_params(enough, tested, make_threshold_params()), ControlledThreshold)


def test_control_risk_reviews_needed_reach_stated_power() -> None:
    population, params = Population(0.75), make_threshold_params(0.85)

    def made(documents: int, sample: int) -> ControlledThreshold | InfeasibleThreshold:
        generator = np.random.default_rng([23, sample])
        tested, training = (population.draw(number, 5, generator) for number in (documents, 2 * documents))
        return control_risk_by_params(tested, training, params)

    refused = [found for sample in range(60) if isinstance(found := made(40, sample), InfeasibleThreshold)]
    needed = int(np.median([found.reviews_needed for found in refused if found.reviews_needed is not None]))
    assert len(refused) > 30 and needed > 200
    kept = sum(isinstance(made(needed // 5, 1000 + sample), ControlledThreshold) for sample in range(100))
    assert kept == pytest.approx(80, abs=15)


def make_answers(*groups: tuple[float, int, int]) -> ReviewedAnswers:
    """Answers from (confidence, how many right, how many wrong)."""
    values, right, wrong = zip(*groups, strict=True)
    correct = np.repeat([1, 0] * len(groups), np.ravel([right, wrong], "F"))
    return ReviewedAnswers(np.repeat(values, np.add(right, wrong)), correct)


TESTED = make_answers((0.9, 40, 0), (0.6, 18, 2), (0.3, 18, 22))
TRAINING = make_answers((0.9, 38, 2), (0.6, 20, 4), (0.3, 20, 16))


def test_control_risk_matches_hand_computation() -> None:
    """40 right of 40, then 58 of 60 (p 0.053), then 76 of 100: the last is what 0.9 does not reach."""
    made = control_risk_by_params(TESTED, TRAINING, make_threshold_params(0.9))
    assert isinstance(made, ControlledThreshold)
    assert (made.threshold, made.shown) == (0.6, 60)
    guarantee = made.to_guarantee()
    evidence, estimates = guarantee.evidence, guarantee.estimates
    assert (guarantee.status, guarantee.metric, guarantee.population) == ("unchecked", "precision", "all_answers")
    assert (guarantee.target, guarantee.confidence) == (0.9, 0.9)
    assert (evidence.reviews, evidence.groups, evidence.n_eff, evidence.icc) == (100, 100, 60, 0.0)
    assert (evidence.sampled, evidence.reviewers, evidence.largest_reviewer_share) == (True, None, None)
    assert evidence.p_value == pytest.approx(sum(math.comb(60, k) * 0.1**k * 0.9 ** (60 - k) for k in range(3)))
    assert estimates.model_dump() == pytest.approx({"coverage": 0.6, "precision": 58 / 60, "error_rate": 0.02})
    assert (guarantee.holdout, guarantee.void_if, guarantee.additional_reviews) == (None, VOID_IF, None)


RARELY, OFTEN = "r-0123456789abcdef0123", "r-fedcba98765432100000"


def set_reviewers(tested: ReviewedAnswers, *names: list[str]) -> ReviewedAnswers:
    """The same, judged by each of `names` in turn."""
    every = np.empty(len(tested.correct), object)
    every[:] = [names[at % len(names)] for at in range(len(every))]
    return replace(tested, reviewers=every)


def test_control_risk_reports_largest_reviewer_share() -> None:
    by = set_reviewers(TESTED, [OFTEN], [RARELY, OFTEN])
    made = control_risk_by_params(by, TRAINING, make_threshold_params(0.9))
    evidence = made.to_guarantee().evidence
    assert (evidence.largest_reviewer_share, evidence.reviewers) == (0.75, 2)
    assert not any(name in made.to_guarantee().model_dump_json() for name in (OFTEN[:10], RARELY[:10]))
    # A precision is of the shown answers, an error rate of all.
    assert by.reviewers is not None
    by.reviewers[60:] = [[RARELY]] * 40
    for metric, target, most in (("precision", 0.9, 0.75), ("error_rate", 0.06, 0.55)):
        made = control_risk_by_params(by, TRAINING, make_threshold_params(target, metric))
        assert isinstance(made, ControlledThreshold) and made.threshold == 0.6 and made.largest_reviewer is not None
        assert made.largest_reviewer.share == pytest.approx(most)
    rows = set_reviewers(make_answers((0.9, 2, 0)), [RARELY], [OFTEN])
    largest = replace(rows, weight=np.array([0.2, 1.0])).find_largest_reviewer("precision", 0.5)
    assert largest is not None and largest.share == pytest.approx(1 / 1.2)
    assert rows.find_largest_reviewer("precision", 0.95) is None


def test_control_risk_dominant_reviewer_gives_no_guarantee() -> None:
    five, params = [[f"sme-{n}"] for n in range(5)], make_threshold_params(0.9, max_reviewer_share=0.2)
    kept, refused = (
        control_risk_by_params(set_reviewers(TESTED, *names), TRAINING, params, validation_share=0.5)
        for names in (five, five[:2])
    )
    assert isinstance(kept, ControlledThreshold)
    assert isinstance(refused, InfeasibleThreshold) and refused.to_guarantee().status == "none"
    assert (refused.reviews_needed, refused.additional_reviews) == (250, 300)
    assert "one of 2 reviewers wrote 50.0 % of the reviews" in refused.to_guarantee().message
    # As many more by others, and the share is within the limit.
    more = set_reviewers(make_answers((0.9, 140, 0), (0.6, 63, 7), (0.3, 18, 22)), *five)
    assert isinstance(control_risk_by_params(more, TRAINING, params), ControlledThreshold)


def test_control_risk_error_rate_counts_all_answers() -> None:
    for training in (TRAINING, make_answers((0.9, 0, 40), (0.6, 0, 24), (0.3, 36, 0))):
        made = control_risk_by_params(TESTED, training, make_threshold_params(0.06, "error_rate"))
        assert isinstance(made, ControlledThreshold)
        assert (made.threshold, made.error_rate, made.shown) == (0.6, pytest.approx(0.02), 60)
        assert made.p_value == pytest.approx(sum(math.comb(100, k) * 0.06**k * 0.94 ** (100 - k) for k in range(3)))


def test_control_risk_self_selected_limits_population() -> None:
    self_selected = replace(make_answers((0.9, 60, 1)), groups=np.arange(61) % 20, sampled=False)
    made = control_risk_by_params(self_selected, TRAINING, make_threshold_params(0.9))
    assert isinstance(made, ControlledThreshold) and made.sampled is False
    guarantee = made.to_guarantee()
    assert guarantee.population == "answers_like_reviewed" and "like the reviewed ones" in guarantee.message
    assert (guarantee.evidence.groups, guarantee.evidence.n_eff) == (20, 59)


def test_control_risk_too_few_reviews_estimates_needed() -> None:
    """38 + 19 of 40 + 20 right at the threshold tried first, which shows 40 of 100 + 20 of 50 answers."""
    tested, training = make_answers((0.9, 19, 1), (0.3, 10, 20)), make_answers((0.9, 38, 2), (0.3, 20, 40))
    made = control_risk_by_params(tested, training, make_threshold_params(0.9))
    assert isinstance(made, InfeasibleThreshold) and made.additional_reviews is not None
    assert made.reviews_needed == estimate_reviews_needed("precision", 0.9, 0.9, 0.95, 0.4) == 383
    of_quarter = control_risk_by_params(tested, training, make_threshold_params(0.9), validation_share=0.25)
    assert isinstance(of_quarter, InfeasibleThreshold) and of_quarter.additional_reviews == 4 * made.additional_reviews
    assert (made.threshold, made.precision, made.coverage) == (0.9, pytest.approx(0.95), 0.4)
    guarantee = made.to_guarantee()
    assert guarantee.status == "none" and guarantee.additional_reviews == made.additional_reviews == 333


def test_control_risk_needed_reviews_count_weights_and_groups() -> None:
    """The number of reviews depends on the ratios of weights, not their unit, and on answers that err together."""
    tested, training = make_answers((0.9, 19, 1), (0.3, 10, 20)), make_answers((0.9, 38, 2), (0.3, 20, 40))
    requirement = make_threshold_params(0.9)

    def made(weights: np.ndarray) -> InfeasibleThreshold:
        found = control_risk_by_params(replace(tested, weight=weights), training, requirement)
        assert isinstance(found, InfeasibleThreshold)
        return found

    assert made(np.full(50, 7.0)).reviews_needed == 383
    heavier = made(np.where((tested.correct == 0) & (tested.confidence == 0.9), 1.0, 0.5))
    assert (heavier.precision, heavier.coverage) == pytest.approx((47.5 / 50.5, 50.5 / 125.5))
    for metric, target, counted, reached in (("precision", 0.9, 60, 0.95), ("error_rate", 0.05, 120, 0.025)):
        alike = replace(make_answers((0.9, 57, 3), (0.3, 10, 50)), groups=np.r_[np.arange(57) // 3, [19] * 3, 20:80])
        found = control_risk_by_params(alike, alike, make_threshold_params(target, metric))
        assert isinstance(found, InfeasibleThreshold) and found.n_eff < 0.9 * counted
        share = found.n_eff / counted
        needed = estimate_reviews_needed(found.metric, target, 0.9, reached, 0.5, effective_share=share)
        assert found.reviews_needed == pytest.approx(needed, rel=0.05)


def test_choose_candidate_thresholds_spaced_by_weight() -> None:
    values = np.arange(1, 1001) / 1000
    training = ReviewedAnswers(values, np.ones(1000, int), np.where(values > 0.9, 9.0, 1.0))
    assert (choose_candidate_thresholds(training) > 0.9).mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("metric", ["error_rate", "precision"])
def test_control_risk_bad_estimate_gives_lower_bound(metric: TargetMetric) -> None:
    """2 of 10 + 20 are incorrect and 5 % are tolerated: a truth of 1.2 % would show as many one time in twenty."""
    withheld = ((0.3, 0, 10), (0.3, 0, 20)) if metric == "precision" else ()
    few = [make_answers((0.9, right, 1), *withheld[at : at + 1]) for at, right in enumerate((9, 19))]
    requirement = make_threshold_params(0.95 if withheld else 0.05, metric)
    made = control_risk_by_params(few[0], few[1], requirement, validation_share=0.25)
    assert isinstance(made, InfeasibleThreshold) and made.is_lower_bound
    best = beta.ppf(0.05, 2, 29)
    reached, coverage = (1 - best, 0.5) if withheld else (best, 1.0)
    assert made.reviews_needed == estimate_reviews_needed(metric, requirement.target, 0.9, reached, coverage)
    many = make_answers((0.9, 900, 100))
    hopeless = control_risk_by_params(many, many, make_threshold_params(0.05, "error_rate")).to_guarantee()
    assert (hopeless.status, hopeless.additional_reviews) == ("none", None)


def test_control_risk_weak_scorer_needs_lower_target() -> None:
    poor = make_answers((0.9, 32, 8), (0.3, 30, 30))
    made = control_risk_by_params(poor, poor, make_threshold_params(0.95))
    assert isinstance(made, InfeasibleThreshold) and made.reviews_needed is None
    assert made.to_guarantee().estimates.precision == pytest.approx(0.8)
    assert "will not help: lower threshold.target" in made.to_guarantee().message
    made = control_risk_by_params(poor, poor, make_threshold_params(0.01, "error_rate"))
    assert made.error_rate == pytest.approx(0.08) and "raise threshold.target" in made.to_guarantee().message


@pytest.mark.parametrize(("target", "metric"), [(0.05, "error_rate"), (0.9, "precision")])
def test_control_risk_different_scales_raise(target: float, metric: str) -> None:
    tested, training = make_answers((0.5, 60, 40)), make_answers((0.9, 60, 0), (0.7, 60, 40))
    with pytest.raises(AbstainError, match=r"0\.700 or more.* on one scale"):
        control_risk_by_params(tested, training, make_threshold_params(target, metric))


tables = st.lists(
    st.tuples(st.integers(0, 10).map(lambda n: n / 10), st.integers(0, 30), st.integers(0, 6)), min_size=1, max_size=8
).filter(lambda groups: sum(right + wrong for _, right, wrong in groups) > 0)


@given(tables, tables, st.sampled_from([0.5, 0.8, 0.95]), st.sampled_from(["precision", "error_rate"]))
@settings(deadline=None, max_examples=40)
def test_control_risk_guarantee_is_significant(
    tested: list[tuple[float, int, int]], training: list[tuple[float, int, int]], target: float, metric: str
) -> None:
    rows, params = make_answers(*tested), make_threshold_params(target, metric)
    try:
        made = control_risk_by_params(rows, make_answers(*training), params)
    except AbstainError:
        learnt = make_answers(*training)
        assert rows.confidence.max() < learnt.confidence.max()
        return
    shown = rows.confidence >= made.threshold
    wrong = int((shown & (rows.correct == 0)).sum())
    if isinstance(made, ControlledThreshold):
        of, tolerated = (shown.sum(), 1 - target) if metric == "precision" else (len(shown), target)
        assert made.p_value == pytest.approx(binom.cdf(wrong, of, tolerated)) and made.p_value <= 0.1 + 1e-12
        assert made.shown == shown.sum() > 0
        assert made.precision == pytest.approx(1 - wrong / shown.sum())
        assert made.error_rate == pytest.approx(wrong / len(shown))
    else:
        # Where testing starts above every tested answer, more of them are no remedy.
        starts_above = rows.confidence.max() < make_answers(*training).confidence.max()
        assert starts_above or made.reviews_needed is None or made.reviews_needed > len(shown)
    guarantee = made.to_guarantee()
    assert Guarantee.model_validate_json(guarantee.model_dump_json()) == guarantee


def test_estimate_reviews_needed_matches_hand_computation() -> None:
    """Where all that is shown is right, 0.95 ** 45 is the first power of 0.95 that is at most 0.1."""
    assert estimate_reviews_needed("precision", 0.95, 0.9, 1.0, 1.0) == 45
    assert estimate_reviews_needed("precision", 0.95, 0.9, 1.0, 0.5) == 90
    assert estimate_reviews_needed("precision", 0.95, 0.9, 1.0, 0.5, effective_share=0.5) == 180
    assert estimate_reviews_needed("error_rate", 0.05, 0.9, 0.0, 0.5) == 45
    assert estimate_reviews_needed("precision", 0.95, 0.9, 0.95, 1.0) is None
    assert estimate_reviews_needed("precision", 0.95, 0.9, 0.9501, 1.0) is None  # by millions of reviews
    assert estimate_reviews_needed("error_rate", 0.05, 0.9, 0.06, 1.0) is None


@given(st.floats(0.6, 0.95), st.floats(0.02, 0.3), st.sampled_from([0.8, 0.9, 0.99]))
@settings(deadline=None, max_examples=20)
def test_estimate_reviews_needed_has_power_80_percent(target: float, better: float, confidence: float) -> None:
    reached = min(target + better, 1.0)
    needed = estimate_reviews_needed("precision", target, confidence, reached, 1.0)
    assert needed is not None

    def power(rows: int) -> float:
        few_enough = binom.cdf(np.arange(rows + 1), rows, 1 - target) <= 1 - confidence
        return float(binom.cdf(few_enough.sum() - 1, rows, 1 - reached))

    assert power(needed) >= 0.8
    assert min(power(rows) for rows in range(int(needed * 0.98) - 2, needed)) < 0.8


GOOD = make_answers((0.9, 60, 0), (0.3, 20, 20))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (replace(GOOD, confidence=np.full(100, np.nan)), "100 of 100"),
        (replace(GOOD, weight=np.zeros(100)), "100 of 100"),
        (ReviewedAnswers(np.array([]), np.array([], int)), "no reviewed answers"),
    ],
    ids=["confidence", "weight", "no rows"],
)
def test_control_risk_invalid_rows_or_requirement_raise(bad: ReviewedAnswers, message: str) -> None:
    for tested, training in ((bad, GOOD), (GOOD, bad)):
        with pytest.raises(AbstainError, match=message):
            control_risk_by_params(tested, training, make_threshold_params())
    for change in ({"metric": "auroc"}, {"target": 90.0}, {"confidence_level": 1.0}):
        with pytest.raises(ValueError, match="is none of"):
            control_risk(GOOD, GOOD, **{"metric": "precision", "target": 0.9, "confidence_level": 0.9} | change)


@pytest.mark.parametrize(("metric", "target"), [("precision", 0.9), ("error_rate", 0.02)])
@pytest.mark.parametrize("answers", [(0.9, 1, 0), (0.9, 0, 1), (0.2, 0, 50), (1.0, 5, 0)])
def test_control_risk_single_row_or_class_is_infeasible(
    answers: tuple[float, int, int], metric: str, target: float
) -> None:
    rows = make_answers(answers)
    made = control_risk_by_params(rows, rows, make_threshold_params(target, metric))
    assert isinstance(made, InfeasibleThreshold)
    assert made.precision == pytest.approx(rows.correct.mean())
    assert (made.reviews_needed is None) == (rows.correct.mean() == 0)


FEW_GROUPS = EVIDENCE.model_copy(update={"p_value": None, "groups": 8})
NO_REVIEWERS = FEW_GROUPS.model_copy(update={"groups": 10**9, "reviewers": None, "largest_reviewer_share": None})
EVERY = [
    make_guarantee(
        status=status, metric=metric, target=target, evidence=evidence, additional_reviews=more, population=population
    )
    for status in ("active", "unchecked", "none")
    for metric, target in (("precision", 0.975), ("error_rate", 0.5))
    for evidence, more in (
        (EVIDENCE, 1),
        (EVIDENCE, None),
        (FEW_GROUPS, None),
        (NO_REVIEWERS, None),
        (NO_REVIEWERS, 10**9),
    )
    for population in ("all_answers", "answers_like_reviewed")
]


@pytest.mark.parametrize("guarantee", EVERY)
def test_guarantee_is_one_sentence_and_its_summary_has_no_prose(guarantee: Guarantee) -> None:
    assert Guarantee.model_validate_json(guarantee.model_dump_json()) == guarantee
    assert re.fullmatch(r"[A-Z].*[^.]\.", guarantee.message) and ". " not in guarantee.message
    summary = guarantee.summarize()
    changes = {"evidence": FEW_GROUPS, "holdout": None, "additional_reviews": 7}
    assert guarantee.model_copy(update=changes).summarize() == summary and len(summary.model_dump_json()) < 150
    values = summary.model_dump()
    assert set(values) == {"status", "metric", "target", "confidence", "population"}
    assert all(isinstance(value, float) or re.fullmatch("[a-z_]+", value) for value in values.values())


def test_can_check_needs_answers_and_groups() -> None:
    assert can_check(20, 5, min_n_eff=20)
    assert not can_check(19.9, 50, min_n_eff=20) and not can_check(200, 4, min_n_eff=20)


@pytest.mark.parametrize(
    ("guarantee", "part"),
    [
        (make_guarantee(), "At least 80 % of the shown answers are correct (confidence 0.9)."),
        (make_guarantee(metric="error_rate", target=0.1), "At most 10 % of all answers are shown and incorrect"),
        (make_guarantee(status="unchecked", additional_reviews=40), "not checked on the hold-out yet: bring about 40"),
        (make_missing_guarantee(333), "bring about 333 more, or lower threshold.target"),
        (make_missing_guarantee(None), "train a better scorer"),
        (make_missing_guarantee(evidence=FEW_GROUPS), "review answers about 10 or more"),
        (make_missing_guarantee(evidence=EVIDENCE), "have others review about 500 more answers"),
    ],
    ids=["precision", "error rate", "unchecked", "few reviews", "hopeless", "few documents", "one reviewer"],
)
def test_guarantee_message_states_limit_status_and_remedy(guarantee: Guarantee, part: str) -> None:
    assert part in guarantee.message
