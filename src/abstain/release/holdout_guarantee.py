"""Whether the hold-out bears out what is guaranteed of a candidate: a one-sided test, or why there is nothing to test.

The guarantee itself rests on the validation split. Answers that the threshold was not tuned on refute it where they are
short of the target by more than the tolerance of params.yaml and by more than chance makes it, which it does in
`gate.false_refusals` of cases if the guarantee is just kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from abstain.config.params import GateParams
from abstain.core.codes import Code
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.release import degradation_checks as drops
from abstain.release.evaluation_set import (
    EvaluationSet,
    PromotionCheck,
    check_at_least,
    check_at_most,
    format_count_with_n_eff,
)

GUARANTEE = "guarantee"
"""The name of the check of a candidate without a guarantee that the hold-out can check."""
MIN_GROUPS = 5
"""Answers about fewer documents tell too little of how much documents differ."""
FROZEN_HINT = ", and it is frozen: move split.holdout_frozen_at, or set it to null"


@dataclass(frozen=True)
class MissingGuarantee:
    """Why nothing is guaranteed of a candidate, and about how many more reviews, of all splits, would change that.

    `more_reviews` is None where no number of them is known to. `shown`: None where the validation split gives no
    guarantee; else the effective sample size of the answers that the hold-out shows, which are too few to check it.
    """

    reason: str
    more_reviews: int | None
    n_eff_shown: float | None = None

    def to_check(self, passed: bool, least: int) -> PromotionCheck:
        """`passed`: whether the candidate may lack a guarantee; `least`: how many shown answers could check one."""
        none = self.n_eff_shown is None
        state, value, limit = (
            ("none", 0.0, 1.0) if none else ("not checked", float(self.n_eff_shown or 0), float(least))
        )
        message = f"{state}{' yet' if passed else ''}: {self.reason}"
        return PromotionCheck(Code.NO_THRESHOLD, GUARANTEE, passed, value, limit, message)


def explain_unchecked_guarantee(
    holdout: EvaluationSet, threshold: float, params: GateParams, reviews: int, frozen: bool
) -> MissingGuarantee | None:
    """Why the hold-out cannot check the guarantee of `threshold` yet.

    None where it shows `params.min_slice` answers about `MIN_GROUPS`.

    Args:
        reviews: the number of reviewed answers in all splits.
        frozen: whether the hold-out takes in no more answers, so that no number of reviews would do.
    """
    shown = holdout.get_shown_mask(threshold)
    _, n_eff = holdout.compute_precision(shown)
    if n_eff >= params.min_slice:
        documents = len(np.unique(holdout.groups[shown]))
        if documents >= MIN_GROUPS:
            return None
        remedy = FROZEN_HINT if frozen else ": bring reviews about more"
        about = f"the hold-out shows answers about {documents} documents, {MIN_GROUPS} are needed{remedy}"
        return MissingGuarantee(about, None, n_eff)
    rows = int(shown.sum())
    number = f"{rows}" if round(n_eff, 1) == rows else f"{rows} (n_eff {n_eff:.1f})"
    why = f"the hold-out shows {number if rows else 'none'} of its reviewed answers, {params.min_slice} are needed"
    more = None if frozen or not rows else math.ceil(reviews * (params.min_slice - n_eff) / n_eff)
    if frozen:
        why += FROZEN_HINT
    else:
        why += ": bring more reviews" if more is None else f": bring about {more:,} more reviews"
    return MissingGuarantee(why, more, n_eff)


def check_precision_guarantee(
    window: EvaluationSet, threshold: float, target: float, params: GateParams
) -> PromotionCheck:
    """Whether the precision of the shown answers may be `target`."""
    shown = window.get_shown_mask(threshold)
    precision, n_eff = window.compute_precision(shown)
    floor = target - params.max_precision_drop
    count = format_count_with_n_eff(int(shown.sum()), n_eff)
    message = f"{precision:.3f} of {count} shown answers; at least {floor:.3f} of {params.min_slice}"
    check = check_at_least(Code.TARGET_MISSED, "precision", precision, floor, message)
    drop = drops.make_degradation_check(
        window, check, params.max_precision_drop, drops.compute_precision_error(window, shown), shown
    )
    return _require_evidence(drop, n_eff, params)


def check_error_rate_guarantee(
    window: EvaluationSet, threshold: float, target: float, params: GateParams
) -> PromotionCheck:
    """Whether the share of all answers that are shown and incorrect may be `target`."""
    shown = window.get_shown_mask(threshold)
    _, n_eff = window.compute_precision(shown)
    wrong = shown * (1 - window.correct)
    drawn = window.bootstrap({"error rate": partial(metrics.weighted_mean, wrong)})["error rate"]
    count = format_count_with_n_eff(int(shown.sum()), n_eff)
    what = f"shown and incorrect, of all answers of the hold-out, {count} of them shown ({params.min_slice} are needed)"
    check = check_at_most(Code.TARGET_MISSED, "error rate", drawn.value, target + params.max_error_rate_excess, what)
    return _require_evidence(
        drops.make_degradation_check(window, check, params.max_error_rate_excess, drawn.standard_error), n_eff, params
    )


def _require_evidence(drop: drops.DegradationCheck, n_eff: float, params: GateParams) -> PromotionCheck:
    """Fails closed: where few answers are shown, or about few documents, which say nothing of others."""
    (check,) = drops.apply_significance([drop], params)
    if n_eff < params.min_slice:
        return replace(check, passed=False)
    if drop.groups < MIN_GROUPS:
        few = f"{check.message}; about {drop.groups} documents, {MIN_GROUPS} are needed"
        return replace(check, passed=False, message=few)
    return check
