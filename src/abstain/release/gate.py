"""The promotion gate: checks whether a challenger may replace the champion. It fails closed and reports the reasons.

Every check is a `GateCheck` with the figure, the limit and one sentence; a figure that is nan fails. The first version
has no champion, but must beat the base rate and the length-only baseline. A champion that was trained on rows erased
since is replaced by a challenger that is not worse by more than a margin. Figures are weighted as in the report, and
answers are counted by their effective sample size (`metrics.effective_sample_size`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np

from abstain.config.params import GateParams
from abstain.core.codes import Code
from abstain.core.scorer_names import LENGTH_ONLY
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import Estimate, Figure, bootstrap, paired

CHALLENGER = "challenger"
"""The challenger's live scorer, among the confidences of a window."""
SAME = 1e-6
"""Confidences that differ by less are of one scorer: the champion's come from its ONNX files."""
GUARANTEE = "guarantee"
"""The name of the check of a candidate without a guarantee that the hold-out can check."""
Rule = Literal["better", "not_worse", "accepted"]
"""The required comparison with the champion. `not_worse`: the champion was trained on rows that were erased since.
`accepted`: in addition a user accepts a worse challenger, so that the comparison is shown but not judged."""


@dataclass(frozen=True)
class EvaluationWindow:
    """Answers that no version was trained on, with the scores of all. All arrays are (rows,).

    `confidences` holds the challenger's, the champion's where there is one, and the baselines'; `probability` the
    challenger's calibrated ones (None: its confidences are probabilities already). `weight` is that of
    `metrics.row_weights`; None: every answer counts the same.
    """

    correct: np.ndarray
    groups: np.ndarray
    products: np.ndarray
    confidences: dict[str, np.ndarray]
    weight: metrics.Weight = None
    probability: np.ndarray | None = None

    def precision(self, rows: np.ndarray) -> tuple[float, float]:
        """The share of correct answers among `rows` (a mask), and their effective sample size."""
        weight = np.ones(len(rows)) if self.weight is None else self.weight
        return metrics.mean(self.correct[rows], weight[rows]), metrics.effective_sample_size(weight[rows])

    def shown(self, threshold: float) -> np.ndarray:
        """The mask of answers that the challenger shows from `threshold` on."""
        return self.confidences[CHALLENGER] >= threshold

    def auroc(self, name: str) -> float:
        return float(metrics.auroc(self.correct, self.confidences[name], self.weight))

    def bootstrap(self, figures: Mapping[str, Figure], params: GateParams) -> dict[str, Estimate]:
        """`figures` on the same resamples of groups."""
        return bootstrap(figures, self.groups, params.bootstrap, params.seed, self.weight)


@dataclass(frozen=True)
class GateCheck:
    """One check of the gate; `code` is for its failure. `passed=None`: shown but not judged, for lack of rows."""

    code: Code
    name: str
    passed: bool | None
    value: float
    limit: float
    message: str


