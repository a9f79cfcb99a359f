"""Evaluation of a candidate as data: metrics.json and evaluation.json, which the stage `evaluate` writes.

The report, the Prefect artifacts and the promotion checks read these files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from abstain.core.formatting import HasValues, format_count
from abstain.core.markdown import is_defined
from abstain.core.result_record import ResultRecord, Value
from abstain.learning.estimators.regressors.summary import RegressorSummary
from abstain.learning.estimators.summaries import ProbeChoice, ScorerChoice
from abstain.learning.evaluation.records import (
    AnswersShuffled,
    CalibratorMetrics,
    ContextRemoved,
    Examples,
    KindSlice,
    OwnThreshold,
    ProductLeftOut,
    RankCorrelation,
    ScorerMetrics,
    ServedMetrics,
    Site,
    Slice,
    SplitMetrics,
    ThresholdMetrics,
)
from abstain.learning.thresholds.guarantee import MIN_SHOWN_GROUPS, Guarantee, can_check
from abstain.learning.thresholds.threshold_result import CountedRates, ThresholdResult


class DistinctRates(CountedRates):
    """The served scorer on the answers without a near-duplicate in the training data."""

    near_duplicates: int
    auroc: Value
    error_rate: Value


class NewestMetrics(SplitMetrics):
    """The served scorer on the answers asked after the hold-out was frozen."""

    auroc: Value


class ServedSummary(ResultRecord):
    """What is served, for the reader of metrics.json alone."""

    name: str
    forward_tokens: float


class Target(ResultRecord):
    """The target of the threshold, and the smallest effective sample size that is judged."""

    metric: str
    value: float
    min_n_eff: int


class HoldoutMetrics(SplitMetrics):
    """Every scorer on the frozen hold-out.

    Attributes:
        base_rate: Share of correct answers.
        label_source: Where the labels come from.
        digest: Digest of its answers and labels, including the reviews that are not evaluated.
        served: The served scorer.
        target: The target of the threshold.
        scorers: Scorer -> row of the leaderboard.
        at_threshold: The served threshold.
        at_heuristic: The heuristic threshold; None without one.
        without_near_duplicates: The served threshold on answers without a near-duplicate in the training data.
        self_selected: The served threshold on reviews that reviewers selected themselves; None without any.
    """

    base_rate: Value
    label_source: str
    digest: str
    served: ServedSummary
    target: Target
    scorers: dict[str, ScorerMetrics]
    at_threshold: ServedMetrics
    at_heuristic: ThresholdMetrics | None
    without_near_duplicates: DistinctRates
    self_selected: CountedRates | None


class EvaluationMetrics(ResultRecord):
    """Content of metrics.json."""

    holdout: HoldoutMetrics
    newest: NewestMetrics


class ServedScorer(ScorerChoice):
    """The served scorer, what it was chosen from, and what its probe reads."""

    model: str
    layout: str
    layer: int | str
    site: str


class Replies(ResultRecord):
    """Replies to the Yes-score's question, and how many of them are neither yes nor no."""

    neither: int
    replies: int


class FeatureSummary(ResultRecord):
    """Content of features.json that the evaluation needs.

    Attributes:
        skipped_scorers: Scorer that was not computed -> reason.
        neither: Replies without yes or no; None if no scorer asked for one.
        ranked_apart: Versions whose scores `writer` ranks apart; "" if there are none.
    """

    skipped_scorers: dict[str, str]
    neither: Replies | None
    ranked_apart: str


class Perturbation(ResultRecord):
    """The perturbed contexts of the regressors; `perturbed` counts the answers with a remark."""

    rows: int
    perturbation_model: str | None
    perturbed: dict[str, int]
    forward_tokens: float
    forward_tokens_of_copies: float


class Regressors(RegressorSummary):
    """The correctness regressors, and the contexts that were perturbed for them."""

    perturbed: Perturbation


class Calibration(ResultRecord):
    """The calibration method of the served scorer among the others."""

    method: str
    by_method: list[CalibratorMetrics]


