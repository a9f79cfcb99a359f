"""The gate's checks for what got worse: coverage, precision, newest window, products, calibration.

Each names a drop, and refuses where the figure is short of its reference (the champion's, the target) by more than that
and by more than chance makes it. `gate.false_refusals` is the chance that any of a decision's checks refuses where
nothing got worse, and each has an equal part of it (Bonferroni). With few rows only a larger drop can be told from
chance; a figure in between is shown, and not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from abstain.config.params import GateParams
from abstain.core.codes import Code
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import RESAMPLES, bootstrap, paired_difference
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
CHAMPION_CHECKS = (COVERAGE, "newest window", AS_PRECISE)
"""The checks that compare with the champion."""
N_ECE_SIMULATIONS = 200
"""Draws of the calibration error of calibrated probabilities."""


@dataclass(frozen=True)
class DegradationCheck:
    """A check that its figure is not short of its reference by more than `tolerance`.

    `error` is the figure's standard error, `groups` the number of documents that it is estimated from.
    """

    check: PromotionCheck
    tolerance: float
    standard_error: float
    groups: int


def apply_significance(found: Sequence[DegradationCheck], params: GateParams) -> list[PromotionCheck]:
    """The checks of `found`, of which those are not judged whose rows could not tell their drop from chance.

    Where a figure is so short that even chance does not explain it, it fails all the same. One whose figure is not
    defined, and one that is not judged for another reason, stays as it is.
    """
    from scipy.stats import t

    level = params.false_refusals / max(1, sum(one.check.passed is not None for one in found))
    checks = []
    for one in found:
        short = one.tolerance + abs(one.check.value - one.check.limit)
        by_chance = float(t.isf(level, one.groups - 1)) * one.standard_error if one.groups > 1 else float("inf")
        blind = one.tolerance < by_chance if one.check.passed else short < by_chance
        if one.check.passed is not None and blind:
            message = f"{one.check.message}; not judged: {by_chance:.2f} is what chance may make of it"
            checks.append(replace(one.check, passed=None, message=message))
        else:
            checks.append(one.check)
    return checks


def check_candidate_alone(
    window: EvaluationSet, threshold: float, target_precision: float, params: GateParams
) -> list[DegradationCheck]:
    """The precision of every product beside the target, and the calibration, on the hold-out."""
    return [*_check_products(window, threshold, target_precision, params), _check_calibration(window, params)]


def check_precision_drop(
    window: EvaluationSet, threshold: float, target_precision: float, params: GateParams
) -> DegradationCheck:
    """The precision at the threshold of an error rate, beside that on the validation split."""
    shown = window.get_shown_mask(threshold)
    precision, _ = window.compute_precision(shown)
    floor = target_precision - params.max_precision_drop
    error = compute_precision_error(window, shown)
    message = f"{precision:.3f} of {int(shown.sum())} shown answers; at least {floor:.3f}"
    check = check_at_least(Code.TARGET_MISSED, "precision", precision, floor, message)
    return make_degradation_check(window, check, params.max_precision_drop, error, shown)


def check_coverage_drop(
    window: EvaluationSet,
    threshold: float,
    champion: str,
    champion_threshold: float,
    same_target: bool,
    lost: float,
    params: GateParams,
) -> DegradationCheck:
    """The share of answers shown, beside the champion's and with what that `lost` already, which is a share, too.

    Not judged where another target was asked for; then its value is nan, and nothing counts as lost.
    """
    shown = {CANDIDATE: window.get_shown_mask(threshold), champion: window.get_shown_mask(champion_threshold, champion)}
    drawn = window.bootstrap({name: partial(metrics.weighted_mean, mask.astype(float)) for name, mask in shown.items()})
    own, other = drawn[CANDIDATE], drawn[champion]
    difference = paired_difference(own, other)
    message = f"{own.value:.0%} of the answers shown, {other.value:.0%} by {champion}"
    if lost:
        message += f", which shows {lost:.0%} less than before"
    check = check_at_least(Code.NOT_BETTER, COVERAGE, difference.value - lost, -params.max_coverage_drop, message)
    if not same_target:
        check = replace(check, passed=None, value=float("nan"), message=f"{message}; another target was asked for")
    return make_degradation_check(window, check, params.max_coverage_drop, difference.standard_error)


def check_precision_difference(
    window: EvaluationSet, threshold: float, champion: str, champion_threshold: float, params: GateParams
) -> DegradationCheck:
    """The precision of each at its own threshold; not judged where the champion shows too few answers."""
    at = {CANDIDATE: threshold, champion: champion_threshold}
    figures = {
        name: partial(metrics.precision, window.correct, window.confidences[name], threshold=its)
        for name, its in at.items()
    }
    drawn = window.bootstrap(figures)
    own, other = drawn[CANDIDATE], drawn[champion]
    difference = paired_difference(own, other)
    shown = {name: window.get_shown_mask(its, name) for name, its in at.items()}
    _, n_eff = window.compute_precision(shown[champion])
    message = f"{own.value:.3f} of the shown answers, {other.value:.3f} of those that {champion} shows"
    check = check_at_least(Code.TARGET_MISSED, AS_PRECISE, difference.value, -params.max_precision_drop, message)
    if n_eff < params.min_slice:
        few = f"{champion} shows {n_eff:.0f} answers, too few to compare with"
        check = replace(check, passed=None, message=few)
    rows = shown[CANDIDATE] | shown[champion]
    return make_degradation_check(window, check, params.max_precision_drop, difference.standard_error, rows)


def check_newest_drop(window: EvaluationSet, champion: str, params: GateParams) -> DegradationCheck:
    """The AUROC on the newest window, beside the champion's."""
    rows = len(window.correct)
    own, other = window.compute_aurocs(champion)
    difference = paired_difference(own, other)
    _, n_eff = window.compute_precision(np.ones(rows, bool))
    message = f"AUROC {own.value:.3f} against {other.value:.3f}, {rows} answers"
    check = check_at_least(Code.NOT_BETTER, "newest window", difference.value, -params.max_newest_drop, message)
    if n_eff < params.min_slice or len(np.unique(window.correct)) < 2:
        kind = "too few to judge" if n_eff < params.min_slice else "all of one kind"
        check = replace(check, passed=None, message=f"{format_count_with_n_eff(rows, n_eff)} reviewed answers, {kind}")
    return make_degradation_check(window, check, params.max_newest_drop, difference.standard_error)


