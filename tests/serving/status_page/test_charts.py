"""What the charts draw of days; that the page has them is in test_page.py."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from bs4 import BeautifulSoup

from abstain.serving.status_page.charts import draw_coverage_chart, draw_decisions_chart, draw_latency_chart
from abstain.serving.status_page.status_data import DayStatistics

FIRST = datetime(2026, 11, 12, tzinfo=UTC)


def days(*figures: tuple[int, int, int, float | None]) -> list[DayStatistics]:
    """Days of so many decisions of each kind, as many answers shown as decided so; then the p99, twice the p50."""
    return [
        DayStatistics(FIRST + timedelta(days=at), show, abstain, unavailable, show, slow and slow / 2, slow)
        for at, (show, abstain, unavailable, slow) in enumerate(figures)
    ]


def drawn(svg: str) -> BeautifulSoup:
    return BeautifulSoup(svg, "html.parser")


def test_bars_stand_on_each_other_and_none_leaves_the_chart() -> None:
    found = drawn(draw_decisions_chart(days((3, 2, 1, 1.0), (0, 0, 0, None), (10, 0, 0, 1.0))))
    bars = [(bar["class"], float(bar["y"]), float(bar["height"])) for bar in found.find_all("rect")]
    assert [bar[0] for bar in bars] == [["show"], ["abstain"], ["unavailable"], ["show"]]
    for (_, below, _), (_, above, height) in pairwise(bars[:3]):
        assert above + height == pytest.approx(below, abs=0.11)
    height = float(found.svg["viewbox"].split()[3])
    assert all(y >= 0 and y + tall <= height for _, y, tall in bars)


def test_a_line_breaks_where_a_day_has_no_decisions() -> None:
    figures = [(1, 1, 0, 5.0), (1, 0, 0, 5.0), (0, 0, 0, None), (0, 1, 0, 5.0), (1, 3, 0, 5.0), (0, 0, 0, None)]
    found = drawn(draw_coverage_chart(days(*figures, (1, 0, 0, 5.0))))
    lines = [line["points"].split() for line in found.find_all("polyline")]
    assert [len(line) for line in lines] == [2, 2], "a day alone is a dot"
    assert len(found.find_all("circle")) == 5
    heights = [float(dot["cy"]) for dot in found.find_all("circle")]
    assert heights[1] < heights[0] < heights[3] < heights[2], "100, 50, 25 and 0 %"


def test_answers_that_were_shown_without_a_decision_count_as_shown() -> None:
    day = DayStatistics(FIRST, show=1, abstain=1, unavailable=2, shown=3)
    assert "75 %" in drawn(draw_coverage_chart([day])).desc.get_text() and day.coverage == 0.75


@pytest.mark.parametrize(
    ("slowest", "label"), [(0.4, "1 ms"), (1.1, "2 ms"), (450.0, "500 ms"), (9_999.0, "10 s"), (61_000.0, "100 s")]
)
def test_the_scale_is_the_next_round_number(slowest: float, label: str) -> None:
    assert drawn(draw_latency_chart(days((1, 0, 0, slowest)))).find("text").get_text() == label


def test_nothing_decided_is_said_and_drawn_as_nothing() -> None:
    for chart in (draw_decisions_chart, draw_coverage_chart, draw_latency_chart):
        found = drawn(chart(days((0, 0, 0, None), (0, 0, 0, None))))
        assert not found.find_all(["rect", "circle", "polyline"]) and found.title.get_text() and found.desc.get_text()
