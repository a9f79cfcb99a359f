"""Comparison of candidate and champion on the hold-out: superior, non-inferior, or the same with a new threshold.

Night after night, candidates are compared with the champion on one hold-out. The probability that any of them is
promoted without being better is at most `promotion.false_promotion_rate`: each of the `promotion.max_comparisons`
comparisons spends an equal part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abstain.config.params import PromotionParams
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
"""Smaller differences between confidences mean one scorer: the champion's confidences come from its ONNX files."""
BETTER_THAN_PREFIX = "better than champion "


@dataclass(frozen=True)
class ComparisonBudget:
    """The comparisons made on a hold-out so far.

    Attributes:
        used: Number of comparisons.
        alpha_spent: Probability of a false promotion that they have spent.
    """

    used: int = 0
    alpha_spent: float = 0.0

    def spend(self, params: PromotionParams) -> ComparisonBudget | None:
        """Return the budget after one more comparison.

        Args:
            params: Promotion parameters; a comparison costs `get_comparison_alpha(params)`.

        Returns:
            The new budget; None if it would exceed `false_promotion_rate`, whatever earlier comparisons have cost.
        """
        alpha_spent = self.alpha_spent + get_comparison_alpha(params)
        # The sum of all equal parts differs from the whole in the last digits.
        return (
            ComparisonBudget(self.used + 1, alpha_spent)
            if alpha_spent <= params.false_promotion_rate * (1 + 1e-9)
            else None
        )


EMPTY_BUDGET = ComparisonBudget()


def get_comparison_alpha(params: PromotionParams) -> float:
    """Return the largest p-value at which a candidate is promoted, `false_promotion_rate / max_comparisons`."""
    return params.false_promotion_rate / params.max_comparisons


def have_same_confidences(evaluation: EvaluationSet, champion: str) -> bool:
    """Check whether candidate and champion give the same confidences.

    Args:
        evaluation: Answers with the confidences of both.
        champion: Name of the champion's column.

    Returns:
        Whether no confidence differs by more than `CONFIDENCE_TOLERANCE`.
    """
    difference = np.abs(evaluation.confidences[CANDIDATE] - evaluation.confidences[champion])
    return bool(difference.max(initial=0.0) <= CONFIDENCE_TOLERANCE)


def check_new_threshold(threshold: float, champion_threshold: float) -> PromotionCheck:
    """Check that a candidate with the champion's confidences has another threshold.

    Its guarantee and coverage are checked like those of any other candidate.

    Args:
        threshold: The candidate's threshold.
        champion_threshold: The threshold in production.

    Returns:
        A check that fails if both are equal.
    """
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
    evaluation: EvaluationSet, champion: str, params: PromotionParams, budget: ComparisonBudget, rows: str = "hold-out"
) -> PromotionCheck:
    """Test whether the candidate's AUROC is higher than the champion's (one-sided paired t-test, by groups).

    The statistic is t = (AUROC of the candidate - AUROC of the champion) / standard error, with (groups - 1) degrees of
    freedom. The standard error is that of the paired bootstrap over groups.

    Args:
        evaluation: Answers with the confidences of both.
        champion: Name of the champion's column.
        params: Promotion parameters; alpha is `false_promotion_rate / max_comparisons`.
        budget: Comparisons already made on this hold-out.
        rows: Name of the answers in the message, such as "hold-out".

    Returns:
        A check with the p-value and alpha. It fails if the comparison budget is used up.
    """
    from scipy.stats import t

    candidate_auroc, champion_auroc = evaluation.compute_aurocs(champion)
    difference, groups = candidate_auroc.value - champion_auroc.value, len(np.unique(evaluation.groups))
    error = correct_bootstrap_error(paired_difference(candidate_auroc, champion_auroc).standard_error, groups)
    p_value = float(t.sf(difference / error, groups - 1)) if error > 0 else float("nan")
    alpha = get_comparison_alpha(params)
    name = f"{BETTER_THAN_PREFIX}{champion}"
    next_budget = budget.spend(params)
    if next_budget is None:
        message = (
            f"this hold-out was compared on {budget.used} times, as often as promotion.max_comparisons allows: take a "
            "new one (docs/methods/thresholds.md, A used-up hold-out)"
        )
        return PromotionCheck(Code.NOT_BETTER, name, False, p_value, alpha, message)
    message = (
        f"{rows} AUROC {candidate_auroc.value:.3f} against {champion_auroc.value:.3f}, difference {difference:+.3f} "
        f"(standard error {error:.3f}); p = {p_value:.2g}, at most {alpha:.2g} (comparison {next_budget.used} of "
        f"{params.max_comparisons} on this hold-out)"
    )
    return PromotionCheck(Code.NOT_BETTER, name, p_value <= alpha, p_value, alpha, message)


def check_non_inferior(evaluation: EvaluationSet, champion: str, params: PromotionParams) -> PromotionCheck:
    """Check that the candidate's AUROC is not lower than the champion's by the margin or more.

    The share of bootstrap resamples with a difference above `-erasure_margin` must be at least `bootstrap_confidence`.
    An undefined resample counts as not above.

    Args:
        evaluation: Answers with the confidences of both.
        champion: Name of the champion's column.
        params: Promotion parameters.

    Returns:
        A check with that share and the required confidence.
    """
    candidate_auroc, champion_auroc = evaluation.compute_aurocs(champion)
    margin = params.erasure_margin
    difference = paired_difference(candidate_auroc, champion_auroc)
    probability = float((difference.resamples > -margin).mean())  # an undefined resample is not above it
    message = (
        f"hold-out AUROC {candidate_auroc.value:.3f} against {champion_auroc.value:.3f}; not worse by {margin:g} with "
        f"chance {probability:.3f}"
    )
    name = f"not worse than {champion}"
    return check_at_least(Code.NOT_BETTER, name, probability, params.bootstrap_confidence, message)
