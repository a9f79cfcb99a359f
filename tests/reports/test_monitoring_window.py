from datetime import UTC, datetime
from typing import Any

import pytest

from abstain.core.codes import Code
from abstain.data.decision_log.monitoring_windows import Alarm, MonitoringWindow
from abstain.reports.monitoring_window import format_statistics, history_rows, render_window
from tests.data.decision_log.builders import make_guarantee, make_window_statistics
from tests.reports.builders import LINK, TAG, assert_golden

DAYS = datetime(2026, 11, 2, tzinfo=UTC), datetime(2026, 11, 7, tzinfo=UTC)
FULL: dict[str, Any] = {
    "decisions": 1400,
    "shown": 1050,
    "coverage": 0.75,
    "products": {"cards": {"decisions": 900, "coverage": 0.8}, TAG: {"decisions": 500, "coverage": 0.66}},
    "unavailable": 0.05,
    "unavailable_codes": {"A503": 60, "A207": 10},
    "confidence": {"deciles": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], "stability_index": 0.31},
    "expected": {"value": 0.9, "low": 0.85, "high": 0.95},
    "reviews": 61,
    "excluded_self_selected": 1,
    "precision": {"reviews": 60, "documents": 1, "n_eff": 44.5, "precision": 0.875},
    "guarantee": make_guarantee(alpha=0.04, is_violated=True, violated_on="2026-11-04"),
    "calibration": {"difference": -0.1, "low": -0.2, "high": 0.01, "p_value": 0.04, "reviews": 60},
    "prediction_errors": {"windows": 2, "mean_error": 0.031},
    "feed": {"decisions": {"hours": 30, "longest_before": 12, "is_alarming": True}},
    "compared": {
        "questions": {"p_value": 0.02, "statistics": {"auc": 0.7}},
        "answers": {"p_value": None},
        "contexts": {"note": "not judged: too few answers or documents"},
        "states": {"p_value": 0.0004},
        "topics": {"p_value": 0.01, "statistics": {"share": 0.2, "expected": 0.05}},
        "coverage": {"p_value": 0.06, "statistics": {"before": 0.7, "now": 0.75}},
        "chunks": {"statistics": {"share": 0.05}},
        "writers": {"statistics": {"before": {"m@1": 1.0}, "now": {"m@1": 0.96, f"m@2 {LINK}": 0.04}, "new": 0.04}},
    },
    "notes": ["unknown chunks are not judged: no document was ingested"],
}
ALARMS = (
    Alarm(Code.INPUT_DRIFT, f"contexts differ {TAG}", ("i-1", LINK)),
    Alarm(Code.FEED_SILENT, "no decisions for 30 hours", (), "ring them up"),
)
UNCERTAIN = {
    "self_selected": 2,
    "guarantee": make_guarantee(metric="error_rate", target=0.1, estimate=None, e_value=None),
    "expected": FULL["expected"],
    "confidence": FULL["confidence"] | {"stability_index": None},
}
WINDOWS = {
    "alarms": MonitoringWindow("v1.0.0", *DAYS, make_window_statistics(**FULL), ALARMS),
    "empty": MonitoringWindow("v1.0.0", *DAYS, make_window_statistics()),
    "uncertain": MonitoringWindow("v1.0.0", *DAYS, make_window_statistics(**UNCERTAIN)),
}


@pytest.mark.parametrize("state", WINDOWS)
def test_render_window_equals_the_golden_file(state: str) -> None:
    assert_golden(f"window_{state}.md", render_window(WINDOWS[state]))


def test_format_statistics_keeps_texts_unescaped_in_a_line() -> None:
    statistics = dict(format_statistics(WINDOWS["alarms"]))
    assert statistics["written by"] == f"m@1 96.0 %, m@2 {LINK} 4.0 %"


def test_history_rows_are_newest_first() -> None:
    newest, older = history_rows([WINDOWS["empty"], WINDOWS["alarms"]])
    assert older["status"] == "Quiet"
    assert newest == {
        "from": "2026-11-02",
        "to": "2026-11-07",
        "version": "v1.0.0",
        "decisions": 1400,
        "coverage": "75.0 %",
        "precision": "87.5 %",
        "expected": "90.0 %",
        "status": "Alarm: input drift and feed silent",
    }
