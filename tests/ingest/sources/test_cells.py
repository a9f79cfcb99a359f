import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from abstain.ingest.sources.cells import find_column_problem, make_object


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"user": None, "comment": "", "inclusion_probability": math.nan}, {}),
        ({"thumb.given_at": "", "thumb.thumb": None}, {}),
        ({"thumb.thumb": "up", "review.correct": "TRUE"}, {"thumb": {"thumb": "up"}, "review": {"correct": True}}),
        ({"contexts": '[{"chunk_id": "a#1", "text": "x"}]'}, {"contexts": [{"chunk_id": "a#1", "text": "x"}]}),
        ({"contexts": '["\udcff"]'}, {"contexts": '["\udcff"]'}),  # a byte that is no UTF-8
        ({"thumb": '{"user": "a", "user": "b"}'}, {"thumb": '{"user": "a", "user": "b"}'}),
        ({"review": '{"correct": "true"}'}, {"review": {"correct": "true"}}),  # JSON has its own true
        ({"correct": 1, "complete": 0, "truthful": 2}, {"correct": True, "complete": False, "truthful": 2}),
        ({"correct": "1", "truthful": " False "}, {"correct": "1", "truthful": False}),
        ({"inclusion_probability": "0.25"}, {"inclusion_probability": 0.25}),
        ({"propensity": "NaN", "writer_scores.a": "nan", "writer_scores.b": "1"}, {"writer_scores": {"b": 1}}),
        ({"propensity": "a half", "comment": " "}, {"propensity": "a half", "comment": " "}),
        ({"interaction_id": 17, "question": 17}, {"interaction_id": "17", "question": 17}),
        ({"interaction_id": UUID(int=1)}, {"interaction_id": "00000000-0000-0000-0000-000000000001"}),
        ({"interaction_id": True}, {"interaction_id": True}),
        ({"comment": b"caf\xc3\xa9"}, {"comment": "café"}),
        ({"given_at": datetime(2026, 9, 1, 12, tzinfo=UTC)}, {"given_at": "2026-09-01T12:00:00+00:00"}),
        ({"given_at": datetime(2026, 9, 1, 12)}, {"given_at": "2026-09-01T12:00:00"}),
        ({"odd.name": "x"}, {"odd.name": "x"}),
        ({"writer_scores.log_prob": "-1.5", "writer_scores.judge": ""}, {"writer_scores": {"log_prob": -1.5}}),
        ({"writer_scores.correct": 1, "writer_scores.user": "2"}, {"writer_scores": {"correct": 1, "user": 2}}),
        ({"writer_scores": {"correct": 1, "judge": None, "user": 3}}, {"writer_scores": {"correct": 1, "user": 3}}),
        ({"writer_scores": '{"log_prob": -1.5}'}, {"writer_scores": {"log_prob": -1.5}}),
        ({"token_log_probs": [Decimal("-0.5"), -1]}, {"token_log_probs": [-0.5, -1]}),
    ],
)
def test_cells_become_an_object(cells: dict[str, Any], expected: dict[str, Any]) -> None:
    assert make_object(cells) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (datetime(2026, 9, 1, 12), "2026-09-01T12:00:00+00:00"),
        ("2026-09-01 12:00:00", "2026-09-01T12:00:00+00:00"),
        ("2026-09-01T12:00:00+02:00", "2026-09-01T12:00:00+02:00"),
        ("yesterday", "yesterday"),
    ],
)
def test_cells_naive_time_is_utc_only_if_configured(given: Any, expected: str) -> None:
    assert make_object({"asked_at": given}, naive_is_utc=True) == {"asked_at": expected}
    assert make_object({"thumb.given_at": given}, naive_is_utc=True) == {"thumb": {"given_at": expected}}
    untouched = given if isinstance(given, str) else given.isoformat()
    assert make_object({"asked_at": given}) == {"asked_at": untouched}


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (["a", "b"], None),
        (["thumb.given_at", "thumb.thumb", "review"], None),
        (["a", ""], "column 2 has no name"),
        (["a", "b", "a"], "the column 'a' is there twice"),
        (["review", "review.correct"], "the columns 'review.correct' and 'review' are redundant"),
    ],
)
def test_cells_contradicting_columns_are_a_problem(columns: list[str], problem: str | None) -> None:
    found = find_column_problem(columns)
    assert found is None if problem is None else found is not None and found.startswith(problem)
