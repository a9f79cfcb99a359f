"""The statistics of the page: decisions by day, and reviews of the answers that the live version shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from abstain.config.params import LabelParams
from abstain.core.contracts import Review
from abstain.data.decision_log import queries
from abstain.data.decision_log.log import DecisionLog
from abstain.serving.service.version_follower import VersionInfo

DAYS = 14
"""Number of days in the charts, including today."""
MIN_REVIEWS = 30
"""Fewer reviewed answers say little: the interval is wider than 30 percentage points."""


@dataclass(frozen=True)
class DayStatistics:
    """The decisions of one day (UTC).

    Attributes:
        date: Start of the day.
        show: Number of decisions to show.
        abstain: Number of decisions to abstain.
        unavailable: Number of answers without a decision.
        shown: Number of answers that were shown.
        p50_ms: Median decision time in milliseconds; None without decisions.
        p99_ms: 99th percentile of the decision time in milliseconds; None without decisions.
    """

    date: datetime
    show: int = 0
    abstain: int = 0
    unavailable: int = 0
    shown: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None

    @property
    def total(self) -> int:
        """Number of answers."""
        return self.show + self.abstain + self.unavailable

    @property
    def coverage(self) -> float | None:
        """Share of answers that were shown, of all answers; `on_unavailable` says whether undecided ones are."""
        return self.shown / self.total if self.total else None


@dataclass(frozen=True)
class ReviewStatistics:
    """Reviewed answers that a version showed.

    Attributes:
        answers: Number of reviewed answers.
        correct: Number of correct ones.
        low: Lower bound of the exact 95 % interval of their share.
        high: Upper bound of the exact 95 % interval of their share.
    """

    answers: int
    correct: int
    low: float
    high: float

    @property
    def is_few(self) -> bool:
        """Whether there are too few reviews for a useful interval."""
        return self.answers < MIN_REVIEWS


def load_days(log: DecisionLog, now: datetime) -> list[DayStatistics]:
    """Load the statistics of the last `DAYS` days.

    Args:
        log: The decision log.
        now: Current time.

    Returns:
        One entry per day, oldest first.

    Raises:
        AbstainError: The log cannot be read.
    """
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first, step = today - timedelta(days=DAYS - 1), timedelta(days=1)
    counts_by_start = {
        count.start: count for count in queries.count_by_interval(log.database, first, today + step, step)
    }
    return [
        DayStatistics(start, count.show, count.abstain, count.unavailable, count.shown, count.p50_ms, count.p99_ms)
        if (count := counts_by_start.get(start))
        else DayStatistics(start)
        for start in (first + index * step for index in range(DAYS))
    ]


def load_review_statistics(log: DecisionLog, version_info: VersionInfo, labels: LabelParams) -> ReviewStatistics | None:
    """Load the reviews of the answers that a version has shown since it went live.

    Args:
        log: The decision log.
        version_info: The version.
        labels: Rule by which a reviewed answer counts as correct.

    Returns:
        The statistics; None if there is no review.

    Raises:
        AbstainError: The log cannot be read.
    """
    reviews = queries.list_reviews_of_shown(log.database, version_info.version, version_info.live_since)
    return _count_correct(reviews, labels) if reviews else None


def _count_correct(reviews: Sequence[Review], labels: LabelParams) -> ReviewStatistics:
    """Count the correct answers by the project's rule, `labels`, as in training."""
    import pandas as pd  # takes some seconds, only for the first page
    from scipy.stats import binomtest

    from abstain.data.labels.answer_labels import resolve_reviews, select_latest_reviews

    table = pd.DataFrame([review.model_dump(exclude={"ideal_answer"}) for review in reviews])
    table["row"] = pd.factorize(table["interaction_id"])[0]
    table["inclusion_probability"] = float("nan")
    label_table = resolve_reviews(select_latest_reviews(table, labels), labels)
    correct = int(label_table["label"].sum())
    interval = binomtest(correct, len(label_table)).proportion_ci(0.95, method="exact")
    return ReviewStatistics(len(label_table), correct, float(interval.low), float(interval.high))
