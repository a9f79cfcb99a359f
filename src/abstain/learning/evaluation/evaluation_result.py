"""Evaluation of a candidate as data: metrics.json and evaluation.json, which the stage `evaluate` writes.

The report, the Prefect artifacts and the promotion checks read these files. A value that is not defined for the
answers is None (null in JSON).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict

from abstain.core.formatting import HasValues, format_count
from abstain.core.markdown import is_defined
from abstain.learning.thresholds.guarantee import Guarantee

Value = Annotated[float | None, BeforeValidator(lambda value: value if is_defined(value) else None)]
"""A metric; None if it is not defined for the answers, which the stage knows as nan."""


class EvaluationPart(BaseModel):
    """Frozen part of an evaluation. Keys that are not declared are kept as they are: the stages before wrote them."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    def get(self, name: str) -> Any:
        """Return a value by its key, such as `auroc_low`; None if there is none."""
        return getattr(self, name, None)

    def to_dict(self) -> dict[str, Any]:
        """Return the keys and values that were read, and no others."""
        return self.model_dump(exclude_unset=True)


class Auroc(EvaluationPart):
    """AUROC with its 95 % interval."""

    auroc: Value
    auroc_low: Value
    auroc_high: Value


class ScorerMetrics(Auroc):
    """Row of the leaderboard; further metrics have keys `NAME`, `NAME_low` and `NAME_high`.

    Attributes:
        unscored: Answers without a score, which count as withheld.
        auroc_difference: AUROC less that of the served scorer; None for the served one itself.
        chance_better: Share of resamples in which the AUROC is higher than that of the served scorer.
    """

    unscored: int
    auroc_difference: Value
    auroc_difference_low: Value
    auroc_difference_high: Value
    chance_better: Value
    error_recall_at_15pct: Value
    error_recall_over_random: Value


class Rates(EvaluationPart):
    """Coverage of a threshold, and the precision of what it shows."""

    coverage: Value
    precision: Value


class ThresholdMetrics(Rates):
    """Metrics at a threshold (`selective_prediction.evaluate_at_threshold`)."""

    threshold: float
    recall: Value
    abstention_rate: Value
    accuracy: Value
    f1: Value
    rouge_shown: Value = None
    rouge_withheld: Value = None
    rouge_shown_answers: int = 0
    rouge_withheld_answers: int = 0


class ServedMetrics(ThresholdMetrics):
    """Metrics at the served threshold, with the shown answers counted."""

    shown: int
    shown_n_eff: float
    precision_low: Value = None
    precision_high: Value = None
    error_rate_low: Value = None
    error_rate_high: Value = None


class CountedRates(Rates):
    """Rates on a number of answers."""

    rows: int


class DistinctRates(CountedRates):
    """The served scorer on the answers without a near-duplicate in the training data."""

    near_duplicates: int
    auroc: Value
    error_rate: Value


class SplitMetrics(EvaluationPart):
    """Number of reviewed answers of a split, of those not equally likely to be reviewed, and what they are worth."""

    rows: int
    sampled_unevenly: int = 0
    effective_sample_size: float = 0.0


class NewestMetrics(SplitMetrics):
    """The served scorer on the answers asked after the hold-out was frozen."""

    auroc: Value


class ScorerCost(EvaluationPart):
    """The served scorer, and the tokens of one answer that it reads."""

    name: str
    kind: str
    forward_tokens: float


class Target(EvaluationPart):
    """Target of the guarantee, and the effective sample size of the shown answers that can check it."""

    metric: str
    value: float
    min_n_eff: int


class HoldoutMetrics(SplitMetrics):
    """Every scorer on the frozen hold-out.

    Attributes:
        base_rate: Share of correct answers.
        label_source: Where the labels come from.
        digest: Digest of the answers and their labels.
        scorers: Scorer -> row of the leaderboard.
        at_threshold: The served threshold.
        at_heuristic: The heuristic threshold; None without one.
        without_near_duplicates: The served threshold on answers without a near-duplicate in the training data.
        self_selected: The served threshold on reviews that reviewers selected themselves; None without any.
    """

    base_rate: Value
    label_source: str
    digest: str
    served: ScorerCost
    target: Target
    scorers: dict[str, ScorerMetrics]
    at_threshold: ServedMetrics
    at_heuristic: ThresholdMetrics | None
    without_near_duplicates: DistinctRates
    self_selected: CountedRates | None


class EvaluationMetrics(EvaluationPart):
    """Content of metrics.json."""

    holdout: HoldoutMetrics
    newest: NewestMetrics


class TunedThreshold(Rates):
    """A threshold and its rates on the validation split."""

    threshold: float


class ThresholdResult(EvaluationPart):
    """Content of threshold.json.

    Attributes:
        threshold: The served threshold.
        guarantee: Its guarantee; with status "none", the heuristic threshold is served.
        heuristic: The threshold that just reaches the target on the validation split; None if there is none.
        self_selected: Rates on reviews that reviewers selected themselves; None if there are none.
    """

    threshold: float
    guarantee: Guarantee
    heuristic: TunedThreshold | None
    self_selected: CountedRates | None


class Candidate(Auroc):
    """A scorer that can be served, with its AUROC out of fold."""

    scorer: str
    kind: str
    forward_tokens: float


