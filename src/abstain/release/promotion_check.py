"""The promotion gate: checks whether a challenger may replace the champion. It fails closed and reports the reasons.

Every check is a `PromotionCheck` with the figure, the limit and one sentence; a figure that is nan fails. The first
version has no champion, but must beat the base rate and the length-only baseline. A champion that was trained on rows
erased since is replaced by a challenger that is not worse by more than a margin. Figures are weighted as in the report,
and answers are counted by their effective sample size (`metrics.effective_sample_size`). What is guaranteed is tested
in `guarantee_check`, the comparison with the champion is in `against_champion`, and `drops` asks what got worse.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Literal

from abstain.config.params import GateParams
from abstain.core.codes import Code
from abstain.core.reasons import Reason
from abstain.core.scorer_names import LENGTH_ONLY
from abstain.learning.estimators.parity import MAX_PARITY
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import paired_difference
from abstain.release import champion_comparison as against_champion
from abstain.release import degradation_checks as drops
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
)
from abstain.release.metric_comparison import MetricComparison, compare_metrics

ComparisonRule = Literal["better", "not_worse", "accepted"]
"""The required comparison with the champion. `check_non_inferior`: the champion was trained on rows that were erased since.
`accepted`: in addition a user accepts a worse challenger, so that the comparison is shown but not judged."""


@dataclass(frozen=True)
class PromotionDecision:
    """The gate's decision. Approved when every judged check passed and at least one was judged.

    `more_reviews`: about how many more a guarantee takes; None with a guarantee, and where no number of them is known.
    `comparison`: further figures beside the champion's, which are not judged.
    """

    checks: tuple[PromotionCheck, ...] = field(default=())
    more_reviews: int | None = None
    comparison: tuple[MetricComparison, ...] = ()

    @property
    def approved(self) -> bool:
        judged = [check for check in self.checks if check.passed is not None]
        return bool(judged) and all(check.passed for check in judged)

    @property
    def used_comparison(self) -> bool:
        """Whether it took a look: whether the challenger was to be better than a champion on the hold-out."""
        return any(check.name.startswith(BETTER_THAN_PREFIX) and check.passed is not None for check in self.checks)

    @property
    def guaranteed(self) -> bool:
        """Whether the candidate is approved with a guarantee that the hold-out has checked."""
        return self.approved and self.no_guarantee is None

    @property
    def no_guarantee(self) -> str | None:
        """Why the candidate has no such guarantee; None where its guarantee was checked, kept or not."""
        return next((check.message for check in self.checks if check.name == GUARANTEE), None)

    @property
    def reasons(self) -> list[Reason]:
        """The failed checks: the field of a reason is the name of its check."""
        return [Reason(check.code, check.name, check.message) for check in self.checks if check.passed is False]

    def to_dict(self) -> dict[str, object]:
        checks = [{k: None if v != v else v for k, v in asdict(check).items()} for check in self.checks]
        return {
            "approved": self.approved,
            "guaranteed": self.guaranteed,
            "no_guarantee": self.no_guarantee,
            "more_reviews": self.more_reviews,
            "reasons": list(map(asdict, self.reasons)),
            "checks": checks,
            "comparison": [one.to_dict() for one in self.comparison],
        }


def describe_failure(reason: Reason) -> str:
    """One of `PromotionDecision.reasons`, which names what was asked for, as a sentence that says it was not met."""
    return f"the check `{reason.field}` failed: {reason.message}"


@dataclass(frozen=True)
class CandidateMeasurements:
    """Measurements of the challenger itself: its tuned threshold and target, parity and latency of all of its parts.

    `target_error_rate`: the largest share of all answers that may be shown and incorrect, where the threshold was tuned
    for it; `target_precision` is then the precision at that threshold. `champion_threshold` is the threshold that
    production uses now, None for a first version; `same_target`: whether it was tuned for the same metric and target.
    `missing_guarantee`: None where something is guaranteed of the candidate that the hold-out can check;
    `allow_missing_guarantee`: whether it may be promoted all the same. `forward_tokens` and `base_model_ms` are what
    the base model reads for an answer, and how long that takes here; not judged.
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
    base_model_ms: float | None = None


