"""The promotion gate: checks whether a challenger may replace the champion. It fails closed and reports the reasons.

Every check is a `GateCheck` with the figure, the limit and one sentence; a figure that is nan fails. The first version
has no champion, but must beat the base rate and the length-only baseline. A champion that was trained on rows erased
since is replaced by a challenger that is not worse by more than a margin. Figures are weighted as in the report, and
answers are counted by their effective sample size (`metrics.effective_sample_size`).

Night after night challengers are compared with the champion on one hold-out. The chance that any of them is promoted
though it is no better is at most `gate.false_promotions`: each look has an equal part of it, for `gate.looks` looks.
The further checks ask what got worse (`drops`).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np

from abstain.config.params import GateParams
from abstain.core.codes import Code
from abstain.core.scorer_names import LENGTH_ONLY
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import paired
from abstain.release import drops
from abstain.release.comparison import Compared, compare
from abstain.release.evaluation_window import CHALLENGER, EvaluationWindow, GateCheck, at_least, at_most, counted

SAME = 1e-6
"""Confidences that differ by less are of one scorer: the champion's come from its ONNX files."""
GUARANTEE = "guarantee"
"""The name of the check of a candidate without a guarantee that the hold-out can check."""
BETTER_THAN_CHAMPION = "better than champion "
Rule = Literal["better", "not_worse", "accepted"]
"""The required comparison with the champion. `not_worse`: the champion was trained on rows that were erased since.
`accepted`: in addition a user accepts a worse challenger, so that the comparison is shown but not judged."""


@dataclass(frozen=True)
class GateDecision:
    """The gate's decision. Approved when every judged check passed and at least one was judged.

    `more_reviews`: about how many more a guarantee takes; None with a guarantee, and where no number of them is known.
    `comparison`: further figures beside the champion's, which are not judged.
    """

    checks: tuple[GateCheck, ...] = field(default=())
    more_reviews: int | None = None
    comparison: tuple[Compared, ...] = ()

    @property
    def approved(self) -> bool:
        judged = [check for check in self.checks if check.passed is not None]
        return bool(judged) and all(check.passed for check in judged)

    @property
    def compared(self) -> bool:
        """Whether it took a look: whether the challenger was to be better than a champion on the hold-out."""
        return any(check.name.startswith(BETTER_THAN_CHAMPION) and check.passed is not None for check in self.checks)

    @property
    def guaranteed(self) -> bool:
        """Whether the candidate is approved with a guarantee that the hold-out has checked."""
        return self.approved and self.no_guarantee is None

    @property
    def no_guarantee(self) -> str | None:
        """Why the candidate has no such guarantee; None where its guarantee was checked, kept or not."""
        return next((check.message for check in self.checks if check.name == GUARANTEE), None)

    @property
    def reasons(self) -> list[str]:
        return [f"{check.code} {check.name}: {check.message}" for check in self.checks if check.passed is False]

    def to_dict(self) -> dict[str, object]:
        checks = [{k: None if v != v else v for k, v in asdict(check).items()} for check in self.checks]
        return {
            "approved": self.approved,
            "guaranteed": self.guaranteed,
            "no_guarantee": self.no_guarantee,
            "more_reviews": self.more_reviews,
            "reasons": self.reasons,
            "checks": checks,
            "comparison": [one.to_dict() for one in self.comparison],
        }


@dataclass(frozen=True)
class NoGuarantee:
    """Why nothing is guaranteed of a candidate, and about how many more reviews, of all splits, would change that.

    `more_reviews` is None where no number of them is known to. `shown`: None where the validation split gives no
    guarantee; else the effective sample size of the answers that the hold-out shows, which are too few to check it.
    """

    why: str
    more_reviews: int | None
    shown: float | None = None


