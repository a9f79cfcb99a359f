"""The results of monitoring for each window, stored with the decisions, so that all readers have the same rows.

A window is identified by its version and its start. It is rewritten until it is final. It contains no texts; the
examples of an alarm are ids of interactions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Row, delete, select

from abstain.core.codes import Code
from abstain.core.formatting import join_words
from abstain.core.result_record import Value
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.schema import WINDOWS
from abstain.data.store.record_keys import from_microseconds, to_microseconds


@dataclass(frozen=True)
class Alarm:
    """A change that monitoring found in a window.

    Attributes:
        code: Code of the alarm.
        message: The change in one line.
        examples: Ids of interactions that show it.
        remedy: What to do; empty for the remedy of the code.
    """

    code: Code
    message: str
    examples: tuple[str, ...] = ()
    remedy: str = ""

    @property
    def action(self) -> str:
        """`remedy`, by default that of the code."""
        return self.remedy or self.code.remedy

    @property
    def kind(self) -> str:
        """The kind of alarm in words, such as "guarantee violated"."""
        return self.code.name.replace("_", " ").lower()


class WindowPart(BaseModel):
    """Frozen part of the statistics of a window."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


S = TypeVar("S", bound=WindowPart)


class ProductCoverage(WindowPart):
    """Decisions about a product, and the share shown."""

    decisions: int
    coverage: float


class ConfidenceSummary(WindowPart):
    """Deciles of the confidences, and their stability index against earlier ones."""

    deciles: list[float]
    stability_index: float | None


class ValueWithBounds(WindowPart):
    """Estimate with the bounds of its interval."""

    value: Value
    low: Value
    high: Value


class ReviewedPrecision(WindowPart):
    """Precision of the reviewed shown answers, weighted by 1 / inclusion probability."""

    reviews: int
    documents: int
    n_eff: float
    precision: float


class CheckedGuarantee(WindowPart):
    """The live test of the guarantee on all reviews until the end of the window; `inputs` is a digest of these."""

    metric: str
    target: float
    alpha: float
    estimate: Value
    low: Value
    high: Value
    e_value: Value
    max_e_value: Value
    is_violated: bool
    violated_on: str | None
    reviews: int
    documents: int
    inputs: str


class CheckedCalibration(WindowPart):
    """Mean of correctness less probability, with its interval and the p-value of 0."""

    difference: float
    low: float
    high: float
    p_value: float
    reviews: int


class PredictionErrors(WindowPart):
    """By how much the expected precision of earlier windows was wrong; None without any."""

    windows: int
    mean_error: float | None


class FeedSilence(WindowPart):
    """Hours without rows, the longest silence before, and whether the difference is alarming."""

    hours: float
    longest_before: float
    is_alarming: bool


class Comparison(WindowPart, Generic[S]):
    """Comparison with earlier decisions.

    Attributes:
        p_value: p-value; None if nothing was judged.
        statistics: What was compared.
        examples: Ids of answers that differ most.
        note: Why nothing was judged; "" otherwise.
    """

    p_value: Value = None
    statistics: S
    examples: tuple[str, ...] = ()
    note: str = ""

    def is_significant(self, alpha: float) -> bool:
        """Return whether the difference is significant at the level `alpha`."""
        return self.p_value is not None and self.p_value <= alpha


class Separability(WindowPart):
    """AUROC of a classifier that separates the window from earlier answers."""

    auc: Value = None


class VectorComparison(Comparison[Separability]):
    """Comparison of vectors: embeddings or hidden states."""

    statistics: Separability = Separability()


class TopicShares(WindowPart):
    """Share of questions that are unlike any earlier one, and the share expected without a change."""

    share: Value
    expected: Value


class CoverageShares(WindowPart):
    """Share of answers that were shown, before the window and in it."""

    before: float
    now: float


class UnknownChunks(WindowPart):
    """Share of answers with a chunk that is not in the knowledge base."""

    share: float


class ModelShares(WindowPart):
    """Answer model -> its share, the most frequent first, and the share of models that were rare or absent before."""

    before: dict[str, float]
    now: dict[str, float]
    new: float


class TextComparisons(WindowPart):
    """Comparisons of texts; None if they were not made."""

    questions: VectorComparison | None = None
    answers: VectorComparison | None = None
    contexts: VectorComparison | None = None
    topics: Comparison[TopicShares] | None = None


class Comparisons(TextComparisons):
    """All comparisons of a window with earlier decisions of its version; None if they were not made."""

    states: VectorComparison | None = None
    coverage: Comparison[CoverageShares] | None = None
    chunks: Comparison[UnknownChunks] | None = None
    writers: Comparison[ModelShares]


