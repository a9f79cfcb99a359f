"""Recorded decisions in `approvals/`: of the promotion checks, and comparisons of a shadow."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, computed_field

from abstain.core.result_record import ResultRecord
from abstain.learning.thresholds.guarantee import Guarantee
from abstain.release.evaluation_set import PromotionCheck
from abstain.release.metric_comparison import MetricComparison
from abstain.release.registry import Cause
from abstain.release.shadow import ShadowOutcome


class RecordedHoldout(ResultRecord):
    """Section `holdout` of metrics.json; the comparison of a shadow records its digest only."""

    digest: str


class RecordedMetrics(ResultRecord):
    """Content of metrics.json as it was at the decision."""

    holdout: RecordedHoldout


class Erasure(BaseModel):
    """Why the champion has to be replaced, and the reason for accepting a worse candidate; None without one."""

    model_config = ConfigDict(frozen=True)

    since: str
    cause: Cause = "erased"
    accepted: str | None = None


class DecisionInputs(BaseModel):
    """What a decision depends on.

    Attributes:
        champion: Version in production; None if there is none.
        metrics: Metrics of the candidate.
        limits: Parameters of the promotion checks, the evaluation and the threshold.
        erasure: Set if the champion was trained on rows that were erased or corrected later.
        candidate_sha256: sha256 (hex) of the candidate's ONNX file.
        inputs_sha256: Digest of data, parameters and code; None if unknown.
    """

    model_config = ConfigDict(frozen=True, protected_namespaces=())

    champion: str | None
    metrics: RecordedMetrics
    limits: dict[str, JsonValue]
    erasure: Erasure | None
    candidate_sha256: str
    inputs_sha256: str | None


class DecisionRecord(DecisionInputs):
    """A decision with its checks, the comparisons made on the hold-out up to it, and the alpha that they spent.

    Attributes:
        version: The new version; None if the candidate was not promoted.
        comparison: Number of comparisons; None without any.
        decided_at: Time of the decision.
        commit: Commit that the candidate was trained at.
        new_holdout_reason: Reason for accepting another hold-out.
    """

    approved: bool
    version: str | None
    checks: tuple[PromotionCheck, ...]
    champion_comparison: tuple[MetricComparison, ...]
    comparison: int | None
    alpha_spent: float | None
    decided_at: str
    commit: str
    new_holdout_reason: str | None

    @property
    def failed_checks(self) -> list[PromotionCheck]:
        """The checks that explain the decision."""
        return [check for check in self.checks if check.passed is False]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def reasons(self) -> list[dict[str, str]]:
        """Code, name and message of `failed_checks`, for readers of the file."""
        return [{"code": check.code, "check": check.name, "message": check.message} for check in self.failed_checks]

    def to_dict(self) -> dict[str, Any]:
        """Return the record for JSON; undefined values (nan) become None."""
        content: dict[str, Any] = json.loads(self.model_dump_json())
        return content


class PromotionRecord(DecisionRecord):
    """A decision of the promotion checks, with the candidate's guarantee and parameters."""

    guarantee: Guarantee
    requirements_sha256: str
    params: dict[str, dict[str, JsonValue]]


class ShadowRecord(DecisionRecord):
    """A comparison of a shadow with production by paired reviews.

    Attributes:
        champion: The version that the shadow is compared with.
        shadow: Name of the shadow.
        reviews_sha256: Digest of the reviews.
        rows: Number of reviewed answers.
        documents: Number of documents that they are about.
        shown_counts: See `ShadowComparison`.
    """

    champion: str
    shadow: str
    reviews_sha256: str
    outcome: ShadowOutcome
    rows: int
    documents: int
    shown_counts: dict[str, dict[str, int]]

    @property
    def failed_checks(self) -> list[PromotionCheck]:
        """The one check of the comparison, whatever its outcome."""
        return list(self.checks)


RECORDS: TypeAdapter[PromotionRecord | ShadowRecord] = TypeAdapter(PromotionRecord | ShadowRecord)
"""Reads a record of either kind."""
