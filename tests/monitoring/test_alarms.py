"""Each alarm is raised by what it is for, and by nothing else; all of one quiet window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from abstain.core.codes import Code
from abstain.monitoring.alarms import WindowResult, raise_alarms
from abstain.monitoring.window_comparison import ComparisonResult
from tests.monitoring.builders import PARAMS

STATISTICS: Mapping[str, Any] = {
    "decisions": 400,
    "unavailable": 0.05,
    "unavailable_codes": {"A503": 20},
    "guarantee": {
        "metric": "precision",
        "target": 0.9,
        "estimate": 0.85,
        "low": 0.8,
        "high": 0.89,
        "is_violated": False,
        "reviews": 90,
        "documents": 40,
    },
    "calibration": {"difference": -0.1, "low": -0.2, "high": 0.01, "p_value": 0.051, "reviews": 60},
    "feed": {"decisions": {"is_alarming": False, "hours": 3, "longest_before": 12}, "feedback": {"is_alarming": False}},
}
COMPARED: Mapping[str, ComparisonResult] = {
    "questions": ComparisonResult(0.02),
    "answers": ComparisonResult(0.4),
    "contexts": ComparisonResult(0.3, examples=("i-1",)),
    "states": ComparisonResult(0.06),
    "topics": ComparisonResult(0.06, {"share": 0.2, "expected": 0.05}),
    "coverage": ComparisonResult(0.06, {"before": 0.7, "now": 0.6}),
    "chunks": ComparisonResult(None, {"share": 0.05}),
    "writers": ComparisonResult(None, {"before": {"m@1": 1.0}, "now": {"m@1": 0.96, "m@2": 0.04}, "new": 0.04}),
}
EXAMPLES = {"incorrect": ("i-2",), "miscalibrated": ("i-3",), "unavailable": ("i-4",)}


def raised(statistics: Mapping[str, Any] = {}, **compared: ComparisonResult) -> dict[Code, tuple[str, tuple[str, ...]]]:
    found = WindowResult({**STATISTICS, **statistics}, {**COMPARED, **compared}, EXAMPLES)
    return {alarm.code: (alarm.message, alarm.examples) for alarm in raise_alarms(found, PARAMS)}


def test_at_its_limits_a_window_is_quiet() -> None:
    assert raised() == {}


def test_what_was_not_judged_raises_nothing() -> None:
    statistics = {
        **STATISTICS,
        "guarantee": None,
        "calibration": None,
        "unavailable": None,
        "feed": {},
        "unavailable_codes": {},
    }
    nothing = {"questions": ComparisonResult(note="not judged"), "states": ComparisonResult(note="not judged")}
    assert raise_alarms(WindowResult({**statistics, "decisions": 0}, nothing, EXAMPLES), PARAMS) == ()


@pytest.mark.parametrize(
    ("code", "statistics", "compared", "examples"),
    [
        (Code.GUARANTEE_VIOLATED, {"guarantee": {**STATISTICS["guarantee"], "is_violated": True}}, {}, ("i-2",)),
        (Code.CALIBRATION_OFF, {"calibration": {**STATISTICS["calibration"], "p_value": 0.05}}, {}, ("i-3",)),
        (Code.INPUT_DRIFT, {}, {"contexts": ComparisonResult(0.016, examples=("i-1",))}, ("i-1",)),
        (Code.STATE_DRIFT, {}, {"states": ComparisonResult(0.05, examples=("i-5",))}, ("i-5",)),
        (Code.NEW_TOPICS, {}, {"topics": ComparisonResult(0.05, {"share": 0.2, "expected": 0.05}, ("i-6",))}, ("i-6",)),
        (Code.UNKNOWN_CHUNKS, {}, {"chunks": ComparisonResult(None, {"share": 0.051}, ("i-7",))}, ("i-7",)),
        (
            Code.MODEL_CHANGED,
            {},
            {"writers": ComparisonResult(None, {"before": {"m@1": 1.0}, "now": {"m@2": 0.05}, "new": 0.05}, ("i-8",))},
            ("i-8",),
        ),
        (Code.MODEL_CHANGED, {"unavailable_codes": {"A207": 3, "A205": 1}}, {}, ("i-4",)),
        (Code.TOO_MANY_UNAVAILABLE, {"unavailable": 0.0525}, {}, ("i-4",)),
        (
            Code.COVERAGE_CHANGED,
            {},
            {"coverage": ComparisonResult(0.05, {"before": 0.7, "now": 0.5}, ("i-9",))},
            ("i-9",),
        ),
        (Code.FEED_SILENT, {"feed": {"feedback": {"is_alarming": True, "hours": 50, "longest_before": 12}}}, {}, ()),
    ],
)
def test_each_alarm_is_raised_alone_with_examples(
    code: Code, statistics: dict[str, Any], compared: dict[str, ComparisonResult], examples: tuple[str, ...]
) -> None:
    found = raised(statistics, **compared)
    assert list(found) == [code]
    assert found[code][1] == examples


def test_tests_of_one_kind_share_its_level() -> None:
    assert Code.INPUT_DRIFT not in raised(contexts=ComparisonResult(0.0167))
    assert Code.INPUT_DRIFT in raised(contexts=ComparisonResult(0.0166))
    alone = {"questions": ComparisonResult(0.04), "answers": ComparisonResult(), "contexts": ComparisonResult()}
    assert Code.INPUT_DRIFT in raised(**alone)


def test_an_alarm_says_which_texts_drifted_and_which_codes_were_given() -> None:
    said = raised({"unavailable": 0.5}, contexts=ComparisonResult(0.001), answers=ComparisonResult(0.002))
    assert "answers and contexts" in said[Code.INPUT_DRIFT][0] and "questions" not in said[Code.INPUT_DRIFT][0]
    assert "A503 20" in said[Code.TOO_MANY_UNAVAILABLE][0]


def test_an_alarm_names_the_new_writers_those_that_were_rare_before_too() -> None:
    shares = {"before": {"m@1": 0.995, "m@2": 0.005}, "now": {"m@1": 0.8, "m@2": 0.1, "m@3": 0.1}, "new": 0.2}
    what, _ = raised(writers=ComparisonResult(None, shares))[Code.MODEL_CHANGED]
    assert "m@2 and m@3" in what and "m@1" not in what
