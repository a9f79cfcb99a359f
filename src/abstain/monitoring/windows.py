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
    """Days of one version in [start, end).

    Attributes:
        version: The version.
        start: Midnight UTC.
        end: Midnight UTC.
    """

    version: str
    start: datetime
    end: datetime

    def contains(self, moments: pd.Series) -> pd.Series:
        """Check which times lie in the range.

        Args:
            moments: Times (UTC).

        Returns:
            Bool for each time.
        """
        return (moments >= self.start) & (moments < self.end)


def make_day_ranges(
    version: str, decided: pd.Series, arrived: pd.Series, params: MonitoringParams, until: datetime
) -> list[DayRange]:
    """Divide the days of a version into windows, each as short as the minima allow.

    The rest, too short for a window, waits for the following days. A window begins where the previous one ended.

    Args:
        version: The version.
        decided: Days of its decisions.
        arrived: Days on which reviews of its answers arrived.
        params: Minimum numbers of decisions and reviews.
        until: Only whole days before this time are used.

    Returns:
        The windows, oldest first.
    """
    counts = pd.DataFrame({"decisions": decided.value_counts(), "reviews": arrived.value_counts()}).fillna(0)
    counts = counts[counts.index < pd.Timestamp(until).floor("D")].sort_index()
    return list(_join_days(version, counts, params))


def _join_days(version: str, counts: pd.DataFrame, params: MonitoringParams) -> Iterator[DayRange]:
    start, decisions, reviews = None, 0, 0
    for day, day_counts in zip(counts.index, counts.to_dict("records"), strict=True):
        start = start or day.to_pydatetime()
        decisions, reviews = decisions + day_counts["decisions"], reviews + day_counts["reviews"]
        if decisions >= params.min_decisions or reviews >= params.min_reviews:
            end = day.to_pydatetime() + DAY
            yield DayRange(version, start, end)
            start, decisions, reviews = end, 0, 0