class DecisionSummary(WindowPart):
    """Statistics of the window's decisions, which do not change once it is over."""

    decisions: int
    shown: int
    coverage: float | None
    products: dict[str, ProductCoverage]
    unavailable: float | None
    unavailable_codes: dict[str, int]
    confidence: ConfidenceSummary
    expected: ValueWithBounds | None
    compared: Comparisons
    notes: list[str]


class ReviewSummary(WindowPart):
    """Statistics of the reviews that arrived in the window; `reviewed_precision` is of its own decisions."""

    reviews: int
    excluded_self_selected: int
    self_selected: int
    precision: ReviewedPrecision | None
    reviewed_precision: ReviewedPrecision | None
    calibration: CheckedCalibration | None


class WindowStatistics(DecisionSummary, ReviewSummary):
    """The statistics of a window, as docs/monitoring.md lists them; None is a statistic without any answers."""

    guarantee: CheckedGuarantee | None
    prediction_errors: PredictionErrors
    feed: dict[str, FeedSilence]

    @property
    def observed_precision(self) -> float | None:
        """The precision by the reviews; None without any."""
        return self.precision.precision if self.precision else None

    @property
    def expected_precision(self) -> float | None:
        """The precision expected by the probabilities; None without any."""
        return self.expected.value if self.expected else None


@dataclass(frozen=True)
class MonitoringWindow:
    """The statistics and alarms of one window of decisions by one version.

    Attributes:
        version: The version.
        start: Start of the window.
        end: End of the window, exclusive.
        statistics: Its statistics.
        alarms: Alarms of the window.
        is_final: Whether it will not be computed again.
    """

    version: str
    start: datetime
    end: datetime
    statistics: WindowStatistics
    alarms: tuple[Alarm, ...] = field(default=())
    is_final: bool = False

    @property
    def headline(self) -> str:
        """ "Quiet", or "Alarm: " and the kinds of its alarms."""
        return f"Alarm: {join_words([alarm.kind for alarm in self.alarms])}" if self.alarms else "Quiet"

    @property
    def title(self) -> str:
        """Version and days of the window."""
        return f"{self.version}, {self.start:%Y-%m-%d} to {self.end:%Y-%m-%d} (UTC, the end not included)"


def read_windows(database: LogDatabase, newest: int | None = None) -> tuple[MonitoringWindow, ...]:
    """Read stored windows.

    Args:
        database: The log.
        newest: Number of newest windows to read; None reads all.

    Returns:
        The windows, oldest first.

    Raises:
        AbstainError: The log cannot be read.
    """
    rows = select(WINDOWS).order_by(WINDOWS.c.ends_at.desc(), WINDOWS.c.starts_at.desc()).limit(newest)
    with database.read_transaction() as connection:
        stored_rows = connection.execute(rows).all()
    return tuple(map(_from_row, reversed(stored_rows)))


def write_windows(database: LogDatabase, windows: Sequence[MonitoringWindow]) -> None:
    """Write windows, in place of all stored ones from the first of them on with the same version.

    Days may be joined differently than before if decisions came late.

    Args:
        database: The log.
        windows: The windows.

    Raises:
        AbstainError: The database is unavailable; nothing has changed.
    """
    start_by_version: dict[str, datetime] = {}
    for window in windows:
        start_by_version[window.version] = min(window.start, start_by_version.get(window.version, window.start))
    with database.write_transaction() as connection:
        for version, start in start_by_version.items():
            is_replaced = (WINDOWS.c.version == version) & (WINDOWS.c.ends_at > to_microseconds(start))
            connection.execute(delete(WINDOWS).where(is_replaced))
        if windows:
            connection.execute(WINDOWS.insert(), [_to_row(window) for window in windows])


def _to_row(window: MonitoringWindow) -> dict[str, Any]:
    alarms = [{"message": alarm.message, "examples": alarm.examples, "remedy": alarm.remedy} for alarm in window.alarms]
    content = {"statistics": window.statistics.model_dump(mode="json"), "alarms": alarms}
    return {
        "version": window.version,
        "starts_at": to_microseconds(window.start),
        "ends_at": to_microseconds(window.end),
        "is_final": window.is_final,
        "content": json.dumps(content, allow_nan=False),
        "alarms": " ".join(alarm.code.value for alarm in window.alarms),
    }


def _from_row(row: Row[Any]) -> MonitoringWindow:
    content = json.loads(row.content)
    alarms = (
        Alarm(Code(code), fields["message"], tuple(fields["examples"]), fields["remedy"])
        for code, fields in zip(row.alarms.split(), content["alarms"], strict=True)
    )
    return MonitoringWindow(
        row.version,
        from_microseconds(row.starts_at),
        from_microseconds(row.ends_at),
        WindowStatistics.model_validate(content["statistics"]),
        tuple(alarms),
        row.is_final,
    )
