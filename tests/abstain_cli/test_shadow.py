from math import nan

import pytest
from rich.console import Console

from abstain.release.metric_comparison import MetricComparison
from abstain.release.promotion_record import ShadowRecord
from abstain_cli.shadow import _make_table


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(nan, nan, "(no interval)"), (0.05, nan, "(no interval)"), (0.05, 0.15, "(+0.050 to +0.150)")],
)
def test_compare_prints_a_difference_with_its_interval(low: float, high: float, text: str) -> None:
    row = MetricComparison("AUROC", candidate=0.8, champion=0.7, difference=0.1, low=low, high=high)
    record = ShadowRecord.model_construct(shadow="shadow-1", champion="v1.0.0", champion_comparison=(row,))
    console = Console(width=200)
    with console.capture() as captured:
        console.print(_make_table(record))
    assert f"+0.100 {text}" in captured.get() and "nan" not in captured.get()