def _check_products(
    window: EvaluationSet, threshold: float, target_precision: float, params: GateParams
) -> list[DegradationCheck]:
    found = []
    shown = window.get_shown_mask(threshold)
    floor = target_precision - params.max_slice_drop
    for product in sorted(set(window.products)):
        rows = shown & (window.products == product)
        precision, n_eff = window.compute_precision(rows)
        message = f"precision {precision:.3f} of {format_count_with_n_eff(int(rows.sum()), n_eff)} shown answers"
        check = check_at_least(Code.TARGET_MISSED, f"slice {product}", precision, floor, message)
        few = n_eff < params.min_slice
        error = 0.0 if few else compute_precision_error(window, rows)
        check = replace(check, passed=None) if few else check
        found.append(make_degradation_check(window, check, params.max_slice_drop, error, rows))
    return found


def _check_calibration(window: EvaluationSet, params: GateParams) -> DegradationCheck:
    """The expected calibration error. Its chance error is that of answers which are correct as often as is said."""
    said = window.confidences[CANDIDATE] if window.probabilities is None else window.probabilities
    value = metrics.ece(window.correct, said, window.weight)
    check = check_at_most(
        Code.LIMIT_EXCEEDED, "calibration", value, params.max_ece, "expected calibration error on the hold-out"
    )
    generator = np.random.default_rng(RESAMPLES.seed)
    by_chance = [
        metrics.ece((generator.random(len(said)) < said).astype(int), said, window.weight)
        for _ in range(N_ECE_SIMULATIONS)
    ]
    # Calibrated answers have an error above 0, too: its mean is the reference.
    return make_degradation_check(window, check, params.max_ece - float(np.mean(by_chance)), float(np.std(by_chance)))


def make_degradation_check(
    window: EvaluationSet, check: PromotionCheck, drop: float, error: float, rows: np.ndarray | None = None
) -> DegradationCheck:
    """`error`: by bootstrap. `rows`: the mask of the answers that the figure is of; None: all."""
    groups = len(np.unique(window.groups if rows is None else window.groups[rows]))
    return DegradationCheck(check, drop, correct_bootstrap_error(error, groups), groups)


def compute_precision_error(window: EvaluationSet, rows: np.ndarray) -> float:
    """The standard error of the precision of `rows` (a mask), by resampling their documents."""
    if not rows.any():
        return float("nan")
    figure = {"precision": partial(metrics.weighted_mean, window.correct[rows])}
    weight = None if window.weight is None else window.weight[rows]
    drawn = bootstrap(figure, window.groups[rows], RESAMPLES.draws, RESAMPLES.seed, weight)
    return drawn["precision"].standard_error