@dataclass(frozen=True)
class GateDecision:
    """The gate's decision. Approved when every judged check passed and at least one was judged.

    `more_reviews`: about how many more a guarantee takes; None with a guarantee, and where no number of them is known.
    """

    checks: tuple[GateCheck, ...] = field(default=())
    more_reviews: int | None = None

    @property
    def approved(self) -> bool:
        judged = [check for check in self.checks if check.passed is not None]
        return bool(judged) and all(check.passed for check in judged)

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
    production uses now, None for a first version. `unguaranteed`: None where something is guaranteed of the candidate
    that the hold-out can check; `may_lack_guarantee`: whether it may be promoted all the same. `forward_tokens` and
    `base_model_ms` are what the base model reads for an answer, and how long that takes here; not judged.
    """

    threshold: float
    target_precision: float
    parity: float
    latency_p99_ms: float
    champion_threshold: float | None = None
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
) -> GateDecision:
    """Judge the challenger on the frozen hold-out and on the newest window.

    `champion` names its column in the windows' confidences, None for a first version. `same_holdout`: the
    hold-out is the one the champion was promoted on, except for `erased` of its answers, or a decision to change it was
    recorded. `rule`: how the two are compared. Of a candidate without a guarantee only that, parity and latency are
    judged: there is nothing that the hold-out could bear out.
    """
    checks = [
        _calibration(holdout, params),
        _precision(holdout, measured, params),
        *_error_rate(holdout, measured, params),
        *_slices(holdout, measured, params),
    ]
    if champion is None:
        checks += [_better(holdout, LENGTH_ONLY, params), _better_than_base_rate(holdout, measured, params)]
    else:
        compared = [*_against(holdout, champion, measured, params, rule), _newest(newest, champion, params)]
        if rule == "accepted":
            compared = [_accepted(check) for check in compared]
        checks += [_same_holdout(same_holdout, erased), *compared]
    if measured.unguaranteed is not None:
        guarantee = _guarantee(measured.unguaranteed, measured.may_lack_guarantee, params.min_slice)
        checks = [*(replace(check, passed=None) for check in checks), guarantee]
    checks += [
        _at_most(
            Code.EXPORT_DIFFERS,
            "ONNX parity",
            measured.parity,
            params.max_parity,
            "largest difference to what was fitted",
        ),
        _latency(measured, params),
    ]
    return GateDecision(tuple(checks), measured.unguaranteed.more_reviews if measured.unguaranteed else None)


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
    state, value, limit = ("none", 0.0, 1) if found.shown is None else ("not checked", found.shown, least)
    message = f"{state}{' yet' if passed else ''}: {found.why}"
    return _check(Code.NO_THRESHOLD, GUARANTEE, passed, value, limit, message)


def _latency(measured: CandidateMeasurements, params: GateParams) -> GateCheck:
    what = "p99 in ms of the scorer for one answer on one core"
    check = _at_most(Code.GATE_LIMIT, "latency", measured.latency_p99_ms, params.max_latency_ms, what)
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
    return _check(Code.NEW_HOLDOUT, "same hold-out", same, float(same), 1, message)


def _against(
    window: EvaluationWindow, champion: str, measured: CandidateMeasurements, params: GateParams, rule: Rule
) -> list[GateCheck]:
    """The challenger beside the champion on the hold-out."""
    if rule != "better":
        return [_not_worse(window, champion, params), _as_precise(window, champion, measured, params)]
    if _same_confidences(window, champion):
        return [_new_threshold(measured)]
    return [_better(window, champion, params)]


def _accepted(check: GateCheck) -> GateCheck:
    if check.passed is not False:
        return check
    return replace(check, passed=None, message=f"{check.message}; accepted")


def _same_confidences(window: EvaluationWindow, champion: str) -> bool:
    difference = np.abs(window.confidences[CHALLENGER] - window.confidences[champion])
    return bool(difference.max(initial=0.0) <= SAME)


def _new_threshold(measured: CandidateMeasurements) -> GateCheck:
    """The champion's own weights with another threshold: `precision` checks whether it keeps its guarantee."""
    before = float("nan") if measured.champion_threshold is None else measured.champion_threshold
    message = f"the champion's confidences; threshold {measured.threshold:.3f}, in production {before:.3f}"
    return _check(
        Code.NOT_BETTER, "new threshold", abs(measured.threshold - before) > 0, measured.threshold, before, message
    )


def _better(window: EvaluationWindow, rival: str, params: GateParams) -> GateCheck:
    aurocs = {name: partial(metrics.auroc, window.correct, window.confidences[name]) for name in (CHALLENGER, rival)}
    drawn = window.bootstrap(aurocs, params)
    own, other = drawn[CHALLENGER], drawn[rival]
    chance = paired(own, other).chance
    message = f"hold-out AUROC {own.value:.3f} against {other.value:.3f}; better with chance {chance:.3f}"
    return _check(
        Code.NOT_BETTER, f"better than {rival}", chance >= params.confidence, chance, params.confidence, message
    )


def _not_worse(window: EvaluationWindow, champion: str, params: GateParams) -> GateCheck:
    """Non-inferiority: the lower bound of the paired difference lies above minus the margin."""
    aurocs = {name: partial(metrics.auroc, window.correct, window.confidences[name]) for name in (CHALLENGER, champion)}
    drawn = window.bootstrap(aurocs, params)
    own, other, margin = drawn[CHALLENGER], drawn[champion], params.erasure_margin
    chance = float((paired(own, other).draws > -margin).mean())  # an undefined draw is not above it
    message = (
        f"hold-out AUROC {own.value:.3f} against {other.value:.3f}; not worse by {margin:g} with chance {chance:.3f}"
    )
    return _check(
        Code.NOT_BETTER, f"not worse than {champion}", chance >= params.confidence, chance, params.confidence, message
    )


def _as_precise(
    window: EvaluationWindow, champion: str, measured: CandidateMeasurements, params: GateParams
) -> GateCheck:
    """The precision of each at its own threshold; not judged where the champion shows too few answers."""
    threshold = float("nan") if measured.champion_threshold is None else measured.champion_threshold
    before, n_eff = window.precision(window.confidences[champion] >= threshold)
    own, _ = window.precision(window.shown(measured.threshold))
    name, limit = f"as precise as {champion}", before - params.max_precision_drop
    if n_eff < params.min_slice:
        return GateCheck(
            Code.GUARANTEE_MISSED,
            name,
            None,
            own,
            limit,
            f"{champion} shows {n_eff:.0f} answers, too few to compare with",
        )
    message = f"{own:.3f} of the shown answers, {before:.3f} of those that {champion} shows; at least {limit:.3f}"
    return _check(Code.GUARANTEE_MISSED, name, own >= limit, own, limit, message)


