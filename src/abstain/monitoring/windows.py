"""Windows of time: consecutive days of one version, joined until they hold enough decisions or reviews. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pandas as pd

from abstain.config.params import MonitoringParams

DAY = timedelta(days=1)


@dataclass(frozen=True)
class DayRange:
    """The days of one version in [start, end), both midnight in UTC."""

    version: str
    start: datetime
    end: datetime

    def contains(self, moments: pd.Series) -> pd.Series:
        """Which of `moments` lie in it."""
        return (moments >= self.start) & (moments < self.end)


def make_day_ranges(
    version: str, decided: pd.Series, arrived: pd.Series, params: MonitoringParams, until: datetime
) -> list[DayRange]:
    """The windows of `version`, oldest first: of whole days before `until`, each as short as the minima allow.

    What is left, too little for a window, waits for the days to come. A window begins where the one before it ended.

    Args:
        decided: the days of its decisions. arrived: the days on which reviews of its answers arrived.
    """
    counts = pd.DataFrame({"decisions": decided.value_counts(), "reviews": arrived.value_counts()}).fillna(0)
    counts = counts[counts.index < pd.Timestamp(until).floor("D")].sort_index()
    return list(_join_days(version, counts, params))


def _join_days(version: str, counts: pd.DataFrame, params: MonitoringParams) -> Iterator[DayRange]:
    start, decisions, reviews = None, 0, 0
    for day, own in zip(counts.index, counts.to_dict("records"), strict=True):
        start = start or day.to_pydatetime()
        decisions, reviews = decisions + own["decisions"], reviews + own["reviews"]
        if decisions >= params.min_decisions or reviews >= params.min_reviews:
            end = day.to_pydatetime() + DAY
            yield DayRange(version, start, end)
            start, decisions, reviews = end, 0, 0
