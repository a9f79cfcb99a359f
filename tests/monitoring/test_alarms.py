from typing import Any

import pytest

from abstain.core.codes import Code
from abstain.data.decision_log.monitoring_windows import Alarm
from abstain.monitoring.alarms import AlarmExamples, raise_alarms
from tests.data.decision_log.builders import make_guarantee, make_window_statistics
from tests.monitoring.builders import PARAMS

EXAMPLES = AlarmExamples(("i-2",), ("i-3",), ("i-4",))
CALIBRATION = {"difference": -0.1, "low": -0.2, "high": 0.01, "p_value": 0.051, "reviews": 60}
SILENCE = {"is_alarming": False, "hours": 30, "longest_before": 12}
WRITERS = {"statistics": {"before": {"m@1": 1.0}, "now": {"m@1": 0.96, "m@2": 0.04}, "new": 0.04}}
COVERAGE = {"before": 0.7, "now": 0.6}
COMPARED = {
    "questions": {"p_value": 0.02},
    "answers": {"p_value": 0.4},
    "contexts": {"p_value": 0.3},
    "states": {"p_value": 0.06},
    "topics": {"p_value": 0.06, "statistics": {"share": 0.2, "expected": 0.05}},
    "coverage": {"p_value": 0.06, "statistics": COVERAGE},
    "chunks": {"statistics": {"share": 0.05}},
    "writers": WRITERS,
}
STATISTICS = {
    "decisions": 400,
    "unavailable": 0.05,
    "unavailable_codes": {"A503": 20},
    "guarantee": make_guarantee(),
    "calibration": CALIBRATION,
    "feed": {"decisions": SILENCE, "feedback": SILENCE},
}


def list_alarms(statistics: dict[str, Any] | None = None, **compared: Any) -> dict[Code, Alarm]:
    """Raise the alarms of a window at all its limits, except for these changes."""
    window = make_window_statistics(**{**STATISTICS, "compared": {**COMPARED, **compared}, **(statistics or {})})
    return {alarm.code: alarm for alarm in raise_alarms(window, EXAMPLES, PARAMS)}


def test_raise_alarms_at_limits_or_without_results_raises_none() -> None:
    assert list_alarms() == {}
    unjudged = {"questions": {"note": "not judged"}, "states": {"note": "not judged"}}
    compared = make_window_statistics().compared.model_dump() | unjudged
    assert raise_alarms(make_window_statistics(compared=compared), EXAMPLES, PARAMS) == ()


@pytest.mark.parametrize(
    ("code", "statistics", "compared", "examples"),
    [
        (Code.GUARANTEE_VIOLATED, {"guarantee": make_guarantee(is_violated=True)}, {}, ("i-2",)),
        (Code.CALIBRATION_OFF, {"calibration": CALIBRATION | {"p_value": 0.05}}, {}, ("i-3",)),
        (Code.INPUT_DRIFT, {}, {"contexts": {"p_value": 0.016}}, ("i-1",)),
        (Code.STATE_DRIFT, {}, {"states": {"p_value": 0.05}}, ("i-1",)),
        (Code.NEW_TOPICS, {}, {"topics": {"p_value": 0.05, "statistics": {"share": 0.2, "expected": 0.05}}}, ("i-1",)),
        (Code.UNKNOWN_CHUNKS, {}, {"chunks": {"statistics": {"share": 0.051}}}, ("i-1",)),
        (Code.MODEL_CHANGED, {}, {"writers": {"statistics": WRITERS["statistics"] | {"new": 0.05}}}, ("i-1",)),
        (Code.MODEL_CHANGED, {"unavailable_codes": {"A207": 3, "A205": 1}}, {}, ("i-4",)),
        (Code.TOO_MANY_UNAVAILABLE, {"unavailable": 0.0525}, {}, ("i-4",)),
        (Code.COVERAGE_CHANGED, {}, {"coverage": {"p_value": 0.05, "statistics": COVERAGE | {"now": 0.5}}}, ("i-1",)),
        (Code.FEED_SILENT, {"feed": {"feedback": SILENCE | {"is_alarming": True}}}, {}, ()),
    ],
)
def test_raise_alarms_beyond_one_limit_raises_one(
    code: Code, statistics: dict[str, Any], compared: dict[str, Any], examples: tuple[str, ...]
) -> None:
    compared = {name: each | {"examples": ("i-1",)} for name, each in compared.items()}
    alarms = list_alarms(statistics, **compared)
    assert list(alarms) == [code] and alarms[code].examples == examples


def test_raise_alarms_divides_alpha_among_texts() -> None:
    assert Code.INPUT_DRIFT not in list_alarms(contexts={"p_value": 0.0167})
    assert Code.INPUT_DRIFT in list_alarms(contexts={"p_value": 0.0166})
    assert Code.INPUT_DRIFT in list_alarms(questions={"p_value": 0.04}, answers={}, contexts={})


def test_raise_alarms_names_drifted_texts_codes_and_rare_models() -> None:
    alarms = list_alarms({"unavailable": 0.5}, contexts={"p_value": 0.001}, answers={"p_value": 0.002})
    assert alarms[Code.INPUT_DRIFT].message.startswith("answers and contexts ")
    assert "A503 20" in alarms[Code.TOO_MANY_UNAVAILABLE].message
    shares = {"before": {"m@1": 0.995, "m@2": 0.005}, "now": {"m@1": 0.8, "m@2": 0.1, "m@3": 0.1}, "new": 0.2}
    message = list_alarms(writers={"statistics": shares})[Code.MODEL_CHANGED].message
    assert "m@2 and m@3" in message and "m@1" not in message