@dataclass(frozen=True)
class CandidateMeasurements:
    """Measurements of the challenger itself: its tuned threshold and target, parity and latency of all of its parts.

    `target_error_rate`: the largest share of all answers that may be shown and incorrect, where the threshold was tuned
    for it; `target_precision` is then the precision at that threshold. `champion_threshold` is the threshold that
    production uses now, None for a first version; `same_target`: whether it was tuned for the same metric and target.
    `unguaranteed`: None where something is guaranteed of the candidate that the hold-out can check;
    `may_lack_guarantee`: whether it may be promoted all the same. `forward_tokens` and `base_model_ms` are what the
    base model reads for an answer, and how long that takes here; not judged.
    """

    threshold: float
    target_precision: float
    parity: float
    latency_p99_ms: float
    champion_threshold: float | None = None
    same_target: bool = True
    target_error_rate: float | None = None
    unguaranteed: NoGuarantee | None = None
    may_lack_guarantee: bool = False
    forward_tokens: float = 0.0
    base_model_ms: float | None = None


def decide(
    holdout: EvaluationWindow,
    newest: EvaluationWindow,
    measured: CandidateMeasurements,
    params: GateParams,
    champion: str | None,
    same_holdout: bool,
    erased: int = 0,
    rule: Rule = "better",
    look: int = 1,
) -> GateDecision:
    """Judge the challenger on the frozen hold-out and on the newest window.

    `champion` names its column in the windows' confidences, None for a first version. `same_holdout`: the
    hold-out is the one the champion was promoted on, except for `erased` of its answers, or a decision to change it was
    recorded. `rule`: how the two are compared. `look`: the how-manieth comparison on this hold-out this is. Of a
    candidate without a guarantee only that, parity and latency are judged: there is nothing that the hold-out could
    bear out.
    """
    threshold, target = measured.threshold, measured.target_precision
    checks: list[GateCheck] = []
    found: list[drops.Drop] = []
    if measured.target_error_rate is None:
        checks.append(_precision(holdout, measured, params))
    else:
        checks.append(_error_rate(holdout, measured.target_error_rate, threshold, params))
        found.append(drops.precision_drop(holdout, threshold, target, params))
    found += drops.of_challenger(holdout, threshold, target, params)
    if champion is None:
        checks += [_better(holdout, LENGTH_ONLY, params), _better_than_base_rate(holdout, measured, params)]
        checks += drops.judged(found, params)
    else:
        before = float("nan") if measured.champion_threshold is None else measured.champion_threshold
        found += [
            drops.coverage_drop(holdout, threshold, champion, before, measured.same_target, params),
            drops.newest_drop(newest, champion, params),
        ]
        compared = _against(holdout, champion, measured, params, rule, look)
        worse = drops.judged(found, params)
        if rule == "accepted":
            compared = [_accepted(check) for check in compared]
            worse = [_accepted(check) if check.name in drops.BESIDE_CHAMPION else check for check in worse]
        checks += [_same_holdout(same_holdout, erased), *compared, *worse]
    if measured.unguaranteed is not None:
        guarantee = _guarantee(measured.unguaranteed, measured.may_lack_guarantee, params.min_slice)
        checks = [*(replace(check, passed=None) for check in checks), guarantee]
    checks += [
        at_most(
            Code.EXPORT_DIFFERS,
            "ONNX parity",
            measured.parity,
            params.max_parity,
            "largest difference to what was fitted",
        ),
        _latency(measured, params),
    ]
    more_reviews = measured.unguaranteed.more_reviews if measured.unguaranteed else None
    beside = compare(holdout, champion, params) if champion is not None else []
    return GateDecision(tuple(checks), more_reviews, tuple(beside))


def unchecked_guarantee(
    holdout: EvaluationWindow, threshold: float, params: GateParams, reviews: int, frozen: bool
) -> NoGuarantee | None:
    """Why the hold-out cannot check the guarantee of `threshold` yet; None where it shows `params.min_slice` answers.

    Args:
        reviews: the number of reviewed answers in all splits.
        frozen: whether the hold-out takes in no more answers, so that no number of reviews would do.
    """
    shown = holdout.shown(threshold)
    _, n_eff = holdout.precision(shown)
    if n_eff >= params.min_slice:
        return None
    rows = int(shown.sum())
    counted = f"{rows}" if round(n_eff, 1) == rows else f"{rows} (n_eff {n_eff:.1f})"
    why = f"the hold-out shows {counted if rows else 'none'} of its reviewed answers, {params.min_slice} are needed"
    more = None if frozen or not rows else math.ceil(reviews * (params.min_slice - n_eff) / n_eff)
    if frozen:
        why += ", and it is frozen: move split.holdout_frozen_at, or set it to null"
    else:
        why += ": bring more reviews" if more is None else f": bring about {more:,} more reviews"
    return NoGuarantee(why, more, n_eff)


