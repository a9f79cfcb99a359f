"""Is the feed dead? By its own rhythm: it is where it is silent for much longer than it ever was before. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import pandas as pd

FACTOR = 2
"""How many times the longest silence before it may take: a rhythm of weekdays has its weekends among these."""
MIN_ROWS, MIN_DAYS = 30, 8
"""With fewer rows or a shorter time a rhythm is not known; a week and a day have a weekend in them."""


@dataclass(frozen=True)
class Silence:
    """How long nothing has come, and the longest time before in which nothing came; hours."""

    hours: float
    longest_before: float
    is_alarming: bool


def measure_silence(moments: pd.Series, now: datetime) -> Silence | None:
    """The silence since the last of `moments`, in any order; None where no rhythm is known."""
    ordered = moments[moments <= now].sort_values()
    if len(ordered) < MIN_ROWS or ordered.iloc[-1] - ordered.iloc[0] < timedelta(days=MIN_DAYS):
        return None
    longest = ordered.diff().max() / timedelta(hours=1)
    hours = (pd.Timestamp(now) - ordered.iloc[-1]) / timedelta(hours=1)
    return Silence(float(hours), float(longest), bool(hours > FACTOR * longest))