class ServedScorer(EvaluationPart):
    """The served scorer, what it was chosen from, and what it reads."""

    name: str
    kind: str
    requested: str
    max_forward_tokens: int | None
    forward_tokens: float
    components: list[str]
    candidates: list[Candidate]
    not_servable: dict[str, str]
    model: str
    layout: str
    layer: int | str
    site: str


class ProbeChoice(EvaluationPart):
    """The exported probe, and the AUROC of each architecture out of fold."""

    exported: str
    description: str
    out_of_fold: dict[str, Value]


class Regressor(EvaluationPart):
    """A correctness regressor.

    Attributes:
        dropped: Feature that does not vary in training -> its constant value; None if it is missing everywhere.
        parity: Largest difference between what was fitted and its file.
        bytes: Size of its file.
        holdout: Metrics on the hold-out; None without a threshold, for which `note` has the reason.
    """

    dropped: dict[str, Value]
    parity: float
    bytes: int
    holdout: dict[str, Value] | None
    note: str = ""


class Perturbation(EvaluationPart):
    """The perturbed contexts of the regressors; `perturbed` counts the answers with a remark."""

    rows: int
    perturbation_model: str | None
    perturbed: dict[str, int]


class Regressors(EvaluationPart):
    """The correctness regressors, and the contexts that were perturbed for them."""

    regressors: dict[str, Regressor]
    perturbed: Perturbation


class Replies(EvaluationPart):
    """Replies to the Yes-score's question, and how many of them are neither yes nor no."""

    neither: int
    replies: int


class CalibratorMetrics(EvaluationPart):
    """A calibration method on the hold-out."""

    method: str
    ece: Value
    ece_low: Value
    ece_high: Value
    brier: Value
    brier_low: Value
    brier_high: Value


class Calibration(EvaluationPart):
    """The calibration method of the served scorer among the others."""

    method: str
    by_method: list[CalibratorMetrics]


class OwnThreshold(EvaluationPart):
    """A scorer at a threshold of its own, tuned on validation; only a `note` if none reaches the target."""

    note: str
    threshold: Value = None
    precision: Value = None
    recall: Value = None
    coverage: Value = None
    abstention_rate: Value = None
    rouge_shown: Value = None
    rouge_withheld: Value = None


class Slice(Auroc):
    """The served scorer on a slice of the hold-out; `note` has the reason for undefined values."""

    by: str
    slice: str
    rows: int
    n_eff: float
    base_rate: Value
    ece: Value
    brier: Value
    shown: int
    precision: Value
    note: str


class KindSlice(EvaluationPart):
    """AUROC of every scorer on one kind of answer; no scorer if the slice is too small."""

    slice: str
    rows: int
    n_eff: float
    scorers: dict[str, Auroc]


class ContextRemoved(EvaluationPart):
    """A scorer on the same answers with and without the retrieved context."""

    scorer: str
    auroc: Value
    auroc_changed: Value
    auroc_lost: Value
    auroc_lost_low: Value
    auroc_lost_high: Value
    mean: Value
    mean_changed: Value


class AnswersShuffled(EvaluationPart):
    """A scorer on correct answers and on answers to other questions."""

    scorer: str
    auroc_against_shuffled: Value
    mean_correct: Value
    mean_changed: Value
    shown_changed: Value


class ProductLeftOut(EvaluationPart):
    """A probe that was trained without a product, on that product; only a `note` if it was not judged."""

    product: str
    rows: int
    note: str
    auroc: Value = None
    auroc_low: Value = None
    auroc_high: Value = None
    auroc_trained_on_all: Value = None
    lost: Value = None
    lost_low: Value = None
    lost_high: Value = None


class Audits(EvaluationPart):
    """The audits that were enabled."""

    context_removed: list[ContextRemoved] | None = None
    answers_shuffled: list[AnswersShuffled] | None = None
    product_left_out: list[ProductLeftOut] | None = None


class RankCorrelation(EvaluationPart):
    """Rank correlations of the variants of the Yes-score."""

    names: list[str]
    matrix: list[list[Value]]


class Site(OwnThreshold, Auroc):
    """A probe site of the sweep."""

    layer: int | str
    site: str
    chunks: int | None
    served: bool
    out_of_fold: Value


class FusionWeights(EvaluationPart):
    """The fusion's coefficients, and what is added to the log-odds where a score is missing."""

    strength: float
    coefficients: dict[str, float]
    missing: dict[str, float]


class Example(EvaluationPart):
    """An answer of the hold-out."""

    interaction_id: str
    product: str | None
    question: str
    answer: str
    ideal_answer: str | None
    confidence: Value
    probability: Value


class Examples(EvaluationPart):
    """Withheld errors, shown errors, and withheld correct answers."""

    caught: list[Example]
    missed: list[Example]
    withheld: list[Example]


class EvaluationContent(EvaluationPart):
    """Content of evaluation.json.

    Attributes:
        kinds: Scorer -> kind.
        forward_tokens: Scorer -> tokens of one answer.
        skipped: Scorer that was not computed -> reason.
        neither: Replies without yes or no; None if no scorer asked for one.
        unranked: Answers without a rank among those of their writer; "" if there are none.
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
    unranked: str
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


class EvaluationResult(EvaluationPart):
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
        if point.shown_n_eff >= min_n_eff:
            return ""
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
    """Return whether a value is as good as the target, except for rounding.

    Args:
        metric: `precision` or `error_rate`.
        target: Target of the guarantee.
        value: Measured value.

    Returns:
        Whether the target is met.
    """
    return value >= target - 1e-9 if metric == "precision" else value <= target + 1e-9
