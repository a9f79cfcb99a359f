"""The challenger beside the champion on the hold-out: whether it is better, or not worse, or the same with another
threshold.

Night after night challengers are compared with the champion on one hold-out. The chance that any of them is promoted
though it is no better is at most `gate.false_promotions`: each look spends an equal part of it, `gate.looks` of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abstain.config.params import GateParams
from abstain.core.codes import Code
from abstain.learning.metrics.bootstrap import paired_difference
from abstain.release.evaluation_set import (
    CANDIDATE,
    EvaluationSet,
    PromotionCheck,
    check_at_least,
    correct_bootstrap_error,
)

CONFIDENCE_TOLERANCE = 1e-6
"""Confidences that differ by less are of one scorer: the champion's come from its ONNX files."""
BETTER_THAN_PREFIX = "better than champion "


@dataclass(frozen=True)
class ComparisonBudget:
    """The comparisons on a hold-out so far, and the chance of a false promotion that they have `spent`."""

    used: int = 0
    spent: float = 0.0

    def spend(self, params: GateParams) -> ComparisonBudget | None:
        """With one more; None where it would spend more than `params.false_promotions`, whatever the levels of earlier
        ones were."""
        spent = self.spent + get_comparison_alpha(params)
        # A sum of as many equal parts as there are is the whole, but for its last digits.
        return ComparisonBudget(self.used + 1, spent) if spent <= params.false_promotions * (1 + 1e-9) else None


EMPTY_BUDGET = ComparisonBudget()


def get_comparison_alpha(params: GateParams) -> float:
    """The largest p-value at which a challenger is promoted."""
    return params.false_promotions / params.looks


def have_same_confidences(window: EvaluationSet, champion: str) -> bool:
    difference = np.abs(window.confidences[CANDIDATE] - window.confidences[champion])
    return bool(difference.max(initial=0.0) <= CONFIDENCE_TOLERANCE)


def check_new_threshold(threshold: float, champion_threshold: float) -> PromotionCheck:
    """The champion's own weights with another threshold, whose guarantee and coverage are checked like any other's."""
    message = f"the champion's confidences; threshold {threshold:.3f}, in production {champion_threshold:.3f}"
    return PromotionCheck(
        Code.NOT_BETTER,
        "new threshold",
        abs(threshold - champion_threshold) > 0,
        threshold,
        champion_threshold,
        message,
    )


def check_better(
    window: EvaluationSet, champion: str, params: GateParams, looks: ComparisonBudget, rows: str = "hold-out"
) -> PromotionCheck:
    """A one-sided t-test of the paired difference in AUROC, at the part of `false_promotions` of the look after
    `looks`. `rows`: what `window` is of, in the message."""
    from scipy.stats import t

    own, other = window.compute_aurocs(champion)
    difference, groups = own.value - other.value, len(np.unique(window.groups))
    error = correct_bootstrap_error(paired_difference(own, other).standard_error, groups)
    p_value = float(t.sf(difference / error, groups - 1)) if error > 0 else float("nan")
    level = get_comparison_alpha(params)
    name = f"{BETTER_THAN_PREFIX}{champion}"
    now = looks.spend(params)
    if now is None:
        message = (
            f"this hold-out was compared on {looks.used} times, as often as gate.looks allows: take a new one (docs/"
            "thresholds.md, A hold-out that is used up)"
        )
        return PromotionCheck(Code.NOT_BETTER, name, False, p_value, level, message)
    message = (
        f"{rows} AUROC {own.value:.3f} against {other.value:.3f}, difference {difference:+.3f} (standard error "
        f"{error:.3f}); p = {p_value:.2g}, at most {level:.2g} (look {now.used} of {params.looks} at this hold-out)"
    )
    return PromotionCheck(Code.NOT_BETTER, name, p_value <= level, p_value, level, message)


def check_non_inferior(window: EvaluationSet, champion: str, params: GateParams) -> PromotionCheck:
    """Non-inferiority: the lower bound of the paired difference lies above minus the margin."""
    own, other = window.compute_aurocs(champion)
    margin = params.erasure_margin
    chance = float((paired_difference(own, other).resamples > -margin).mean())  # an undefined draw is not above it
    message = (
        f"hold-out AUROC {own.value:.3f} against {other.value:.3f}; not worse by {margin:g} with chance {chance:.3f}"
    )
    return check_at_least(Code.NOT_BETTER, f"not worse than {champion}", chance, params.confidence, message)
