"""The page's statistics, computed at most once a minute by a thread of their own, however many pages are loaded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from abstain.config.params import LabelParams
from abstain.data.decision_log.log import DecisionLog
from abstain.data.decision_log.monitoring_windows import MonitoringWindow, read_windows
from abstain.serving.service.version_follower import VersionInfo
from abstain.serving.status_page.status_data import DayStatistics, ReviewStatistics, load_days, load_review_statistics

CACHE_TTL_S = 60.0
MAX_WINDOWS = 26
"""Number of monitoring windows on the page."""


@dataclass(frozen=True)
class StatusData:
    """The statistics of the page.

    Attributes:
        days: Decisions by day.
        review_statistics: Reviewed answers; None if no version is live or no answer that it showed has a review.
        windows: The newest monitoring windows, oldest first.
    """

    days: list[DayStatistics]
    review_statistics: ReviewStatistics | None
    windows: Sequence[MonitoringWindow]


class StatusCache:
    """The statistics of a log, at most a minute old. For one event loop.

    Args:
        log: The decision log.
        labels: Rule by which a reviewed answer counts as correct.
    """

    def __init__(self, log: DecisionLog, labels: LabelParams) -> None:
        self._log, self._labels = log, labels
        self._thread = ThreadPoolExecutor(1, "figures of the page")
        self._version_info: VersionInfo | None = None
        self._future: Future[StatusData] | None = None
        self._done_at = 0.0

    async def get(self, version_info: VersionInfo | None) -> StatusData:
        """Return the statistics while a version is live.

        Args:
            version_info: The live version; None if there is none.

        Returns:
            The statistics.

        Raises:
            AbstainError: The log cannot be read; the next call tries again.
        """
        if self._future is None or version_info != self._version_info or self._is_stale(self._future):
            self._version_info, self._future = version_info, self._thread.submit(self._compute, version_info)
        # Who leaves does not cancel it for the others.
        return await asyncio.shield(asyncio.wrap_future(self._future))

    def _is_stale(self, future: Future[StatusData]) -> bool:
        return future.done() and (future.exception() is not None or time.monotonic() - self._done_at >= CACHE_TTL_S)

    def _compute(self, version_info: VersionInfo | None) -> StatusData:
        try:
            review_statistics = load_review_statistics(self._log, version_info, self._labels) if version_info else None
            return StatusData(
                load_days(self._log, datetime.now(UTC)),
                review_statistics,
                read_windows(self._log.database, MAX_WINDOWS),
            )
        finally:
            self._done_at = time.monotonic()
