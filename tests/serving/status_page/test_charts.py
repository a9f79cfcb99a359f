from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from bs4 import BeautifulSoup

from abstain.serving.status_page.charts import draw_coverage_chart, draw_decisions_chart, draw_latency_chart
from abstain.serving.status_page.status_data import DayStatistics

FIRST = datetime(2026, 11, 12, tzinfo=UTC)


def make_days(*figures: tuple[int, int, int, float | None]) -> list[DayStatistics]:
    """Make days from the number of decisions of each kind and the p99, which is twice the p50."""
    return [
        DayStatistics(FIRST + timedelta(days=day), show, abstain, unavailable, show, slow and slow / 2, slow)
        for day, (show, abstain, unavailable, slow) in enumerate(figures)
    ]


def parse(svg: str) -> BeautifulSoup:
    return BeautifulSoup(svg, "html.parser")


def test_draw_decisions_chart_stacks_bars_in_the_chart() -> None:
    chart = parse(draw_decisions_chart(make_days((3, 2, 1, 1.0), (0, 0, 0, None), (10, 0, 0, 1.0))))
    bars = [(bar["class"], float(bar["y"]), float(bar["height"])) for bar in chart.find_all("rect")]
    assert [bar[0] for bar in bars] == [["show"], ["abstain"], ["unavailable"], ["show"]]
    assert bars[0][2] == pytest.approx(3 * bars[2][2], abs=0.2)
    for (_, below, _), (_, above, height) in pairwise(bars[:3]):
        assert above + height == pytest.approx(below, abs=0.11)
    height = float(chart.svg["viewbox"].split()[3])
    assert all(y >= 0 and y + tall <= height for _, y, tall in bars)


def test_draw_coverage_chart_breaks_lines_at_empty_days() -> None:
    figures = [(1, 1, 0, 5.0), (1, 0, 0, 5.0), (0, 0, 0, None), (0, 1, 0, 5.0), (1, 3, 0, 5.0), (0, 0, 0, None)]
    chart = parse(draw_coverage_chart(make_days(*figures, (1, 0, 0, 5.0))))
    lines = [line["points"].split() for line in chart.find_all("polyline")]
    assert [len(line) for line in lines] == [2, 2], "a day alone is a dot"
    assert len(chart.find_all("circle")) == 5
    heights = [float(dot["cy"]) for dot in chart.find_all("circle")]
    assert heights[1] < heights[0] < heights[3] < heights[2], "100, 50, 25 and 0 %"
    day = DayStatistics(FIRST, show=1, abstain=1, unavailable=2, shown=3)  # one was shown without a decision
    assert "75 %" in parse(draw_coverage_chart([day])).desc.get_text() and day.coverage == 0.75


def test_draw_latency_chart_has_a_round_scale() -> None:
    for slowest, label in {0.4: "1 ms", 1.1: "2 ms", 450.0: "500 ms", 9_999.0: "10 s", 61_000.0: "100 s"}.items():
        assert parse(draw_latency_chart(make_days((1, 0, 0, slowest)))).find("text").get_text() == label
    for draw in (draw_decisions_chart, draw_coverage_chart, draw_latency_chart):
        chart = parse(draw(make_days((0, 0, 0, None), (0, 0, 0, None))))
        assert not chart.find_all(["rect", "circle", "polyline"]) and chart.title.get_text() and chart.desc.get_text()