def _guarantee(found: NoGuarantee, passed: bool, least: int) -> GateCheck:
    state, value, limit = ("none", 0.0, 1.0) if found.shown is None else ("not checked", found.shown, float(least))
    message = f"{state}{' yet' if passed else ''}: {found.why}"
    return GateCheck(Code.NO_THRESHOLD, GUARANTEE, passed, value, limit, message)


def _latency(measured: CandidateMeasurements, params: GateParams) -> GateCheck:
    what = "p99 in ms of the scorer for one answer on one core"
    check = at_most(Code.GATE_LIMIT, "latency", measured.latency_p99_ms, params.max_latency_ms, what)
    if not measured.forward_tokens:
        return replace(check, message=f"{check.message}; no pass of the base model")
    reads = f"the base model reads {measured.forward_tokens:.0f} tokens before"
    if measured.base_model_ms is not None:
        reads += f", in {measured.base_model_ms:.0f} ms"
    return replace(check, message=f"{check.message}; {reads}")


def _same_holdout(same: bool, erased: int) -> GateCheck:
    if same:
        message = (
            f"as the champion's, without {erased} of its answers, which were erased" if erased else "as the champion's"
        )
    else:
        message = "differs from the champion's: if intended, run abstain promote --accept-new-holdout REASON"
    return GateCheck(Code.NEW_HOLDOUT, "same hold-out", same, float(same), 1.0, message)


def _precision(window: EvaluationWindow, measured: CandidateMeasurements, params: GateParams) -> GateCheck:
    """The guarantee itself, on answers that the threshold was not tuned on."""
    shown = window.shown(measured.threshold)
    precision, n_eff = window.precision(shown)
    floor = measured.target_precision - params.max_precision_drop
    count = counted(int(shown.sum()), n_eff)
    message = f"{precision:.3f} of {count} shown answers; at least {floor:.3f} of {params.min_slice}"
    check = at_least(Code.GUARANTEE_MISSED, "precision", precision, floor, message)
    return check if n_eff >= params.min_slice else replace(check, passed=False)


def _error_rate(window: EvaluationWindow, target: float, threshold: float, params: GateParams) -> GateCheck:
    """The guarantee itself where it is for the error rate."""
    shown = window.shown(threshold)
    _, n_eff = window.precision(shown)
    value = metrics.mean(shown * (1 - window.correct), window.weight)
    count = counted(int(shown.sum()), n_eff)
    what = f"shown and incorrect, of all answers of the hold-out, {count} of them shown ({params.min_slice} are needed)"
    check = at_most(Code.GUARANTEE_MISSED, "error rate", value, target + params.max_error_rate_excess, what)
    return check if n_eff >= params.min_slice else replace(check, passed=False)


def _against(
    window: EvaluationWindow,
    champion: str,
    measured: CandidateMeasurements,
    params: GateParams,
    rule: Rule,
    look: int,
) -> list[GateCheck]:
    """The challenger beside the champion on the hold-out."""
    if rule != "better":
        return [_not_worse(window, champion, params), _as_precise(window, champion, measured, params)]
    if _same_confidences(window, champion):
        return [_new_threshold(measured)]
    return [_better_than_champion(window, champion, params, look)]


def _accepted(check: GateCheck) -> GateCheck:
    if check.passed is not False:
        return check
    return replace(check, passed=None, message=f"{check.message}; accepted")


def _same_confidences(window: EvaluationWindow, champion: str) -> bool:
    difference = np.abs(window.confidences[CHALLENGER] - window.confidences[champion])
    return bool(difference.max(initial=0.0) <= SAME)


