from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.contracts import Review
from abstain.review.import_reviews import ParsedReviews, parse_reviews
from abstain.review.workbook import REVIEWER_COLUMNS, make_reviewer_cells, make_sampled_cells, make_workbook, read_rows
from tests.factories import interaction
from tests.factories import review as make_review
from tests.review.builders import SEAL_KEY

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
GOOD = {"complete": "yes", "correct": "TRUE", "truthful": " 0 ", "reviewer": "Ann", "ideal_answer": " 90 euros "}
EMPTY = make_reviewer_cells(None)


def row(key: str = "i-1", **own: str) -> dict[str, str]:
    return {**make_sampled_cells(interaction(key), {}, "random", 1, 4), **EMPTY, **own}


def read(*rows: dict[str, str], stored: tuple[Review, ...] = (), **options: Any) -> ParsedReviews:
    by_id: dict[str, list[Review]] = {}
    for review in stored:
        by_id.setdefault(review.interaction_id, []).append(review)
    return parse_reviews(read_rows(make_workbook(rows, SEAL_KEY)), NOW, by_id, **options)


def test_parse_reviews_filled_row_is_a_review() -> None:
    fields = {"reviewer": "Ann", "truthful": False, "ideal_answer": "90 euros", "inclusion_probability": 0.25}
    assert read(row(**GOOD)).reviews == (make_review(**fields).model_copy(update={"reviewed_at": NOW}),)
    for yes, no in (("yes", "no"), (" Yes", "NO "), ("TRUE", "False"), ("1", "0")):
        (found,) = read(row(**{**GOOD, "complete": yes, "correct": no})).reviews
        assert (found.complete, found.correct) == (True, False)
    for text in ("2026-11-20T08:00:00+01:00", "2026-11-20 07:00", "2026-11-20T07:00:00Z"):
        (found,) = read(row(**GOOD, reviewed_at=text)).reviews
        assert found.reviewed_at == datetime(2026, 11, 20, 7, tzinfo=UTC)
    found = read(row(**{**GOOD, "reviewer": ""}), row("i-2", **GOOD), reviewer="Cleo")
    assert [one.reviewer for one in found.reviews] == ["Cleo", "Ann"]


def test_parse_reviews_empty_row_is_unreviewed() -> None:
    found = read(row(), row("i-2", reviewer="Ann"), row("i-3", complete=" "), row("i-4", **GOOD))
    assert (len(found.reviews), found.n_unreviewed, found.problems) == (1, 3, ())


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"truthful": ""}, "reviews!K3: truthful is empty: write yes or no"),
        ({"correct": "maybe\nnot"}, "reviews!J3: correct is 'maybe not': write yes or no"),
        ({"reviewer": " "}, "reviews!M3: reviewer is empty"),
        ({"reviewed_at": "21.11.2026"}, "reviews!N3: reviewed_at is '21.11.2026'"),
        ({"reviewed_at": "2026-11-21"}, "reviews!N3: reviewed_at is '2026-11-21'"),
        ({"reviewed_at": "0001-01-01T00:00:00+10:00"}, "reviews!N3: reviewed_at is '0001-01-01T00:00:00+10:00'"),
        (EMPTY | {"ideal_answer": "90 euros"}, "reviews!I3: complete is empty"),
    ],
)
def test_parse_reviews_wrong_cell_is_named_with_its_remedy(own: dict[str, str], message: str) -> None:
    found = read(row(**GOOD), row("i-2", **{**GOOD, **own}))
    assert len(found.reviews) == 1 and found.n_unreviewed == 0, "no row refuses another"
    (problem,) = found.problems
    assert problem.startswith(message)


def test_parse_reviews_second_row_of_a_reviewer_is_a_problem() -> None:
    found = read(row(**GOOD), row(**{**GOOD, "complete": "no"}), row(**{**GOOD, "reviewer": "Bob"}))
    assert [(one.reviewer, one.complete) for one in found.reviews] == [("Ann", True), ("Bob", True)]
    (problem,) = found.problems
    assert problem.startswith("reviews!M3: reviewer is Ann")


def test_parse_reviews_same_review_keeps_its_time() -> None:
    (first,) = read(row(**GOOD)).reviews
    earlier = first.model_copy(update={"reviewed_at": datetime(2026, 11, 1, tzinfo=UTC)})
    assert read(row(**GOOD), stored=(earlier,)).reviews == (earlier,)
    for own in ({"complete": "no"}, {"reviewer": "Bob"}, {"ideal_answer": ""}):
        (other,) = read(row(**{**GOOD, **own}), stored=(earlier,)).reviews
        assert other.reviewed_at == NOW


def test_parse_reviews_other_review_of_one_time_is_a_problem() -> None:
    dated = {**GOOD, "reviewed_at": "2026-11-20T08:00:00Z"}
    (first,) = read(row(**dated)).reviews
    assert read(row(**dated), stored=(first,)).reviews == (first,)
    other = first.model_copy(update={"inclusion_probability": 0.5})
    found = read(row(**dated), row("i-2", **dated), stored=(other,))
    assert [one.interaction_id for one in found.reviews] == ["i-2"]
    assert found.problems[0].startswith("reviews!N2: reviewed_at is the moment of another review of this reviewer")
    someone = other.model_copy(update={"reviewer": "Bob"})
    assert len(read(row(**dated), stored=(someone,)).reviews) == 1


def test_parse_reviews_compares_as_ingest_stored_it() -> None:
    (first,) = read(row(**GOOD)).reviews
    redacted = {"reviewer": "r-1", "ideal_answer": "<AMOUNT>"}
    moment = {"reviewed_at": datetime(2026, 11, 1, tzinfo=UTC)}
    stored = (first.model_copy(update=redacted | moment),)
    (again,) = read(row(**GOOD), stored=stored, normalize=lambda own: own.model_copy(update=redacted)).reviews
    assert again == first.model_copy(update=moment)


@pytest.mark.heavy
@given(st.lists(st.fixed_dictionaries({name: st.text(max_size=8) for name in REVIEWER_COLUMNS}), max_size=6))
def test_parse_reviews_any_row_is_review_problem_or_unreviewed(cells: list[dict[str, str]]) -> None:
    rows = [row(f"i-{n}", **own) for n, own in enumerate(cells)]
    found = read(*rows)
    assert len(found.reviews) + found.n_unreviewed + len(found.problems) == len(rows)
    assert all("\n" not in problem for problem in found.problems)


def test_parse_reviews_holdout_review_is_taken_only_if_stored() -> None:
    uncounted = {"i-1": "the hold-out, whose reviews are those given before 2026-11-01 00:00 UTC"}
    found = read(row(**GOOD), row("i-2", **GOOD), excluded=uncounted)
    assert [review.interaction_id for review in found.reviews] == ["i-2"]
    (problem,) = found.problems
    assert "is of the hold-out" in problem and "would count nowhere" in problem
    (stored,) = read(row(**GOOD)).reviews
    assert read(row(**GOOD), stored=(stored,), excluded=uncounted).reviews == (stored,)
