"""Promotion checks for degradations of coverage, precision, AUROC on the newest split, products and calibration.

Each check compares a metric with its reference (the champion's value or the target). It fails if the metric falls short
by more than the tolerance and by more than chance explains. `promotion.false_rejection_rate` is the probability that
any check of a decision fails although nothing got worse; each check has an equal part of it (Bonferroni). With few rows
only a large degradation can be distinguished from chance; a value in between is reported as not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from abstain.config.params import PromotionParams
from abstain.core.codes import Code
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import RESAMPLING, bootstrap, paired_difference
from abstain.release.evaluation_set import (
    CANDIDATE,
    EvaluationSet,
    PromotionCheck,
    check_at_least,
    check_at_most,
    correct_bootstrap_error,
    format_count_with_n_eff,
)

AS_PRECISE = "as precise"
COVERAGE = "coverage"
CHAMPION_CHECKS = (COVERAGE, "newest split", AS_PRECISE)
"""Names of the checks that compare with the champion."""
N_ECE_SIMULATIONS = 200
"""Number of simulations of the calibration error of calibrated probabilities."""


@dataclass(frozen=True)
class DegradationCheck:
    """A check that a metric does not fall short of its reference by more than a tolerance.

    Attributes:
        check: The check with the metric, its limit and a message.
        tolerance: Accepted shortfall.
        standard_error: Standard error of the metric.
        groups: Number of groups that the metric was estimated from.
    """

    check: PromotionCheck
    tolerance: float
    standard_error: float
    groups: int


def apply_significance(checks: Sequence[DegradationCheck], params: PromotionParams) -> list[PromotionCheck]:
    """Mark checks as not judged if their rows cannot distinguish a real degradation from chance.

    Alpha, `promotion.false_rejection_rate`, is divided by the number of checks (Bonferroni). A check whose metric is so
    low that chance does not explain it still fails. Undefined metrics and checks that are already not judged stay
    unchanged.

    Args:
        checks: Degradation checks with tolerance, standard error and number of groups.
        params: Promotion parameters.

    Returns:
        One `PromotionCheck` for each input, in the same order.
    """
    from scipy.stats import t

    alpha = params.false_rejection_rate / max(1, sum(degradation.check.passed is not None for degradation in checks))
    results = []
    for degradation in checks:
        shortfall = degradation.tolerance + abs(degradation.check.value - degradation.check.limit)
        chance_deviation = (
            float(t.isf(alpha, degradation.groups - 1)) * degradation.standard_error
            if degradation.groups > 1
            else float("inf")
        )
        is_inconclusive = (
            degradation.tolerance < chance_deviation if degradation.check.passed else shortfall < chance_deviation
        )
        if degradation.check.passed is not None and is_inconclusive:
            message = f"{degradation.check.message}; not judged: {chance_deviation:.2f} is what chance may make of it"
            results.append(replace(degradation.check, passed=None, message=message))
        else:
            results.append(degradation.check)
    return results


def check_products_and_calibration(
    evaluation: EvaluationSet, threshold: float, target_precision: float, params: PromotionParams, min_n_eff: int
) -> list[DegradationCheck]:
    """Check precision by product against the target, and the calibration error, on the hold-out.

    Args:
        evaluation: Reviewed hold-out answers.
        threshold: The candidate's threshold.
        target_precision: Target precision.
        params: Promotion parameters.
        min_n_eff: Smallest effective sample size for which a product is judged.

    Returns:
        One check for each product, in alphabetical order, then the calibration check.
    """
    products = _check_products(evaluation, threshold, target_precision, params, min_n_eff)
    return [*products, _check_calibration(evaluation, params)]


def check_precision_drop(
    evaluation: EvaluationSet, threshold: float, target_precision: float, params: PromotionParams
) -> DegradationCheck:
    """Check the precision at a threshold that was tuned for an error rate, against that on the validation split.

    Args:
        evaluation: Reviewed hold-out answers.
        threshold: The candidate's threshold.
        target_precision: Precision at this threshold on the validation split.
        params: Promotion parameters.

    Returns:
        The check.
    """
    shown = evaluation.get_shown_mask(threshold)
    precision, _ = evaluation.compute_precision(shown)
    floor = target_precision - params.max_precision_drop
    error = compute_precision_error(evaluation, shown)
    message = f"{precision:.3f} of {int(shown.sum())} shown answers; at least {floor:.3f}"
    check = check_at_least(Code.TARGET_MISSED, "precision", precision, floor, message)
    return make_degradation_check(evaluation, check, params.max_precision_drop, error, shown)


def check_coverage_drop(
    evaluation: EvaluationSet,
    threshold: float,
    champion: str,
    champion_threshold: float,
    same_target: bool,
    prior_coverage_loss: float,
    params: PromotionParams,
) -> DegradationCheck:
    """Check the candidate's coverage against the champion's.

    Args:
        evaluation: Answers with the confidences of both.
        threshold: The candidate's threshold.
        champion: Name of the champion's column.
        champion_threshold: The champion's threshold.
        same_target: Whether both thresholds were tuned for the same target. If not, the check is not judged, and its
            value is nan so that no loss is counted later.
        prior_coverage_loss: Coverage that the champion lost against its predecessors, as a share of all answers.
        params: Promotion parameters.

    Returns:
        The check with the difference in coverage, less the prior loss.
    """
    shown_by_scorer = {
        CANDIDATE: evaluation.get_shown_mask(threshold),
        champion: evaluation.get_shown_mask(champion_threshold, champion),
    }
    estimates = evaluation.bootstrap(
        {name: partial(metrics.weighted_mean, mask.astype(float)) for name, mask in shown_by_scorer.items()}
    )
    candidate_coverage, champion_coverage = estimates[CANDIDATE], estimates[champion]
    difference = paired_difference(candidate_coverage, champion_coverage)
    message = f"{candidate_coverage.value:.0%} of the answers shown, {champion_coverage.value:.0%} by {champion}"
    if prior_coverage_loss:
        message += f", which shows {prior_coverage_loss:.0%} less than before"
    check = check_at_least(
        Code.NOT_BETTER, COVERAGE, difference.value - prior_coverage_loss, -params.max_coverage_drop, message
    )
    if not same_target:
        check = replace(check, passed=None, value=float("nan"), message=f"{message}; another target was asked for")
    return make_degradation_check(evaluation, check, params.max_coverage_drop, difference.standard_error)


def check_precision_difference(
    evaluation: EvaluationSet,
    threshold: float,
    champion: str,
    champion_threshold: float,
    params: PromotionParams,
    min_n_eff: int,
) -> DegradationCheck:
    """Check the candidate's precision against the champion's, each at its own threshold.

    Args:
        evaluation: Answers with the confidences of both.
        threshold: The candidate's threshold.
        champion: Name of the champion's column.
        champion_threshold: The champion's threshold.
        params: Promotion parameters.
        min_n_eff: Smallest effective sample size of the champion's shown answers for which the check is judged.

    Returns:
        The check.
    """
    threshold_by_scorer = {CANDIDATE: threshold, champion: champion_threshold}
    statistics = {
        name: partial(metrics.precision, evaluation.correct, evaluation.confidences[name], threshold=scorer_threshold)
        for name, scorer_threshold in threshold_by_scorer.items()
    }
    estimates = evaluation.bootstrap(statistics)
    candidate_precision, champion_precision = estimates[CANDIDATE], estimates[champion]
    difference = paired_difference(candidate_precision, champion_precision)
    shown_by_scorer = {
        name: evaluation.get_shown_mask(scorer_threshold, name)
        for name, scorer_threshold in threshold_by_scorer.items()
    }
    _, n_eff = evaluation.compute_precision(shown_by_scorer[champion])
    message = (
        f"{candidate_precision.value:.3f} of the shown answers, {champion_precision.value:.3f} of those that "
        f"{champion} shows"
    )
    check = check_at_least(Code.TARGET_MISSED, AS_PRECISE, difference.value, -params.max_precision_drop, message)
    if n_eff < min_n_eff:
        reason = f"{champion} shows {n_eff:.0f} answers, too few to compare with"
        check = replace(check, passed=None, message=reason)
    rows = shown_by_scorer[CANDIDATE] | shown_by_scorer[champion]
    return make_degradation_check(evaluation, check, params.max_precision_drop, difference.standard_error, rows)


def check_newest_drop(
    evaluation: EvaluationSet, champion: str, params: PromotionParams, min_n_eff: int
) -> DegradationCheck:
    """Check the candidate's AUROC on the newest split against the champion's.

    Args:
        evaluation: Answers of the newest split with the confidences of both.
        champion: Name of the champion's column.
        params: Promotion parameters.
        min_n_eff: Smallest effective sample size for which the check is judged.

    Returns:
        The check; not judged if there are too few reviewed answers or all have the same label.
    """
    rows = len(evaluation.correct)
    candidate_auroc, champion_auroc = evaluation.compute_aurocs(champion)
    difference = paired_difference(candidate_auroc, champion_auroc)
    _, n_eff = evaluation.compute_precision(np.ones(rows, bool))
    message = f"AUROC {candidate_auroc.value:.3f} against {champion_auroc.value:.3f}, {rows} answers"
    check = check_at_least(Code.NOT_BETTER, "newest split", difference.value, -params.max_newest_drop, message)
    if n_eff < min_n_eff or len(np.unique(evaluation.correct)) < 2:
        reason = "too few to judge" if n_eff < min_n_eff else "all of one kind"
        check = replace(
            check, passed=None, message=f"{format_count_with_n_eff(rows, n_eff)} reviewed answers, {reason}"
        )
    return make_degradation_check(evaluation, check, params.max_newest_drop, difference.standard_error)


def _check_products(
    evaluation: EvaluationSet, threshold: float, target_precision: float, params: PromotionParams, min_n_eff: int
) -> list[DegradationCheck]:
    checks = []
    shown = evaluation.get_shown_mask(threshold)
    floor = target_precision - params.max_slice_drop
    for product in sorted(set(evaluation.products)):
        rows = shown & (evaluation.products == product)
        precision, n_eff = evaluation.compute_precision(rows)
        message = f"precision {precision:.3f} of {format_count_with_n_eff(int(rows.sum()), n_eff)} shown answers"
        check = check_at_least(Code.TARGET_MISSED, f"slice {product}", precision, floor, message)
        is_too_small = n_eff < min_n_eff
        error = 0.0 if is_too_small else compute_precision_error(evaluation, rows)
        check = replace(check, passed=None) if is_too_small else check
        checks.append(make_degradation_check(evaluation, check, params.max_slice_drop, error, rows))
    return checks


def _check_calibration(evaluation: EvaluationSet, params: PromotionParams) -> DegradationCheck:
    """Check the expected calibration error against its value for calibrated probabilities.

    The chance error is simulated: labels are drawn with the stated probabilities.
    """
    probabilities = evaluation.confidences[CANDIDATE] if evaluation.probabilities is None else evaluation.probabilities
    value = metrics.ece(evaluation.correct, probabilities, evaluation.weight)
    check = check_at_most(
        Code.LIMIT_EXCEEDED, "calibration", value, params.max_ece, "expected calibration error on the hold-out"
    )
    generator = np.random.default_rng(RESAMPLING.seed)
    simulated = [
        metrics.ece(
            (generator.random(len(probabilities)) < probabilities).astype(int), probabilities, evaluation.weight
        )
        for _ in range(N_ECE_SIMULATIONS)
    ]
    # Calibrated probabilities have an error above 0, too; its mean is the reference.
    return make_degradation_check(
        evaluation, check, params.max_ece - float(np.mean(simulated)), float(np.std(simulated))
    )


def make_degradation_check(
    evaluation: EvaluationSet, check: PromotionCheck, tolerance: float, error: float, rows: np.ndarray | None = None
) -> DegradationCheck:
    """Make a degradation check from a bootstrap error.

    Args:
        evaluation: Answers that the metric was computed on.
        check: The check with the metric and its limit.
        tolerance: Accepted shortfall.
        error: Standard error by bootstrap, before the correction for few groups.
        rows: (rows,) mask of the answers that the metric is based on; None for all.

    Returns:
        The check with the corrected standard error and the number of groups.
    """
    groups = len(np.unique(evaluation.groups if rows is None else evaluation.groups[rows]))
    return DegradationCheck(check, tolerance, correct_bootstrap_error(error, groups), groups)


def compute_precision_error(evaluation: EvaluationSet, rows: np.ndarray) -> float:
    """Estimate the standard error of precision by resampling groups.

    Args:
        evaluation: Reviewed answers.
        rows: (rows,) bool mask of the answers to include.

    Returns:
        The standard error; nan if `rows` is empty.
    """
    if not rows.any():
        return float("nan")
    statistics = {"precision": partial(metrics.weighted_mean, evaluation.correct[rows])}
    weight = None if evaluation.weight is None else evaluation.weight[rows]
    estimates = bootstrap(
        statistics, evaluation.groups[rows], n_resamples=RESAMPLING.n_resamples, seed=RESAMPLING.seed, weight=weight
    )
    return estimates["precision"].standard_error
