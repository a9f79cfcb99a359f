from __future__ import annotations

import pytest
from rich.console import Console

from abstain_cli.shadow import _make_table


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(None, None, "(no interval)"), (0.05, None, "(no interval)"), (0.05, 0.15, "(+0.050 to +0.150)")],
)
def test_compare_prints_a_difference_with_its_interval(low: float | None, high: float | None, text: str) -> None:
    row = {"metric": "AUROC", "candidate": 0.8, "champion": 0.7, "difference": 0.1, "low": low, "high": high}
    console = Console(width=200)
    with console.capture() as captured:
        console.print(_make_table({"shadow": "shadow-1", "champion": "v1.0.0", "champion_comparison": [row]}))
    assert f"+0.100 {text}" in captured.get() and "nan" not in captured.get()
