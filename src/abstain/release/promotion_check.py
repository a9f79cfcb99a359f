"""Promotion checks: may a candidate replace the champion? They fail closed and report reasons.

Every check is a `PromotionCheck` with a value, a limit and one sentence; a value of nan fails. The first version has no
champion, but must beat the base rate and the length-only baseline. A champion trained on rows that were erased or
corrected is replaced by a candidate that is non-inferior by a margin. Metrics are weighted as in the report, and
answers are counted by their effective sample size (`metrics.effective_sample_size`). The guarantee is checked in
`holdout_guarantee`, the comparison with the champion is in `champion_comparison`, and `degradation_checks` looks for
what got worse.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from abstain.config.params import PromotionParams
from abstain.core.codes import Code
from abstain.core.reasons import Reason
from abstain.core.scorer_names import LENGTH_ONLY
from abstain.learning.estimators.parity import MAX_PARITY
from abstain.learning.evaluation.evaluation_result import HoldoutMetrics
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import paired_difference
from abstain.learning.thresholds.guarantee import Guarantee
from abstain.release import champion_comparison, degradation_checks
from abstain.release.champion_comparison import (
    BETTER_THAN_PREFIX,
    EMPTY_BUDGET,
    ComparisonBudget,
    have_same_confidences,
)
from abstain.release.evaluation_set import CANDIDATE, EvaluationSet, PromotionCheck, check_at_least, check_at_most
from abstain.release.holdout_guarantee import (
    GUARANTEE,
    MissingGuarantee,
    check_error_rate_guarantee,
    check_precision_guarantee,
    record_holdout_check,
)
from abstain.release.metric_comparison import MetricComparison, compare_metrics

ComparisonRule = Literal["superior", "non_inferior", "accepted"]
"""The required result of the comparison with the champion.

