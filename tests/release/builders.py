"""Evaluation sets with known scorers, and the promotion checks on them."""

from dataclasses import replace
from datetime import UTC, datetime
from statistics import NormalDist
from typing import Any

import numpy as np

from abstain.config.params import PromotionParams
from abstain.release.evaluation_set import CANDIDATE, EvaluationSet, PromotionCheck
from abstain.release.promotion_check import CandidateMeasurements, PromotionDecision, check_candidate
from abstain.release.registry import RegistryEvent
from tests.checkout import shipped_params
from tests.learning.thresholds.builders import make_guarantee

PARAMS = shipped_params().promotion.model_copy(
    update={"max_comparisons": 2, "max_precision_drop": 0.05, "max_error_rate_excess": 0.05}
)
MIN_N_EFF = 20
CHAMPION = "v1.0.0"
MEASURED = CandidateMeasurements(
    threshold=0.5, target_precision=0.8, parity=1e-7, latency_p99_ms=2.0, champion_threshold=0.5
)


def make_confidences(correct: np.ndarray, sharpness: float, seed: int) -> np.ndarray:
    """Return calibrated confidences: the posterior of a noisy observation of `correct`."""
    observed = (2 * correct - 1) * sharpness + np.random.default_rng(seed).normal(size=len(correct))
    odds = np.exp(2 * sharpness * observed) * correct.mean() / (1 - correct.mean())
    return odds / (1 + odds)


def make_set(
    rows: int = 400, probe: float = 1.6, champion: float = 0.8, length: float = 0.3, seed: int = 0
) -> EvaluationSet:
    generator = np.random.default_rng(seed)
    correct = (generator.random(rows) < 0.6).astype(int)
    return EvaluationSet(
        correct=correct,
        groups=np.array([f"doc-{n % 50}" for n in range(rows)]),
        products=np.array(["gold", "blue"])[generator.integers(2, size=rows)],
        confidences={
            CANDIDATE: make_confidences(correct, probe, seed + 1),
            CHAMPION: make_confidences(correct, champion, seed + 2),
            "length_only": make_confidences(correct, length, seed + 3),
            "base_rate": np.full(rows, 0.6),
        },
    )


def make_equal_set() -> EvaluationSet:
    equal = make_set()
    equal.confidences[CHAMPION] = equal.confidences[CANDIDATE].copy()
    return equal


def make_related_set(rows: int, probe: float, champion: float, seed: int, correlation: float = 0.9) -> EvaluationSet:
    """Two probes that mostly make the same mistakes, each with the AUROC of `compute_true_auroc`."""
    generator = np.random.default_rng(seed)
    related = make_set(rows, seed=seed)
    shared, own = generator.normal(size=(2, rows))
    mixed = correlation * shared + (1 - correlation**2) ** 0.5 * own
    for name, sharpness, noise in ((CHAMPION, champion, shared), (CANDIDATE, probe, mixed)):
        observed = (2 * related.correct - 1) * sharpness + noise
        related.confidences[name] = 1 / (1 + np.exp(-2 * sharpness * observed) * 0.4 / 0.6)
    return related


def compute_true_auroc(sharpness: float) -> float:
    return NormalDist().cdf(2**0.5 * sharpness)


def check_set(
    holdout: EvaluationSet | None = None, newest: EvaluationSet | None = None, **options: Any
) -> PromotionDecision:
    """Run the promotion checks; `options` are arguments of `check_candidate`, measurements or promotion parameters."""
    measured = {name: options.pop(name) for name in vars(MEASURED) if name in options}
    params = {name: options.pop(name) for name in PromotionParams.model_fields if name in options}
    arguments = {"min_n_eff": MIN_N_EFF, "champion": CHAMPION, "same_holdout": True} | options
    return check_candidate(
        holdout or make_set(),
        newest or make_set(seed=10),
        candidate=replace(MEASURED, **measured),
        params=PARAMS.model_copy(update=params),
        **arguments,
    )


def get_failed(decision: PromotionDecision) -> set[str]:
    return {check.name for check in decision.checks if check.passed is False}


def get_check(decision: PromotionDecision, name: str) -> PromotionCheck:
    (check,) = (check for check in decision.checks if check.name == name)
    return check


def promotion(version: str = "v1.0.0", **changes: Any) -> RegistryEvent:
    fields: dict[str, Any] = {
        "action": "promote",
        "sha256": "0" * 64,
        "candidate_sha256": "0" * 64,
        "occurred_at": datetime(2026, 11, 1, tzinfo=UTC),
        "holdout_sha256": "0" * 64,
        "reason": "approved by the promotion checks",
        "guarantee": make_guarantee(),
        "scorer": "probe",
        "bundle_sha256": "0" * 64,
    }
    return RegistryEvent(**{**fields, "version": version, **changes})