def _new_threshold(measured: CandidateMeasurements) -> GateCheck:
    """The champion's own weights with another threshold, whose guarantee and coverage are checked like any other's."""
    before = float("nan") if measured.champion_threshold is None else measured.champion_threshold
    message = f"the champion's confidences; threshold {measured.threshold:.3f}, in production {before:.3f}"
    moved = abs(measured.threshold - before) > 0
    return GateCheck(Code.NOT_BETTER, "new threshold", moved, measured.threshold, before, message)


def _better_than_champion(window: EvaluationWindow, champion: str, params: GateParams, look: int) -> GateCheck:
    """A one-sided t-test of the paired difference in AUROC, at this look's part of `false_promotions`."""
    from scipy.stats import t

    own, other = window.aurocs(champion, params)
    difference, error = own.value - other.value, paired(own, other).standard_error
    p_value = float(t.sf(difference / error, len(np.unique(window.groups)) - 1)) if error > 0 else float("nan")
    level = params.false_promotions / params.looks
    message = (
        f"hold-out AUROC {own.value:.3f} against {other.value:.3f}, difference {difference:+.3f} (standard error "
        f"{error:.3f}); p = {p_value:.2g}, at most {level:.2g} (look {look} of {params.looks} at this hold-out)"
    )
    name = f"{BETTER_THAN_CHAMPION}{champion}"
    if look > params.looks:
        message = (
            f"this hold-out was compared on {look - 1} times, as often as gate.looks allows: take a new one (docs/"
            "thresholds.md, A hold-out that is used up)"
        )
        return GateCheck(Code.NOT_BETTER, name, False, p_value, level, message)
    return GateCheck(Code.NOT_BETTER, name, p_value <= level, p_value, level, message)


def _better(window: EvaluationWindow, rival: str, params: GateParams) -> GateCheck:
    own, other = window.aurocs(rival, params)
    chance = paired(own, other).chance
    message = f"hold-out AUROC {own.value:.3f} against {other.value:.3f}; better with chance {chance:.3f}"
    return at_least(Code.NOT_BETTER, f"better than {rival}", chance, params.confidence, message)


def _not_worse(window: EvaluationWindow, champion: str, params: GateParams) -> GateCheck:
    """Non-inferiority: the lower bound of the paired difference lies above minus the margin."""
    own, other = window.aurocs(champion, params)
    margin = params.erasure_margin
    chance = float((paired(own, other).draws > -margin).mean())  # an undefined draw is not above it
    message = (
        f"hold-out AUROC {own.value:.3f} against {other.value:.3f}; not worse by {margin:g} with chance {chance:.3f}"
    )
    return at_least(Code.NOT_BETTER, f"not worse than {champion}", chance, params.confidence, message)


def _as_precise(
    window: EvaluationWindow, champion: str, measured: CandidateMeasurements, params: GateParams
) -> GateCheck:
    """The precision of each at its own threshold; not judged where the champion shows too few answers."""
    threshold = float("nan") if measured.champion_threshold is None else measured.champion_threshold
    before, n_eff = window.precision(window.shown(threshold, champion))
    own, _ = window.precision(window.shown(measured.threshold))
    name, limit = f"as precise as {champion}", before - params.max_precision_drop
    message = f"{own:.3f} of the shown answers, {before:.3f} of those that {champion} shows; at least {limit:.3f}"
    check = at_least(Code.GUARANTEE_MISSED, name, own, limit, message)
    if n_eff >= params.min_slice:
        return check
    return replace(check, passed=None, message=f"{champion} shows {n_eff:.0f} answers, too few to compare with")


def _better_than_base_rate(window: EvaluationWindow, measured: CandidateMeasurements, params: GateParams) -> GateCheck:
    of_shown = partial(metrics.precision, window.correct, window.confidences[CHALLENGER], threshold=measured.threshold)
    drawn = window.bootstrap({"shown": of_shown, "all": partial(metrics.mean, window.correct)}, params)
    lift = paired(drawn["shown"], drawn["all"])
    message = (
        f"shown answers are correct {lift.value:+.3f} more often than all "
        f"({metrics.mean(window.correct, window.weight):.3f}); so with chance {lift.chance:.3f}"
    )
    return at_least(Code.NOT_BETTER, "better than base rate", lift.chance, params.confidence, message)
