"""The page's figures, computed at most once a minute by a thread of their own, however many pages are loaded."""

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
from abstain.serving.api.version_follower import VersionInfo
from abstain.serving.status_page.status_data import DayStatistics, ReviewStatistics, load_days, load_review_statistics

CACHE_TTL_S = 60.0
WINDOWS = 26
"""Windows of the monitoring that the page goes back."""


@dataclass(frozen=True)
class StatusData:
    """Decisions by day; `reviewed`: None where nothing is live, or nothing that it showed has a review. `windows`: the
    newest of the monitoring, oldest first."""

    days: list[DayStatistics]
    reviewed: ReviewStatistics | None
    windows: Sequence[MonitoringWindow]


class StatusCache:
    """The figures of `log`, those of a minute ago at most. For one event loop."""

    def __init__(self, log: DecisionLog, labels: LabelParams) -> None:
        self._log, self._labels = log, labels
        self._thread = ThreadPoolExecutor(1, "figures of the page")
        self._of: VersionInfo | None = None
        self._asked: Future[StatusData] | None = None
        self._done_at = 0.0

    async def get(self, release: VersionInfo | None) -> StatusData:
        """The figures while `release` is live. Raises `AbstainError` where the log cannot be read: that is not kept."""
        if self._asked is None or release != self._of or self._is_over(self._asked):
            self._of, self._asked = release, self._thread.submit(self._compute, release)
        # Who leaves does not cancel it for the others.
        return await asyncio.shield(asyncio.wrap_future(self._asked))

    def _is_over(self, asked: Future[StatusData]) -> bool:
        return asked.done() and (asked.exception() is not None or time.monotonic() - self._done_at >= CACHE_TTL_S)

    def _compute(self, release: VersionInfo | None) -> StatusData:
        try:
            reviewed = load_review_statistics(self._log, release, self._labels) if release else None
            return StatusData(
                load_days(self._log, datetime.now(UTC)), reviewed, read_windows(self._log.database, WINDOWS)
            )
        finally:
            self._done_at = time.monotonic()
