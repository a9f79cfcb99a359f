"""The promotion gate: may this challenger replace the champion? It fails closed, and says why.

Every check is a `Check` with the figure, the limit and one sentence; a figure that is nan fails. The first
version has no champion and no free pass: it must beat the base rate and the length-only baseline. Figures are
weighted as in the report, and answers are counted by what they are worth (`metrics.effective_rows`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np

from abstain.config.params import GateParams
from abstain.evaluate import metrics
from abstain.evaluate.bootstrap import Estimate, Figure, bootstrap, paired


@dataclass(frozen=True)
class Window:
    """Answers that no version was trained on, scored by everyone. All arrays are (rows,).

    `confidences` holds the challenger's, the champion's where there is one, and the baselines'; `probability` what the
    challenger's calibration makes of its own (None: they are probabilities as they are). `weight` is that of
    `metrics.row_weights`; None: every answer counts the same.
    """

    correct: np.ndarray
    groups: np.ndarray
    products: np.ndarray
    confidences: dict[str, np.ndarray]
    weight: metrics.Weight = None
    probability: np.ndarray | None = None

    def precision(self, rows: np.ndarray) -> tuple[float, float]:
        """The share of right answers among `rows` (a mask), and how many equally weighted answers they are worth."""
        weight = np.ones(len(rows)) if self.weight is None else self.weight
        return metrics.mean(self.correct[rows], weight[rows]), metrics.effective_rows(weight[rows])

    def shown(self, threshold: float) -> np.ndarray:
        """Which answers the challenger shows from `threshold` on: a mask."""
        return self.confidences["probe"] >= threshold

    def auroc(self, name: str) -> float:
        return float(metrics.auroc(self.correct, self.confidences[name], self.weight))

    def bootstrap(self, figures: Mapping[str, Figure], params: GateParams) -> dict[str, Estimate]:
        """`figures` on the same resamples of groups."""
        return bootstrap(figures, self.groups, params.bootstrap, params.seed, self.weight)


@dataclass(frozen=True)
class Check:
    """One question the gate asked. `passed=None`: shown, not judged, for want of rows."""

    name: str
    passed: bool | None
    value: float
    limit: float
    says: str


@dataclass(frozen=True)
class Decision:
    """The gate's answer. Approved when every judged check passed and at least one was judged."""

    checks: tuple[Check, ...] = field(default=())

    @property
    def approved(self) -> bool:
        judged = [check for check in self.checks if check.passed is not None]
        return bool(judged) and all(check.passed for check in judged)

    @property
    def reasons(self) -> list[str]:
        return [f"{check.name}: {check.says}" for check in self.checks if check.passed is False]

    def to_dict(self) -> dict[str, object]:
        checks = [{k: None if v != v else v for k, v in asdict(check).items()} for check in self.checks]
        return {"approved": self.approved, "reasons": self.reasons, "checks": checks}


@dataclass(frozen=True)
class Measured:
    """What is measured of the challenger itself: its tuned threshold and target, parity and latency.

    `target_error_rate`: the most of all answers that may be shown and wrong, where that is what the threshold was tuned
    for; `target_precision` is the precision that came with it then. `champion_threshold` is the threshold that
    production uses now, None for a first version.
    """

    threshold: float
    target_precision: float
    parity: float
    latency_p99_ms: float
    champion_threshold: float | None = None
    target_error_rate: float | None = None


def decide(
    holdout: Window, newest: Window, measured: Measured, params: GateParams, champion: str | None, same_holdout: bool
) -> Decision:
    """Judge the challenger on the frozen hold-out and on the newest window.

    `champion` names its column in the windows' confidences, None for a first version. `same_holdout`: the
    hold-out is the one the champion was promoted on, or a decision to change it is on record.
    """
    checks = [
        _calibration(holdout, params),
        _precision(holdout, measured, params),
        *_error_rate(holdout, measured, params),
        *_slices(holdout, measured, params),
    ]
    if champion is None:
        checks += [_better(holdout, "length_only", params), _better_than_base_rate(holdout, measured, params)]
    else:
        checks += [
            _same_holdout(same_holdout),
            _new_threshold(measured) if _same_confidences(holdout, champion) else _better(holdout, champion, params),
            _newest(newest, champion, params),
        ]
    checks += [
        _at_most("ONNX parity", measured.parity, params.max_parity, "largest difference to torch"),
        _at_most("latency", measured.latency_p99_ms, params.max_latency_ms, "p99 in ms for one answer on one core"),
    ]
    return Decision(tuple(checks))


def _same_holdout(same: bool) -> Check:
    says = (
        "as the champion's"
        if same
        else "not the champion's: where that is on purpose, run abstain promote --new-holdout REASON"
    )
    return _check("same hold-out", same, float(same), 1, says)