def _better_than_base_rate(window: EvaluationWindow, measured: CandidateMeasurements, params: GateParams) -> GateCheck:
    of_shown = partial(metrics.precision, window.correct, window.confidences[CHALLENGER], threshold=measured.threshold)
    drawn = window.bootstrap({"shown": of_shown, "all": partial(metrics.mean, window.correct)}, params)
    lift = paired(drawn["shown"], drawn["all"])
    chance = lift.chance
    message = (
        f"shown answers are correct {lift.value:+.3f} more often than all "
        f"({metrics.mean(window.correct, window.weight):.3f}); so with chance {chance:.3f}"
    )
    return _check(
        Code.NOT_BETTER, "better than base rate", chance >= params.confidence, chance, params.confidence, message
    )


def _newest(window: EvaluationWindow, champion: str, params: GateParams) -> GateCheck:
    own, other = window.auroc(CHALLENGER), window.auroc(champion)
    name, limit, rows = "newest window", -params.max_newest_drop, len(window.correct)
    _, n_eff = window.precision(np.ones(rows, bool))
    if n_eff < params.min_slice:
        return GateCheck(
            Code.NOT_BETTER,
            name,
            None,
            own - other,
            limit,
            f"{_counted(rows, n_eff)} reviewed answers, too few to judge",
        )
    return _check(
        Code.NOT_BETTER,
        name,
        own - other >= limit,
        own - other,
        limit,
        f"AUROC {own:.3f} against {other:.3f}, {rows} answers",
    )


def _precision(window: EvaluationWindow, measured: CandidateMeasurements, params: GateParams) -> GateCheck:
    """The guarantee itself, on answers that the threshold was not tuned on."""
    shown = window.shown(measured.threshold)
    precision, n_eff = window.precision(shown)
    floor = measured.target_precision - params.max_precision_drop
    count = _counted(int(shown.sum()), n_eff)
    message = f"{precision:.3f} of {count} shown answers; at least {floor:.3f} of {params.min_slice}"
    return _check(
        Code.GUARANTEE_MISSED, "precision", n_eff >= params.min_slice and precision >= floor, precision, floor, message
    )


def _error_rate(window: EvaluationWindow, measured: CandidateMeasurements, params: GateParams) -> list[GateCheck]:
    """The guarantee itself where it is for the error rate."""
    if measured.target_error_rate is None:
        return []
    shown = window.shown(measured.threshold)
    value = metrics.mean(shown * (1 - window.correct), window.weight)
    limit = measured.target_error_rate + params.max_error_rate_excess
    return [
        _at_most(
            Code.GUARANTEE_MISSED, "error rate", value, limit, "shown and incorrect, of all answers of the hold-out"
        )
    ]


def _slices(window: EvaluationWindow, measured: CandidateMeasurements, params: GateParams) -> list[GateCheck]:
    checks = []
    shown = window.shown(measured.threshold)
    floor = measured.target_precision - params.max_slice_drop
    for product in sorted(set(window.products)):
        rows = shown & (window.products == product)
        precision, n_eff = window.precision(rows)
        message = f"precision {precision:.3f} of {_counted(int(rows.sum()), n_eff)} shown answers"
        passed = bool(precision >= floor) if n_eff >= params.min_slice else None
        checks.append(GateCheck(Code.GUARANTEE_MISSED, f"slice {product}", passed, precision, floor, message))
    return checks


def _calibration(window: EvaluationWindow, params: GateParams) -> GateCheck:
    said = window.confidences[CHALLENGER] if window.probability is None else window.probability
    value = metrics.ece(window.correct, said, window.weight)
    return _at_most(Code.GATE_LIMIT, "calibration", value, params.max_ece, "expected calibration error on the hold-out")


def _counted(rows: int, n_eff: float) -> str:
    return f"{rows}" if n_eff == rows else f"{rows} (n_eff {n_eff:.0f})"


def _at_most(code: Code, name: str, value: float, limit: float, what: str) -> GateCheck:
    return _check(code, name, value <= limit, value, limit, f"{what}: {value:.3g}, at most {limit:g}")


def _check(code: Code, name: str, passed: bool, value: float, limit: float, message: str) -> GateCheck:
    return GateCheck(code, name, bool(passed), float(value), float(limit), message)