def check_candidate(
    holdout: EvaluationSet,
    newest: EvaluationSet,
    candidate: CandidateMeasurements,
    params: GateParams,
    champion: str | None,
    same_holdout: bool,
    erased: int = 0,
    rule: ComparisonRule = "better",
    budget: ComparisonBudget = EMPTY_BUDGET,
    prior_coverage_loss: float = 0.0,
) -> PromotionDecision:
    """Judge the challenger on the frozen hold-out and on the newest window.

    `champion` names its column in the windows' confidences, None for a first version. `same_holdout`: the
    hold-out is the one the champion was promoted on, except for `erased` of its answers, or a decision to change it was
    recorded. `rule`: how the two are compared. `budget`: the comparisons on this hold-out so far.
    `prior_coverage_loss`: what the champion shows less than the versions before it, as a share of all answers. Of a
    candidate without a guarantee only that, parity and latency are judged: there is nothing that the hold-out could
    bear out.
    """
    threshold, target = candidate.threshold, candidate.target_precision
    checks: list[PromotionCheck] = []
    found: list[drops.DegradationCheck] = []
    if candidate.target_error_rate is None:
        checks.append(check_precision_guarantee(holdout, threshold, target, params))
    else:
        checks.append(check_error_rate_guarantee(holdout, threshold, candidate.target_error_rate, params))
        found.append(drops.check_precision_drop(holdout, threshold, target, params))
    found += drops.check_candidate_alone(holdout, threshold, target, params)
    if champion is None:
        checks += [
            _check_better_than(holdout, LENGTH_ONLY, params),
            _check_better_than_base_rate(holdout, candidate, params),
        ]
        checks += drops.apply_significance(found, params)
    else:
        before = float("nan") if candidate.champion_threshold is None else candidate.champion_threshold
        found += [
            drops.check_coverage_drop(
                holdout, threshold, champion, before, candidate.same_target, prior_coverage_loss, params
            ),
            drops.check_newest_drop(newest, champion, params),
        ]
        if rule != "better":
            compared = against_champion.check_non_inferior(holdout, champion, params)
            found.append(drops.check_precision_difference(holdout, threshold, champion, before, params))
        elif have_same_confidences(holdout, champion):
            compared = against_champion.check_new_threshold(threshold, before)
        else:
            compared = against_champion.check_better(holdout, champion, params, budget)
        worse = drops.apply_significance(found, params)
        if rule == "accepted":
            compared = _mark_accepted(compared)
            worse = [_mark_accepted(check) if check.name in drops.CHAMPION_CHECKS else check for check in worse]
        checks += [_check_same_holdout(same_holdout, erased), compared, *worse]
    if candidate.missing_guarantee is not None:
        guarantee = candidate.missing_guarantee.to_check(candidate.allow_missing_guarantee, params.min_slice)
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
    more_reviews = candidate.missing_guarantee.more_reviews if candidate.missing_guarantee else None
    beside = compare_metrics(holdout, champion) if champion is not None else []
    return PromotionDecision(tuple(checks), more_reviews, tuple(beside))


def _check_latency(measured: CandidateMeasurements, params: GateParams) -> PromotionCheck:
    what = "p99 in ms of the scorer for one answer on one core"
    check = check_at_most(Code.LIMIT_EXCEEDED, "latency", measured.latency_p99_ms, params.max_latency_ms, what)
    if not measured.forward_tokens:
        return replace(check, message=f"{check.message}; no pass of the base model")
    reads = f"the base model reads {measured.forward_tokens:.0f} tokens before"
    if measured.base_model_ms is not None:
        reads += f", in {measured.base_model_ms:.0f} ms"
    return replace(check, message=f"{check.message}; {reads}")


def _check_same_holdout(same: bool, erased: int) -> PromotionCheck:
    if same:
        message = (
            f"as the champion's, without {erased} of its answers, which were erased" if erased else "as the champion's"
        )
    else:
        message = "differs from the champion's: if intended, run abstain promote --accept-new-holdout REASON"
    return PromotionCheck(Code.NEW_HOLDOUT, "same hold-out", same, float(same), 1.0, message)


def _mark_accepted(check: PromotionCheck) -> PromotionCheck:
    if check.passed is not False:
        return check
    return replace(check, passed=None, message=f"{check.message}; accepted")


def _check_better_than(window: EvaluationSet, rival: str, params: GateParams) -> PromotionCheck:
    own, other = window.compute_aurocs(rival)
    chance = paired_difference(own, other).probability_positive
    message = f"hold-out AUROC {own.value:.3f} against {other.value:.3f}; better with chance {chance:.3f}"
    return check_at_least(Code.NOT_BETTER, f"better than {rival}", chance, params.confidence, message)


def _check_better_than_base_rate(
    window: EvaluationSet, measured: CandidateMeasurements, params: GateParams
) -> PromotionCheck:
    of_shown = partial(metrics.precision, window.correct, window.confidences[CANDIDATE], threshold=measured.threshold)
    drawn = window.bootstrap({"shown": of_shown, "all": partial(metrics.weighted_mean, window.correct)})
    lift = paired_difference(drawn["shown"], drawn["all"])
    message = (
        f"shown answers are correct {lift.value:+.3f} more often than all "
        f"({metrics.weighted_mean(window.correct, window.weight):.3f}); so with chance {lift.probability_positive:.3f}"
    )
    return check_at_least(
        Code.NOT_BETTER, "better than base rate", lift.probability_positive, params.confidence, message
    )