def _same_confidences(window: Window, champion: str) -> bool:
    return np.array_equal(window.confidences["probe"], window.confidences[champion])


def _new_threshold(measured: Measured) -> Check:
    """The champion's own weights with another threshold: whether that keeps its promise is said by `precision`."""
    before = float("nan") if measured.champion_threshold is None else measured.champion_threshold
    says = f"the champion's confidences; threshold {measured.threshold:.3f}, in production {before:.3f}"
    return _check("new threshold", abs(measured.threshold - before) > 0, measured.threshold, before, says)


def _better(window: Window, rival: str, params: GateParams) -> Check:
    aurocs = {name: partial(metrics.auroc, window.correct, window.confidences[name]) for name in ("probe", rival)}
    drawn = window.bootstrap(aurocs, params)
    own, other = drawn["probe"], drawn[rival]
    chance = paired(own, other).chance
    says = f"hold-out AUROC {own.value:.3f} against {other.value:.3f}; better with chance {chance:.3f}"
    return _check(f"better than {rival}", chance >= params.confidence, chance, params.confidence, says)


def _better_than_base_rate(window: Window, measured: Measured, params: GateParams) -> Check:
    of_shown = partial(metrics.precision, window.correct, window.confidences["probe"], threshold=measured.threshold)
    drawn = window.bootstrap({"shown": of_shown, "all": partial(metrics.mean, window.correct)}, params)
    lift = paired(drawn["shown"], drawn["all"])
    chance = lift.chance
    says = (
        f"shown answers are right {lift.value:+.3f} more often than all "
        f"({metrics.mean(window.correct, window.weight):.3f}); so with chance {chance:.3f}"
    )
    return _check("better than base rate", chance >= params.confidence, chance, params.confidence, says)


def _newest(window: Window, champion: str, params: GateParams) -> Check:
    own, other = window.auroc("probe"), window.auroc(champion)
    name, limit, rows = "newest window", -params.max_newest_drop, len(window.correct)
    _, worth = window.precision(np.ones(rows, bool))
    if worth < params.min_slice:
        return Check(name, None, own - other, limit, f"{_counted(rows, worth)} reviewed answers, too few to judge")
    return _check(
        name, own - other >= limit, own - other, limit, f"AUROC {own:.3f} against {other:.3f}, {rows} answers"
    )


def _precision(window: Window, measured: Measured, params: GateParams) -> Check:
    """The promise itself, on answers that the threshold was not tuned on."""
    shown = window.shown(measured.threshold)
    precision, worth = window.precision(shown)
    floor = measured.target_precision - params.max_precision_drop
    count = _counted(int(shown.sum()), worth)
    says = f"{precision:.3f} of {count} shown answers; at least {floor:.3f} of {params.min_slice}"
    return _check("precision", worth >= params.min_slice and precision >= floor, precision, floor, says)


def _error_rate(window: Window, measured: Measured, params: GateParams) -> list[Check]:
    """The promise itself where it is one of the error rate, which may lie as far above as a precision below."""
    if measured.target_error_rate is None:
        return []
    shown = window.shown(measured.threshold)
    value = metrics.mean(shown * (1 - window.correct), window.weight)
    limit = measured.target_error_rate + params.max_precision_drop
    return [_at_most("error rate", value, limit, "shown and wrong, of all answers of the hold-out")]


def _slices(window: Window, measured: Measured, params: GateParams) -> list[Check]:
    checks = []
    shown = window.shown(measured.threshold)
    floor = measured.target_precision - params.max_slice_drop
    for product in sorted(set(window.products)):
        rows = shown & (window.products == product)
        precision, worth = window.precision(rows)
        says = f"precision {precision:.3f} of {_counted(int(rows.sum()), worth)} shown answers"
        passed = bool(precision >= floor) if worth >= params.min_slice else None
        checks.append(Check(f"slice {product}", passed, precision, floor, says))
    return checks


def _calibration(window: Window, params: GateParams) -> Check:
    said = window.confidences["probe"] if window.probability is None else window.probability
    value = metrics.ece(window.correct, said, window.weight)
    return _at_most("calibration", value, params.max_ece, "expected calibration error on the hold-out")


def _counted(rows: int, worth: float) -> str:
    return f"{rows}" if worth == rows else f"{rows} (worth {worth:.0f})"


def _at_most(name: str, value: float, limit: float, what: str) -> Check:
    return _check(name, value <= limit, value, limit, f"{what}: {value:.3g}, at most {limit:g}")


def _check(name: str, passed: bool, value: float, limit: float, says: str) -> Check:
    return Check(name, bool(passed), float(value), float(limit), says)
