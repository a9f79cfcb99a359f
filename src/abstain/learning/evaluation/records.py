"""Results of the analyses of one evaluation: rows of the leaderboard, of the slices, of the audits and so on."""

from __future__ import annotations

from abstain.core.result_record import Auroc, Rates, ResultRecord, Value


class ScorerMetrics(Auroc):
    """Row of the leaderboard; every metric also has keys `NAME_low` and `NAME_high`, and there are further ones.

    Attributes:
        unscored: Answers without a score, which count as withheld.
        auroc_difference: AUROC less that of the served scorer; None for the served one itself.
        chance_better: Share of resamples in which the AUROC is higher than that of the served scorer.
    """

    __pydantic_extra__: dict[str, Value]
    unscored: int
    auroc_difference: Value
    auroc_difference_low: Value
    auroc_difference_high: Value
    chance_better: Value
    error_recall_at_15pct: Value
    error_recall_over_random: Value


class ThresholdMetrics(Rates):
    """Metrics at a threshold; ROUGE-L against the ideal answers, over the shown and the withheld answers with one."""

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
    """Metrics at the served threshold, with the shown answers and their groups counted, and 95 % intervals."""

    shown: int
    shown_n_eff: float
    shown_groups: int
    precision_low: Value = None
    precision_high: Value = None
    error_rate_low: Value = None
    error_rate_high: Value = None


class OwnThreshold(ResultRecord):
    """A scorer at a threshold of its own, tuned on validation; only a `note` if none reaches the target."""

    note: str
    threshold: Value = None
    precision: Value = None
    recall: Value = None
    coverage: Value = None
    abstention_rate: Value = None
    rouge_shown: Value = None
    rouge_withheld: Value = None


class SplitMetrics(ResultRecord):
    """Number of reviewed answers of a split, of those not equally likely to be reviewed, and what they are worth."""

    rows: int
    sampled_unevenly: int = 0
    effective_sample_size: float = 0.0


class CalibratorMetrics(ResultRecord):
    """A calibration method on the hold-out."""

    method: str
    ece: Value
    ece_low: Value
    ece_high: Value
    brier: Value
    brier_low: Value
    brier_high: Value


class Slice(Auroc):
    """The served scorer on a slice of the stratum `by`; `note` has the reason for undefined values, or is empty."""

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


class KindSlice(ResultRecord):
    """AUROC of every scorer on one kind of answer; no scorer if the slice is too small."""

    slice: str
    rows: int
    n_eff: float
    scorers: dict[str, Auroc]


class ContextRemoved(ResultRecord):
    """A scorer on the same answers with and without the retrieved context."""

    scorer: str
    auroc: Value
    auroc_changed: Value
    auroc_lost: Value
    auroc_lost_low: Value
    auroc_lost_high: Value
    mean: Value
    mean_changed: Value


class AnswersShuffled(ResultRecord):
    """A scorer on correct answers and on answers to other questions.

    Attributes:
        scorer: Its name.
        auroc_against_shuffled: AUROC of the correct answers against the shuffled ones.
        mean_correct: Mean confidence of the correct answers.
        mean_changed: Mean confidence of the shuffled answers.
        shown_changed: Share of shuffled answers that the threshold would show; None without a threshold.
    """

    scorer: str
    auroc_against_shuffled: Value
    mean_correct: Value
    mean_changed: Value
    shown_changed: Value


class ProductLeftOut(ResultRecord):
    """A probe that was trained without a product, on that product; only a `note` if it was not judged.

    `auroc_trained_on_all` is that of the exported probe, and `lost` the paired difference on the same resamples.
    """

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


class SiteMetrics(OwnThreshold, Auroc):
    """A probe on the states of one site, on the hold-out, with its AUROC out of fold."""

    out_of_fold: Value


class Site(SiteMetrics):
    """A probe site of the sweep."""

    layer: int | str
    site: str
    chunks: int | None
    served: bool


class Ablations(ResultRecord):
    """Content of ablations.json: the sites of the sweep and the left-out products."""

    sites: list[Site]
    left_out: list[ProductLeftOut]


class RankCorrelation(ResultRecord):
    """Spearman's rank correlations of scorers."""

    names: list[str]
    matrix: list[list[Value]]


class Example(ResultRecord):
    """An answer of the hold-out."""

    interaction_id: str
    product: str | None
    question: str
    answer: str
    ideal_answer: str | None
    confidence: Value
    probability: Value


class Examples(ResultRecord):
    """Withheld errors, shown errors, and withheld correct answers."""

    caught: list[Example]
    missed: list[Example]
    withheld: list[Example]


class SiteAuroc(Auroc):
    """AUROC of a probe on the states of a site, out of fold."""

    layer: int
    site: str


class SiteChoice(ResultRecord):
    """The chosen site, the number of training `rows` and of `reviewed` ones, and the compared `sites`."""

    layer: int
    site: str
    rows: int
    reviewed: int
    sites: list[SiteAuroc]
