"""What `abstain shadow compare` prints of a look."""

from __future__ import annotations

import pytest
from rich.console import Console

from abstain_cli.shadow import _make_table


def printed(low: float | None, high: float | None) -> str:
    row = {"metric": "AUROC", "candidate": 0.8, "champion": 0.7, "difference": 0.1, "low": low, "high": high}
    console = Console(width=200)
    with console.capture() as captured:
        console.print(_make_table({"shadow": "shadow-1", "champion": "v1.0.0", "champion_comparison": [row]}))
    return captured.get()


@pytest.mark.parametrize("low", [None, 0.05])
def test_a_difference_without_an_interval_says_so(low: float | None) -> None:
    """Few reviews give a difference, and no interval of it."""
    said = printed(low, None)
    assert "+0.100 (no interval)" in said and "nan" not in said


def test_a_difference_has_its_interval() -> None:
    assert "+0.100 (+0.050 to +0.150)" in printed(0.05, 0.15)
