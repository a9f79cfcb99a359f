"""The figures of the page: decisions by day, and what reviews say of the answers that the live version shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from abstain.config.params import LabelParams
from abstain.core.contracts import Review
from abstain.data.decision_log import queries
from abstain.data.decision_log.log import DecisionLog
from abstain.serving.api.version_follower import VersionInfo

DAYS = 14
"""Days that the charts go back, today among them."""
MIN_REVIEWS = 30
"""Fewer reviewed answers say little: the interval is wider than 30 percentage points."""


@dataclass(frozen=True)
class DayStatistics:
    """The decisions of one day (UTC), how many of the answers were shown, and the milliseconds that half of the
    decisions and 99 in 100 took at most; None where there were none."""

    date: datetime
    show: int = 0
    abstain: int = 0
    unavailable: int = 0
    shown: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None

    @property
    def total(self) -> int:
        return self.show + self.abstain + self.unavailable

    @property
    def coverage(self) -> float | None:
        """The share of answers that were shown: of those without a decision, as `on_unavailable` says."""
        return self.shown / self.total if self.total else None


@dataclass(frozen=True)
class ReviewStatistics:
    """Reviewed answers that a version showed: how many are correct, and the exact 95 % interval of their share."""

    answers: int
    correct: int
    low: float
    high: float

    @property
    def is_few(self) -> bool:
        return self.answers < MIN_REVIEWS


def load_days(log: DecisionLog, now: datetime) -> list[DayStatistics]:
    """The last `DAYS` days. Raises `AbstainError` where the log cannot be read."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first, step = today - timedelta(days=DAYS - 1), timedelta(days=1)
    found = {one.start: one for one in queries.count_by_interval(log.database, first, today + step, step)}
    return [
        DayStatistics(at, one.show, one.abstain, one.unavailable, one.shown, one.p50_ms, one.p99_ms)
        if (one := found.get(at))
        else DayStatistics(at)
        for at in (first + number * step for number in range(DAYS))
    ]


def load_review_statistics(log: DecisionLog, release: VersionInfo, labels: LabelParams) -> ReviewStatistics | None:
    """What reviews say of the answers that `release` showed since it went live; None where there is no review.

    Raises `AbstainError` where the log cannot be read.
    """
    reviews = queries.list_reviews_of_shown(log.database, release.version, release.since)
    return _count_correct(reviews, labels) if reviews else None


def _count_correct(reviews: Sequence[Review], labels: LabelParams) -> ReviewStatistics:
    """An answer is correct by the project's rule, `labels`, as in training."""
    import pandas as pd  # some seconds, for the first page alone
    from scipy.stats import binomtest

    from abstain.data.labels.answer_labels import resolve_reviews, select_latest_reviews

    table = pd.DataFrame([one.model_dump(exclude={"ideal_answer"}) for one in reviews])
    table["row"] = pd.factorize(table["interaction_id"])[0]
    table["inclusion_probability"] = float("nan")
    verdicts = resolve_reviews(select_latest_reviews(table, labels), labels)
    correct = int(verdicts["label"].sum())
    interval = binomtest(correct, len(verdicts)).proportion_ci(0.95, method="exact")
    return ReviewStatistics(len(verdicts), correct, float(interval.low), float(interval.high))
