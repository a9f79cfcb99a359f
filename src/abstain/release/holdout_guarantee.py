"""Check on the hold-out what is guaranteed of a candidate, or explain why it cannot be checked.

The guarantee itself rests on the validation split. Answers that the threshold was not tuned on refute it if they miss
the target by more than the tolerance of params.yaml and by more than chance explains. If the guarantee just holds, that
happens in `promotion.false_rejection_rate` of the cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from abstain.config.params import PromotionParams
from abstain.core.codes import Code
from abstain.learning.evaluation.evaluation_result import HoldoutMetrics, get_metric_value
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.thresholds.guarantee import MIN_SHOWN_GROUPS, Guarantee, HoldoutResult, can_check
from abstain.release import degradation_checks
from abstain.release.evaluation_set import (
    EvaluationSet,
    PromotionCheck,
    check_at_least,
    check_at_most,
    format_count_with_n_eff,
)

GUARANTEE = "guarantee"
"""Name of the check of a candidate without a guarantee that the hold-out can check."""
FROZEN_HINT = ", and it is frozen: move split.holdout_frozen_at, or set it to null"


def record_holdout_check(guarantee: Guarantee, holdout: HoldoutMetrics) -> Guarantee:
    """Return the guarantee of a candidate that the promotion checks have approved with it.

    Args:
        guarantee: The guarantee by the validation split.
        holdout: Section `holdout` of metrics.json.

    Returns:
        The active guarantee with its result on the hold-out.
    """
    point, metric = holdout.at_threshold, guarantee.metric
    value = get_metric_value(metric, point)
    assert value is not None  # an approved guarantee was checked on shown answers
    result = HoldoutResult(
        reviews=point.shown if metric == "precision" else holdout.rows,
        value=value,
        low=point.get(f"{metric}_low"),
        high=point.get(f"{metric}_high"),
    )
    return guarantee.model_copy(update={"status": "active", "holdout": result})


@dataclass(frozen=True)
class MissingGuarantee:
    """Why a candidate has no guarantee that the hold-out can check.

    Attributes:
        reason: The reason, for the message.
        additional_reviews: About how many reviews more, over all splits, would change that; None if unknown.
        n_eff_shown: Effective sample size of the shown hold-out answers, if these are too few to check the guarantee;
            None if the validation split gives no guarantee.
    """

    reason: str
    additional_reviews: int | None
    n_eff_shown: float | None = None

    def to_check(self, passed: bool, min_shown: int) -> PromotionCheck:
        """Make the promotion check of a candidate without a guarantee.

        Args:
            passed: Whether the candidate may lack a guarantee.
            min_shown: Number of shown answers that could check one.

        Returns:
            The check `guarantee`.
        """
        is_missing = self.n_eff_shown is None
        state, value, limit = (
            ("none", 0.0, 1.0) if is_missing else ("not checked", float(self.n_eff_shown or 0), float(min_shown))
        )
        message = f"{state}{' yet' if passed else ''}: {self.reason}"
        return PromotionCheck(Code.NO_THRESHOLD, GUARANTEE, passed, value, limit, message)


def explain_unchecked_guarantee(
    holdout: EvaluationSet, threshold: float, min_n_eff: int, reviews: int, frozen: bool
) -> MissingGuarantee | None:
    """Explain why the hold-out cannot check the guarantee of `threshold` yet.

    Args:
        holdout: Reviewed hold-out answers.
        threshold: The guaranteed threshold.
        min_n_eff: Required number of shown answers (effective sample size).
        reviews: Number of reviewed answers in all splits.
        frozen: Whether the hold-out is frozen, so that more reviews cannot help.

    Returns:
        The reason and, if known, the number of additional reviews; None if the hold-out shows enough answers in at
        least `MIN_SHOWN_GROUPS` groups.
    """
    shown = holdout.get_shown_mask(threshold)
    _, n_eff = holdout.compute_precision(shown)
    n_groups = len(np.unique(holdout.groups[shown]))
    if can_check(n_eff, n_groups, min_n_eff):
        return None
    if n_eff >= min_n_eff:
        remedy = FROZEN_HINT if frozen else ": bring reviews about more"
        reason = f"the hold-out shows answers about {n_groups} documents, {MIN_SHOWN_GROUPS} are needed{remedy}"
        return MissingGuarantee(reason, None, n_eff)
    rows = int(shown.sum())
    number = f"{rows}" if round(n_eff, 1) == rows else f"{rows} (n_eff {n_eff:.1f})"
    reason = f"the hold-out shows {number if rows else 'none'} of its reviewed answers, {min_n_eff} are needed"
    additional_reviews = None if frozen or not rows else math.ceil(reviews * (min_n_eff - n_eff) / n_eff)
    if frozen:
        reason += FROZEN_HINT
    else:
        number = "" if additional_reviews is None else f"about {additional_reviews:,} "
        reason += f": bring {number}more reviews"
    return MissingGuarantee(reason, additional_reviews, n_eff)


def check_precision_guarantee(
    evaluation: EvaluationSet, threshold: float, target: float, params: PromotionParams, min_n_eff: int
) -> PromotionCheck:
    """Check whether the precision of the shown answers may be the target.

    Args:
        evaluation: Reviewed hold-out answers.
        threshold: The candidate's threshold.
        target: Guaranteed precision.
        params: Promotion parameters.
        min_n_eff: Required number of shown answers (effective sample size).

    Returns:
        The check; it fails if too few answers or groups are shown.
    """
    shown = evaluation.get_shown_mask(threshold)
    precision, n_eff = evaluation.compute_precision(shown)
    floor = target - params.max_precision_drop
    count = format_count_with_n_eff(int(shown.sum()), n_eff)
    message = f"{precision:.3f} of {count} shown answers; at least {floor:.3f} of {min_n_eff}"
    check = check_at_least(Code.TARGET_MISSED, "precision", precision, floor, message)
    degradation = degradation_checks.make_degradation_check(
        evaluation,
        check,
        params.max_precision_drop,
        degradation_checks.compute_precision_error(evaluation, shown),
        shown,
    )
    return _require_evidence(degradation, n_eff, params, min_n_eff)


def check_error_rate_guarantee(
    evaluation: EvaluationSet, threshold: float, target: float, params: PromotionParams, min_n_eff: int
) -> PromotionCheck:
    """Check whether the share of all answers that are shown and incorrect may be the target.

    Args:
        evaluation: Reviewed hold-out answers.
        threshold: The candidate's threshold.
        target: Guaranteed error rate.
        params: Promotion parameters.
        min_n_eff: Required number of shown answers (effective sample size).

    Returns:
        The check; it fails if too few answers or groups are shown.
    """
    shown = evaluation.get_shown_mask(threshold)
    _, n_eff = evaluation.compute_precision(shown)
    wrong = shown * (1 - evaluation.correct)
    estimate = evaluation.bootstrap({"error rate": partial(metrics.weighted_mean, wrong)})["error rate"]
    count = format_count_with_n_eff(int(shown.sum()), n_eff)
    description = f"shown and incorrect, of all answers of the hold-out, {count} of them shown ({min_n_eff} are needed)"
    check = check_at_most(
        Code.TARGET_MISSED, "error rate", estimate.value, target + params.max_error_rate_excess, description
    )
    return _require_evidence(
        degradation_checks.make_degradation_check(
            evaluation, check, params.max_error_rate_excess, estimate.standard_error
        ),
        n_eff,
        params,
        min_n_eff,
    )


def _require_evidence(
    degradation: degradation_checks.DegradationCheck, n_eff: float, params: PromotionParams, min_n_eff: int
) -> PromotionCheck:
    """Fail if few answers are shown, or answers in few groups, which say nothing about other groups."""
    (check,) = degradation_checks.apply_significance([degradation], params)
    if can_check(n_eff, degradation.groups, min_n_eff):
        return check
    message = check.message
    if n_eff >= min_n_eff:
        message = f"{message}; about {degradation.groups} documents, {MIN_SHOWN_GROUPS} are needed"
    return replace(check, passed=False, message=message)
