"""Detects a dead feed by its own rhythm: it is silent for much longer than ever before. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

import pandas as pd

from abstain.data.decision_log.monitoring_windows import FeedSilence

FACTOR = 2
"""How many times the longest earlier silence is accepted; a rhythm of weekdays includes its weekends."""
MIN_ROWS, MIN_DAYS = 30, 8
"""With fewer rows or days, no rhythm is known; a week and a day include a weekend."""


def measure_silence(moments: pd.Series, now: datetime) -> FeedSilence | None:
    """Measure the silence since the last row.

    Args:
        moments: Times of the rows, in any order.
        now: Current time (UTC).

    Returns:
        The silence; None if there are too few rows or days to know a rhythm.
    """
    ordered = moments[moments <= now].sort_values()
    if len(ordered) < MIN_ROWS or ordered.iloc[-1] - ordered.iloc[0] < timedelta(days=MIN_DAYS):
        return None
    longest = ordered.diff().max() / timedelta(hours=1)
    hours = (pd.Timestamp(now) - ordered.iloc[-1]) / timedelta(hours=1)
    return FeedSilence(hours=hours, longest_before=longest, is_alarming=bool(hours > FACTOR * longest))
