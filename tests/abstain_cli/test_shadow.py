"""What `abstain shadow compare` prints of a look."""

from __future__ import annotations

from math import nan

import pytest
from rich.console import Console

from abstain.release.metric_comparison import MetricComparison
from abstain.release.promotion_record import ShadowRecord
from abstain_cli.shadow import _make_table


def printed(low: float, high: float) -> str:
    row = MetricComparison("AUROC", candidate=0.8, champion=0.7, difference=0.1, low=low, high=high)
    record = ShadowRecord.model_construct(shadow="shadow-1", champion="v1.0.0", champion_comparison=(row,))
    console = Console(width=200)
    with console.capture() as captured:
        console.print(_make_table(record))
    return captured.get()


@pytest.mark.parametrize("low", [nan, 0.05])
def test_a_difference_without_an_interval_says_so(low: float) -> None:
    """Few reviews give a difference, and no interval of it."""
    said = printed(low, nan)
    assert "+0.100 (no interval)" in said and "nan" not in said


def test_a_difference_has_its_interval() -> None:
    assert "+0.100 (+0.050 to +0.150)" in printed(0.05, 0.15)