* `superior`: the normal rule.
* `non_inferior`: by a margin, if the champion was trained on rows that were erased or corrected later.
* `accepted`: in addition, a user accepts a worse candidate, so that the comparison is reported but not judged.
"""


@dataclass(frozen=True)
class PromotionDecision:
    """The result of the promotion checks.

    Attributes:
        checks: All checks.
        additional_reviews: About how many more reviews a guarantee needs; None with a guarantee, or if unknown.
        champion_comparison: Further metrics of candidate and champion, which are not judged.
        corrected: Number of hold-out answers that were corrected since the champion's promotion.
    """

    checks: tuple[PromotionCheck, ...] = field(default=())
    additional_reviews: int | None = None
    champion_comparison: tuple[MetricComparison, ...] = ()
    corrected: int = 0

    @property
    def is_approved(self) -> bool:
        """Whether at least one check was judged and every judged check passed."""
        decisive = [check for check in self.checks if check.passed is not None]
        return bool(decisive) and all(check.passed for check in decisive)

    @property
    def used_comparison(self) -> bool:
        """Whether the candidate was compared with a champion on the hold-out, which spends a comparison.

        On a corrected hold-out every comparison counts, also of a candidate that only has to be non-inferior.
        """
        return any(
            check.passed is not None
            and (check.name.startswith(BETTER_THAN_PREFIX) or (check.code is Code.NEW_HOLDOUT and self.corrected))
            for check in self.checks
        )

    @property
    def has_guarantee(self) -> bool:
        """Whether the candidate is approved with a guarantee that the hold-out has checked."""
        return self.is_approved and self.missing_guarantee_reason is None

    @property
    def missing_guarantee_reason(self) -> str | None:
        """Why the candidate has no checked guarantee; None if its guarantee was checked, whether it holds or not."""
        return next((check.message for check in self.checks if check.name == GUARANTEE), None)

    def conclude(self, guarantee: Guarantee, holdout: HoldoutMetrics) -> Guarantee:
        """Return the candidate's guarantee with the result of the checks.

        Args:
            guarantee: The guarantee by the validation split.
            holdout: Section `holdout` of metrics.json.

        Returns:
            The active guarantee if the candidate is approved with it, otherwise with the number of missing reviews.
        """
        if self.has_guarantee:
            return record_holdout_check(guarantee, holdout)
        return guarantee.model_copy(update={"additional_reviews": self.additional_reviews})

    @property
    def reasons(self) -> list[Reason]:
        """The failed checks."""
        return [check.to_reason() for check in self.checks if check.passed is False]


def describe_failure(reason: Reason) -> str:
    """Describe a failed check as a sentence; the reason's own message only names the requirement.

    Args:
        reason: One of `PromotionDecision.reasons`.

    Returns:
        The sentence.
    """
    return f"the check `{reason.field}` failed: {reason.message}"


@dataclass(frozen=True)
class CandidateMeasurements:
    """Measurements of the candidate that do not depend on the champion's confidences.

    Attributes:
        threshold: The tuned threshold.
        target_precision: Target precision; with an error-rate target, the precision on the validation split.
        parity: Largest difference between ONNX and fitted confidences, over all components.
        latency_p99_ms: p99 latency of the scorer for one answer on one core, in milliseconds, over all components.
        champion_threshold: Threshold in production; None for a first version.
        same_target: Whether the champion's threshold was tuned for the same metric, target and confidence.
        target_error_rate: Highest share of all answers that may be shown and incorrect; None with a precision target.
        missing_guarantee: Why there is no guarantee that the hold-out can check; None if there is one.
        allow_missing_guarantee: Whether the candidate may be promoted without one.
        forward_tokens: Tokens that the base model reads for an answer (reported only).
        decision_ms: Time for that on this machine in milliseconds; None if it was not measured (reported only).
    """

    threshold: float
    target_precision: float
    parity: float
    latency_p99_ms: float
    champion_threshold: float | None = None
    same_target: bool = True
    target_error_rate: float | None = None
    missing_guarantee: MissingGuarantee | None = None
    allow_missing_guarantee: bool = False
    forward_tokens: float = 0.0
    decision_ms: float | None = None


def check_candidate(
    holdout: EvaluationSet,
    newest: EvaluationSet,
    candidate: CandidateMeasurements,
    params: PromotionParams,
    min_n_eff: int,
    champion: str | None,
    same_holdout: bool,
    erased: int = 0,
    rule: ComparisonRule = "superior",
    budget: ComparisonBudget = EMPTY_BUDGET,
    prior_coverage_loss: float = 0.0,
    corrected: int = 0,
) -> PromotionDecision:
    """Run all promotion checks on the frozen hold-out and on the newest split.

    Args:
        holdout: Reviewed hold-out answers with the confidences of candidate, champion and baselines.
        newest: The same for answers that were asked after the hold-out was frozen.
        candidate: Threshold, target, ONNX difference and latency of the candidate.
        params: Limits and error levels (`promotion` in params.yaml).
        min_n_eff: Smallest effective sample size for which a slice, the newest split or a guarantee is judged.
        champion: Name of the champion's column; None for a first version.
        same_holdout: Whether the champion was promoted on this hold-out, except for erased and corrected answers, or
            the change was accepted on record.
        erased: Number of answers erased from the hold-out since then.
        rule: Required result of the comparison.
        budget: Comparisons already made on this hold-out.
        prior_coverage_loss: Coverage lost by earlier promotions, as a share of all answers.
        corrected: Number of answers of the hold-out corrected since then.

    Returns:
        The decision with every check. Without a guarantee only the guarantee rule, ONNX difference and latency are
        judged, because the hold-out has nothing to check.
    """
    threshold, target = candidate.threshold, candidate.target_precision
    checks: list[PromotionCheck] = []
    degradations: list[degradation_checks.DegradationCheck] = []
    if candidate.target_error_rate is None:
        checks.append(check_precision_guarantee(holdout, threshold, target, params, min_n_eff))
    else:
        target_error_rate = candidate.target_error_rate
        checks.append(check_error_rate_guarantee(holdout, threshold, target_error_rate, params, min_n_eff))
        degradations.append(degradation_checks.check_precision_drop(holdout, threshold, target, params))
    degradations += degradation_checks.check_products_and_calibration(holdout, threshold, target, params, min_n_eff)
    if champion is None:
        checks += [
            _check_better_than(holdout, LENGTH_ONLY, params),
            _check_better_than_base_rate(holdout, candidate, params),
        ]
        checks += degradation_checks.apply_significance(degradations, params)
    else:
        champion_threshold = float("nan") if candidate.champion_threshold is None else candidate.champion_threshold
        degradations += [
            degradation_checks.check_coverage_drop(
                holdout, threshold, champion, champion_threshold, candidate.same_target, prior_coverage_loss, params
            ),
            degradation_checks.check_newest_drop(newest, champion, params, min_n_eff),
        ]
        if rule != "superior":
            comparison_check = champion_comparison.check_non_inferior(holdout, champion, params)
            degradations.append(
                degradation_checks.check_precision_difference(
                    holdout, threshold, champion, champion_threshold, params, min_n_eff
                )
            )
        elif have_same_confidences(holdout, champion):
            comparison_check = champion_comparison.check_new_threshold(threshold, champion_threshold)
        else:
            comparison_check = champion_comparison.check_better(holdout, champion, params, budget)
        champion_checks = degradation_checks.apply_significance(degradations, params)
        if rule == "accepted":
            comparison_check = _mark_accepted(comparison_check)
            champion_checks = [
                _mark_accepted(check) if check.name in degradation_checks.CHAMPION_CHECKS else check
                for check in champion_checks
            ]
        checks += [_check_same_holdout(same_holdout, erased, corrected), comparison_check, *champion_checks]
    if candidate.missing_guarantee is not None:
        guarantee = candidate.missing_guarantee.to_check(candidate.allow_missing_guarantee, min_n_eff)
        checks = [*(replace(check, passed=None) for check in checks), guarantee]
    checks += [
        check_at_most(
            Code.EXPORT_DIFFERS,
            "ONNX parity",
            candidate.parity,
            MAX_PARITY,
            "largest difference to what was fitted",
        ),
        _check_latency(candidate, params),
    ]
    additional_reviews = candidate.missing_guarantee.additional_reviews if candidate.missing_guarantee else None
    comparison = compare_metrics(holdout, champion) if champion is not None else []
    return PromotionDecision(tuple(checks), additional_reviews, tuple(comparison), corrected)


def _check_latency(candidate: CandidateMeasurements, params: PromotionParams) -> PromotionCheck:
    description = "p99 in ms of the scorer for one answer on one core"
    check = check_at_most(Code.LIMIT_EXCEEDED, "latency", candidate.latency_p99_ms, params.max_latency_ms, description)
    if not candidate.forward_tokens:
        return replace(check, message=f"{check.message}; no pass of the base model")
    usage = f"the base model reads {candidate.forward_tokens:.0f} tokens before"
    if candidate.decision_ms is not None:
        usage += f", in {candidate.decision_ms:.0f} ms"
    return replace(check, message=f"{check.message}; {usage}")


def _check_same_holdout(is_same: bool, erased: int, corrected: int) -> PromotionCheck:
    if is_same:
        message = "as the champion's"
        if erased:
            message += f", without {erased} of its answers, which were erased"
        if corrected:
            message += f"; {corrected} answers were corrected, so this counts as a new comparison"
    else:
        message = "differs from the champion's: if intended, run abstain promote --accept-new-holdout REASON"
    return PromotionCheck(Code.NEW_HOLDOUT, "same hold-out", is_same, float(is_same), 1.0, message)


def _mark_accepted(check: PromotionCheck) -> PromotionCheck:
    if check.passed is not False:
        return check
    return replace(check, passed=None, message=f"{check.message}; accepted")


def _check_better_than(evaluation: EvaluationSet, baseline: str, params: PromotionParams) -> PromotionCheck:
    candidate_auroc, baseline_auroc = evaluation.compute_aurocs(baseline)
    probability = paired_difference(candidate_auroc, baseline_auroc).probability_positive
    message = (
        f"hold-out AUROC {candidate_auroc.value:.3f} against {baseline_auroc.value:.3f}; better with chance "
        f"{probability:.3f}"
    )
    name = f"better than {baseline}"
    return check_at_least(Code.NOT_BETTER, name, probability, params.bootstrap_confidence, message)


def _check_better_than_base_rate(
    evaluation: EvaluationSet, candidate: CandidateMeasurements, params: PromotionParams
) -> PromotionCheck:
    shown_precision = partial(
        metrics.precision, evaluation.correct, evaluation.confidences[CANDIDATE], threshold=candidate.threshold
    )
    estimates = evaluation.bootstrap(
        {"shown": shown_precision, "all": partial(metrics.weighted_mean, evaluation.correct)}
    )
    lift = paired_difference(estimates["shown"], estimates["all"])
    message = (
        f"shown answers are correct {lift.value:+.3f} more often than all "
        f"({metrics.weighted_mean(evaluation.correct, evaluation.weight):.3f}); so with chance "
        f"{lift.probability_positive:.3f}"
    )
    return check_at_least(
        Code.NOT_BETTER, "better than base rate", lift.probability_positive, params.bootstrap_confidence, message
    )
