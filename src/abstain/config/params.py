"""Parameters of a project (`params.yaml`), parsed once into one frozen model.

An error about an unknown or misspelt key names the nearest valid one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from abstain.config.yaml_model import FrozenModel, read_yaml, validate_yaml
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.text import ReasoningMarker
from abstain.core.timestamps import Timestamp

Fraction = Annotated[float, Field(ge=0, le=1)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
RegressorKind = Literal["random_forest", "default_forest", "gradient_boosting", "linear"]
CorrectnessTarget = Literal["label", "cosine", "rouge1_f1", "rouge1_precision", "rougeL", "exact_match", "token_f1"]
Architecture = Literal["lstm", "lstm_no_huber", "linear", "mlp", "attention", "pca"]
Site = Literal["residual", "mlp", "neurons"]
Audit = Literal["context_removed", "answers_shuffled", "product_left_out"]


class LLMParams(FrozenModel):
    """The base model, the prompt layout, and the layer that the probe reads.

    Attributes:
        model: A folder or a Hugging Face `id[@revision]`.
        layout: Name of the prompt layout; `auto` and NAME-auto-v1 are in the chat template of the model's tokenizer.
        layer: Layer that the probe reads; `auto` until a retrain has chosen it.
        site: Hook point in the layer.
        too_long: What happens to a prompt that exceeds the context length.
        includes_eos: Whether the probe also reads the state of the EOS after an answer. An engine that serves answers
            has no such state.
    """

    model: str
    layout: str
    layer: Count | Literal["auto"]
    site: Site
    too_long: Literal["refuse", "drop_chunks"]
    includes_eos: bool


class ValidationParams(FrozenModel):
    """Limits for rows."""

    max_failed_fraction: Fraction
    min_failed_rows: Count
    max_feedback_delay_days: Positive
    max_text_chars: Count
    max_clock_skew_seconds: Annotated[float, Field(ge=0)]


class QualityParams(FrozenModel):
    """Limits for a batch and for the training table as a whole; `ValidationParams` are those for rows."""

    min_class_share: Annotated[float, Field(ge=0, le=0.5)]
    min_reviewed_share: Fraction
    max_leaked_share: Fraction
    max_near_duplicate_share: Fraction
    max_review_conflicts: Fraction
    max_thumb_conflicts: Fraction
    max_drift: Positive
    min_drift_rows: Count


class PrivacyParams(FrozenModel):
    """Personal data that ingest removes, and people that it pseudonymizes."""

    redact: tuple[str, ...]
    min_score: Fraction
    keep: tuple[str, ...]
    phone_regions: tuple[str, ...]
    names_pipeline: str
    redact_contexts: bool
    pseudonymize: bool
    pseudonymize_reviewers: bool


class LabelParams(FrozenModel):
    """How reviews and thumbs become labels."""

    correct_if: tuple[Literal["correct", "truthful", "complete"], ...] = Field(min_length=1)
    conflicts: Literal["latest", "majority", "strict"]
    thumb_weight: Annotated[float, Field(ge=0)]
    max_thumb_weight: Annotated[float, Field(ge=0)]
    thumb_model: Literal["agreement", "dawid_skene"]
    min_agreement: Count
    user_shrinkage: Positive
    max_user_share: Annotated[float, Field(gt=0, le=1)]
    refusals: tuple[Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)], ...]
    reasoning: tuple[ReasoningMarker, ...]


class SplitParams(FrozenModel):
    """How answers are split into training, validation and hold-out."""

    by: Literal["group", "time"]
    seed: int
    validation: OpenFraction
    holdout: OpenFraction
    holdout_from: Timestamp | None
    holdout_frozen_at: Timestamp | None
    max_component: OpenFraction

    @model_validator(mode="after")
    def _check_train_fraction(self) -> SplitParams:
        if self.by == "group" and self.validation + self.holdout >= 1:
            raise ValueError("validation + holdout leave nothing to train on: together they must stay below 1")
        start, end = self.holdout_from, self.holdout_frozen_at
        if (self.by == "time" and start is None) or (start is not None and end is not None and start >= end):
            raise ValueError(
                f"by: {self.by} needs a holdout_from before holdout_frozen_at: the hold-out is between them"
            )
        return self


class ProbeParams(FrozenModel):
    """The probes that are trained, and the one that is exported."""

    architectures: tuple[Architecture, ...] = Field(min_length=1)
    export: Architecture | Literal["best"]
    folds: Annotated[int, Field(ge=2)]
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    hidden: Count
    dropout: Annotated[float, Field(ge=0, lt=1)]
    learning_rate: Positive
    weight_decay: Annotated[float, Field(ge=0)]
    batch_size: Count
    max_epochs: Count
    patience: Count
    huber_lambda: Annotated[float, Field(ge=0)]
    huber_delta: Positive

    @model_validator(mode="after")
    def _check_exported_architecture(self) -> ProbeParams:
        if self.export != "best" and self.export not in self.architectures:
            raise ValueError(f"export: {self.export} is not in architectures: add it there, or export one that is")
        return self


class ServeParams(FrozenModel):
    """Which scorer decides about answers: one by name, or the cheapest of the best (learning/evaluation)."""

    scorer: Annotated[str, Field(min_length=1)]
    max_forward_tokens: Count | None
    current_scorer: Annotated[str, Field(min_length=1)] | None


class ScorerParams(FrozenModel):
    """The scorers that the probes are compared with, and the models that some of them need.

    Attributes:
        enabled: Names of the scorers.
        entailment_model: Model of the scorer `entailment`; None skips it.
        extractive_qa_model: Model of the scorer `extractive_qa`; None skips it.
    """

    enabled: tuple[str, ...]
    entailment_model: str | None
    extractive_qa_model: str | None


class PerturbationParams(FrozenModel):
    """The perturbation of contexts for the condition P_c: selection x schedule x K, and the model.

    Without copies nothing is perturbed, and the regressors read N_c and B_c only.

    Attributes:
        model: The perturbation model; None for the base model.
        selection: Which tokens are replaced: those with the highest entropy, or random ones.
        schedule: Whether all tokens are replaced at once or one after the other.
        tokens: K, the number of tokens to replace.
        n_copies: Number of perturbed copies of a context.
        seed: Seed of the first copy.
    """

    model: Annotated[str, Field(min_length=1)] | None
    selection: Literal["entropy", "random"]
    schedule: Literal["single_shot", "iterative"]
    tokens: Count
    n_copies: Annotated[int, Field(ge=0)]
    seed: Annotated[int, Field(ge=0, lt=2**31)]

    @model_validator(mode="after")
    def _check_copies(self) -> PerturbationParams:
        if self.selection == "entropy" and self.n_copies > 1:
            raise ValueError("copies by entropy are all alike: set n_copies to 1, or selection to random")
        return self


class RegressorTraining(FrozenModel):
    """Hyperparameters of the correctness regressors."""

    folds: Annotated[int, Field(ge=2)]
    trees: Count
    max_features: Annotated[float, Field(gt=0, le=1)]
    min_leaf: Count


class RegressorFit(RegressorTraining):
    """Everything that determines a fit."""

    seed: Annotated[int, Field(ge=0, lt=2**31)]


class RegressorParams(RegressorTraining):
    """The regressors that are fitted, each kind to each target, and their settings."""

    kinds: tuple[RegressorKind, ...]
    targets: tuple[CorrectnessTarget, ...]
    encoder: str | None

    @model_validator(mode="after")
    def _check_unique(self) -> RegressorParams:
        for name in ("kinds", "targets"):
            values = getattr(self, name)
            if duplicate := next((value for value in values if values.count(value) > 1), None):
                raise ValueError(f"{name}: {duplicate} is there twice: name it once")
        return self


class SweepParams(FrozenModel):
    """The ablation grid: layers, sites and numbers of chunks, for each of which an architecture is trained."""

    architecture: Architecture
    layers: tuple[Count, ...]
    sites: tuple[Site, ...]
    contexts: tuple[Count, ...]


class AuditParams(FrozenModel):
    """The audits of the report; each reads the reviewed hold-out once more, or trains a probe per product."""

    enabled: tuple[Audit, ...]


class CalibrationParams(FrozenModel):
    """The calibrator of confidences."""

    method: Literal["none", "temperature", "isotonic", "venn_abers"]


class ThresholdParams(FrozenModel):
    """The guarantee for the shown answers: metric, target and confidence."""

    metric: Literal["precision", "error_rate"]
    target: OpenFraction
    confidence: OpenFraction
    on_infeasible: Literal["fail", "heuristic"]
    min_shown: Count
    max_reviewer_share: Annotated[float, Field(gt=0, le=1)] | None


class EvaluationParams(FrozenModel):
    """Limits of the evaluation; the stages and the promotion checks read them."""

    min_n_eff: Count


class PromotionParams(FrozenModel):
    """Limits of the promotion checks."""

    false_promotion_rate: Positive
    max_comparisons: Count
    bootstrap_confidence: OpenFraction
    erasure_margin: OpenFraction
    false_rejection_rate: OpenFraction
    max_newest_drop: Fraction
    max_coverage_drop: Fraction
    max_precision_drop: Fraction
    max_error_rate_excess: Fraction
    max_slice_drop: Fraction
    max_ece: Fraction
    max_latency_ms: Positive


class MonitoringParams(FrozenModel):
    """The windows of the monitoring, the limits for alarms, and the triggers of automatic retrains and alerts."""

    min_decisions: Count
    min_reviews: Count
    alpha: OpenFraction
    max_unavailable_share: Fraction
    max_unknown_chunk_share: Fraction
    retrain_after_reviews: Count
    feed_silent_hours: Positive


class ShadowParams(FrozenModel):
    """Which candidates run as shadows of production, in addition to those of `abstain shadow set`."""

    from_rejected: bool


class RetentionParams(FrozenModel):
    """How long accumulated files are kept; no stage reads it."""

    report_days: Count
    decision_days: Count
    artifact_days: Count
    feature_days: Count
    versions: Count


class Params(FrozenModel):
    """The whole of `params.yaml`."""

    llm: LLMParams
    validation: ValidationParams
    quality: QualityParams
    privacy: PrivacyParams
    labels: LabelParams
    split: SplitParams
    probe: ProbeParams
    scorers: ScorerParams
    perturbation: PerturbationParams
    regressors: RegressorParams
    sweep: SweepParams
    audits: AuditParams
    serve: ServeParams
    calibration: CalibrationParams
    threshold: ThresholdParams
    evaluation: EvaluationParams
    promotion: PromotionParams
    monitoring: MonitoringParams
    shadow: ShadowParams
    retention: RetentionParams


def load_params(path: Path = Path("params.yaml")) -> Params:
    """Read and check the parameters.

    Args:
        path: Path of the file.

    Returns:
        The parameters.

    Raises:
        AbstainError: Keys are missing, or one is invalid; the message names them, or the first invalid one and its
            valid values.
    """
    content = read_yaml(path, "run this in the root of the project")
    require_keys(content, path)
    return validate_yaml(content, path, Params)


def require_keys(content: Any, path: Path) -> None:
    """Check that no key is missing, as after a merge of a newer release.

    If a key is not declared by `Params`, it may be a misspelt one, and nothing is raised.

    Args:
        content: Parsed content of the file.
        path: Path of the file, for the message.

    Raises:
        AbstainError: Keys are missing; the message names all of them.
    """
    sections = {name: field.annotation.model_fields for name, field in Params.model_fields.items()}  # type: ignore[union-attr]
    declared = [f"{name}.{key}" for name, keys in sections.items() for key in keys]
    if not isinstance(content, dict) or not all(isinstance(keys, dict) for keys in content.values()):
        return
    present = {f"{name}.{key}" for name, keys in content.items() for key in keys}
    missing = [name for name in declared if name not in present]
    if missing and present <= set(declared):
        raise AbstainError(
            Code.BAD_SETTING,
            f"{path} lacks {', '.join(missing)}, which this release reads: run `abstain init --upgrade`",
        )
