"""The shadow: a candidate that decides on the same traffic as production, without effect on what is shown.

`shadow.json` names the candidate and the version that it is compared with. Its bundle is `shadow/`, under a tag of its
own. Reviews of answers that both decided about compare the two. Such a comparison counts as one of those on the
hold-out (`champion_comparison.ComparisonBudget`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from abstain.config.params import PromotionParams, ShadowParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError, describe_first_problem
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import Statistic
from abstain.release.champion_comparison import ComparisonBudget, check_better, have_same_confidences
from abstain.release.evaluation_set import CANDIDATE, EvaluationSet, PromotionCheck
from abstain.release.metric_comparison import MetricComparison, compare_metrics, compare_statistics
from abstain.release.registry import Version

ShadowOutcome = Literal["better", "inconclusive", "worse"]
MIN_GROUPS = 10
"""Paired reviews in fewer groups are not compared."""


class Shadow(BaseModel):
    """The parsed `shadow.json`.

    Attributes:
        schema_version: Version of the format.
        candidate_sha256: sha256 (hex) of the candidate's ONNX file.
        production_version: Version in production when the shadow was set.
        created_at: Time when it was set.
        sha256: sha256 (hex) of the bundle's probe.onnx.
        bundle_sha256: Digest of all files of the bundle, as in `registry.RegistryEvent`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    candidate_sha256: str
    production_version: Version
    created_at: datetime
    sha256: str
    bundle_sha256: str

    @property
    def version(self) -> str:
        """Its name in its ONNX file, in the decision log and in records."""
        return make_shadow_name(self.candidate_sha256)

    @property
    def tag(self) -> str:
        """The tag of its bundle; equal tags have equal files."""
        return f"shadow/{self.candidate_sha256[:12]}-{self.bundle_sha256[:8]}"


def make_shadow_name(candidate: str) -> str:
    """Return the name of a candidate as a shadow.

    Args:
        candidate: sha256 (hex) of its ONNX file.

    Returns:
        The name.
    """
    return f"shadow-{candidate[:12]}"


def parse_shadow(text: str) -> Shadow:
    """Parse `shadow.json`.

    Args:
        text: Content of the file.

    Returns:
        The shadow.

    Raises:
        AbstainError: The file is damaged.
    """
    try:
        return Shadow.model_validate_json(text)
    except ValidationError as error:
        message = f"shadow.json is damaged ({describe_first_problem(error)}): set it again, `abstain shadow set`"
        raise AbstainError(Code.DAMAGED_DATA, message) from None


def should_shadow_rejected(params: ShadowParams, shadow: Shadow | None, production_version: str) -> bool:
    """Decide whether a rejected candidate becomes the shadow by itself.

    It does so only if this version has no shadow yet, because reviews of a shadow take time.

    Args:
        params: Shadow parameters.
        shadow: The current shadow.
        production_version: The version in production.

    Returns:
        Whether it becomes the shadow.
    """
    return params.from_rejected and (shadow is None or shadow.production_version != production_version)


@dataclass(frozen=True)
class ShadowComparison:
    """The comparison of shadow and production by paired reviews.

    Attributes:
        outcome: Whether the shadow is better, worse or neither.
        check: The test of the difference in AUROC, as on the hold-out.
        metrics: Paired metrics of both.
        shown_counts: Who shows an answer ("both", "production", "shadow", "neither") -> number of answers, and number
            of correct ones.
    """

    outcome: ShadowOutcome
    check: PromotionCheck
    metrics: tuple[MetricComparison, ...]
    shown_counts: dict[str, dict[str, int]]


def require_enough_reviews(evaluation: EvaluationSet, min_n_eff: int) -> None:
    """Require enough paired reviews for a comparison, because a comparison of too few would be wasted.

    Args:
        evaluation: Paired reviews.
        min_n_eff: Required number of reviews.

    Raises:
        AbstainError: There are fewer than `min_n_eff` reviews or `MIN_GROUPS` groups.
    """
    rows, n_groups = len(evaluation.correct), len(np.unique(evaluation.groups))
    if rows < min_n_eff or n_groups < MIN_GROUPS:
        raise AbstainError(
            Code.TOO_FEW_LABELS,
            f"{rows} answers about {n_groups} documents that both have decided about have a drawn review, and "
            f"{min_n_eff} about {MIN_GROUPS} are needed: `abstain ingest`, then `abstain review export`",
        )


def compare_shadow(
    evaluation: EvaluationSet,
    champion: str,
    thresholds: dict[str, float],
    params: PromotionParams,
    budget: ComparisonBudget,
) -> ShadowComparison:
    """Compare the shadow with the version in production on answers that both decided about.

    The test is two-sided, each side at the alpha of one comparison. It counts as one comparison on the hold-out.

    Args:
        evaluation: Paired reviews; the shadow is the candidate.
        champion: Name of the version in production.
        thresholds: Threshold by scorer.
        params: Promotion parameters.
        budget: Comparisons already made on this hold-out.

    Returns:
        "better", "inconclusive" or "worse", with the test, paired metrics and counts of shown answers.

    Raises:
        AbstainError: The budget is used up, or both have the same confidences.
    """
    if budget.spend(params) is None:
        raise AbstainError(
            Code.NOT_BETTER,
            f"this hold-out was compared on {budget.used} times, as often as promotion.max_comparisons allows, and a "
            "shadow's reviews would be one more: take a new one (docs/methods/thresholds.md, A used-up hold-out)",
        )
    if have_same_confidences(evaluation, champion):
        raise AbstainError(
            Code.NOT_BETTER,
            f"the shadow gives the same confidences as {champion}: there is nothing to compare, and nothing is spent",
        )
    check = check_better(evaluation, champion, params, budget, rows="paired reviews:")
    outcome: ShadowOutcome = "inconclusive"
    if check.passed:
        outcome = "better"
    elif 1 - check.value <= check.limit:  # not so of nan
        outcome = "worse"
    comparisons = (*compare_metrics(evaluation, champion), *_compare_at_thresholds(evaluation, champion, thresholds))
    return ShadowComparison(outcome, check, comparisons, _count_shown(evaluation, champion, thresholds))


def _compare_at_thresholds(
    evaluation: EvaluationSet, champion: str, thresholds: dict[str, float]
) -> list[MetricComparison]:
    """Compare coverage and precision, each at its own threshold."""
    statistics: dict[str, dict[str, Statistic]] = {
        name: {
            scorer: partial(metric, evaluation.correct, evaluation.confidences[scorer], threshold=thresholds[scorer])
            for scorer in (CANDIDATE, champion)
        }
        for name, metric in (("shown", metrics.coverage), ("precision of what is shown", metrics.precision))
    }
    return compare_statistics(evaluation, champion, statistics)


def _count_shown(evaluation: EvaluationSet, champion: str, thresholds: dict[str, float]) -> dict[str, dict[str, int]]:
    candidate_shown, champion_shown = (
        evaluation.get_shown_mask(thresholds[scorer], scorer) for scorer in (CANDIDATE, champion)
    )
    correct = evaluation.correct == 1
    rows_by_group = {
        "both": candidate_shown & champion_shown,
        "production": ~candidate_shown & champion_shown,
        "shadow": candidate_shown & ~champion_shown,
        "neither": ~candidate_shown & ~champion_shown,
    }
    return {
        name: {"answers": int(rows.sum()), "correct": int((rows & correct).sum())}
        for name, rows in rows_by_group.items()
    }
