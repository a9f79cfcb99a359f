"""What `abstain monitor` says where there is nothing to judge yet."""

from __future__ import annotations

from abstain_cli.monitor import lines
from tasks.monitoring import Monitoring


def test_who_has_traffic_but_no_window_learns_what_a_window_needs() -> None:
    """Enough decisions of today make no window: days that are not over are not counted."""
    (said,) = lines(Monitoring(windows=(), history=(), raised=()))
    assert "monitoring.min_decisions" in said and "monitoring.min_reviews" in said
    assert "tomorrow" in said