class Audits(ResultRecord):
    """The audits that were enabled."""

    context_removed: list[ContextRemoved] | None = None
    answers_shuffled: list[AnswersShuffled] | None = None
    product_left_out: list[ProductLeftOut] | None = None


class FusionWeights(ResultRecord):
    """The fusion's coefficients, and what is added to the log-odds where a score is missing."""

    strength: float
    coefficients: dict[str, float]
    missing: dict[str, float]


class EvaluationContent(ResultRecord):
    """Content of evaluation.json.

    Attributes:
        kinds: Scorer -> kind.
        forward_tokens: Scorer -> tokens of one answer.
        skipped: Scorer that was not computed -> reason.
        neither: Replies without yes or no; None if no scorer asked for one.
        ranked_apart: Versions whose scores `writer` ranks apart; "" if there are none.
        improbable: Variant of the Yes-score -> answers for which neither word was probable.
        min_n_eff: Smallest effective sample size that is judged.
        at_own_threshold: Scorer -> metrics at a threshold of its own.
    """

    served: ServedScorer
    probe: ProbeChoice
    kinds: dict[str, str]
    forward_tokens: dict[str, float]
    skipped: dict[str, str]
    regressors: Regressors
    neither: Replies | None
    ranked_apart: str
    improbable: dict[str, int]
    threshold: ThresholdResult
    min_n_eff: int
    calibration: Calibration
    at_own_threshold: dict[str, OwnThreshold]
    slices: list[Slice]
    by_kind: list[KindSlice]
    audits: Audits
    rank_correlation: RankCorrelation
    ablations: list[Site]
    fusion: FusionWeights | None
    examples: Examples


class EvaluationResult(ResultRecord):
    """The evaluation of a candidate: what the stage `evaluate` writes, and what the report reads."""

    metrics: EvaluationMetrics
    evaluation: EvaluationContent

    @property
    def served_metrics(self) -> ScorerMetrics:
        """Row of the served scorer in the leaderboard."""
        return self.metrics.holdout.scorers[self.evaluation.served.name]

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee; it is active if the hold-out shows enough answers to check it."""
        guarantee = self.evaluation.threshold.guarantee
        is_checked = guarantee.status != "none" and not self.too_few_shown
        return guarantee.model_copy(update={"status": "active"}) if is_checked else guarantee

    @property
    def too_few_shown(self) -> str:
        """How many answers the hold-out shows, if these are too few to check a guarantee; else ""."""
        point, min_n_eff = self.metrics.holdout.at_threshold, self.evaluation.min_n_eff
        if can_check(point.shown_n_eff, point.shown_groups, min_n_eff):
            return ""
        if point.shown_n_eff >= min_n_eff:
            return (
                f"the hold-out shows answers about {point.shown_groups} documents where {MIN_SHOWN_GROUPS} are needed"
            )
        evenly = "" if point.shown < min_n_eff else f", effective sample size {point.shown_n_eff:.0f},"
        return f"the hold-out has {format_count(point.shown, 'shown answer')}{evenly} where {min_n_eff} are needed"

    @classmethod
    def from_files(cls, metrics: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Self:
        """Check the parsed contents of metrics.json and evaluation.json."""
        return cls.model_validate({"metrics": metrics, "evaluation": evaluation})


def get_metric_value(metric: str, rates: HasValues) -> float | None:
    """Return the value of a metric at a threshold.

    Args:
        metric: `precision` or `error_rate`.
        rates: `coverage` and `precision` of the threshold.

    Returns:
        The value; None if it is not defined. The error rate is 0 if nothing is shown.
    """
    precision, coverage = rates.get("precision"), rates.get("coverage")
    if metric == "precision" or not is_defined(coverage):
        return precision if metric == "precision" and is_defined(precision) else None
    return float(coverage * (1 - precision)) if is_defined(precision) else 0.0


def meets_target(metric: str, target: float, value: float) -> bool:
    """Return whether a value is as good as the target of the guarantee, except for rounding."""
    return value >= target - 1e-9 if metric == "precision" else value <= target + 1e-9
