from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.contracts import Review
from abstain.review.sheet import COLUMNS, Sheet, new_row
from abstain.review.verdicts import Verdicts, read_verdicts
from tests.data.builders import interaction

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
GOOD = {"complete": "yes", "correct": "x", "truthful": "0", "reviewer": "Ann", "ideal_answer": " 90 euros "}


def row(key: str = "i-1", **own: str) -> dict[str, str]:
    return {**new_row(interaction(key), "random", 1, 4), **own}


def read(*rows: dict[str, str], known: tuple[Review, ...] = (), **options: str) -> Verdicts:
    sheet = Sheet(COLUMNS, dict(enumerate(rows, start=2)))
    by_id: dict[str, list[Review]] = {}
    for one in known:
        by_id.setdefault(one.interaction_id, []).append(one)
    return read_verdicts(sheet, NOW, by_id, **options)


def problem(**own: str) -> str:
    found = read(row(**GOOD), row("i-2", **{**GOOD, **own}))
    assert len(found.reviews) == 1 and found.blank == 0, "no row refuses another"
    (only,) = found.problems
    assert only.row == 3
    return str(only)


def test_a_whole_verdict() -> None:
    assert read(row(**GOOD)).reviews == (
        Review(
            interaction_id="i-1",
            reviewed_at=NOW,
            reviewer="Ann",
            complete=True,
            correct=True,
            truthful=False,
            ideal_answer="90 euros",
            inclusion_probability=0.25,
        ),
    )


def test_what_is_not_reviewed_is_counted_whoever_stands_beside_it() -> None:
    found = read(row(), row("i-2", reviewer="Ann"), row("i-3", complete=" "), row("i-4", **GOOD))
    assert (len(found.reviews), found.blank, found.problems) == (1, 3, ())


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"truthful": ""}, "row 3: truthful is empty: write yes or no in complete, correct, truthful, or empty all of"),
        ({"correct": "maybe"}, "row 3: correct: 'maybe' is neither yes nor no: write yes or no"),
        (
            {"reviewer": " "},
            "row 3: reviewer is empty: write who reviewed it, or name them all at once with --reviewer",
        ),
        ({"reviewed_at": "21.11.2026"}, "row 3: reviewed_at: '21.11.2026' is no moment like 2026-11-21T14:30:00Z"),
        ({"reviewed_at": "2026-02-30T10:00:00Z"}, "row 3: reviewed_at: "),
        ({"question": "What else?"}, "row 3: its id, question, answer or probability was changed: copy its verdict"),
        ({"interaction_id": "i-9"}, "row 3: its id, question, answer or probability was changed"),
        ({"inclusion_probability": "1 of 1"}, "row 3: its id, question, answer or probability was changed"),
        ({"digest": ""}, "row 3: its id, question, answer or probability was changed"),
    ],
)
def test_what_is_wrong_and_the_remedy(own: dict[str, str], says: str) -> None:
    assert problem(**own).startswith(says)


def test_an_ideal_answer_alone_is_half_a_verdict() -> None:
    found = read(row(ideal_answer="90 euros"))
    assert found.problems[0].says.startswith("complete is empty")


def test_one_reviewer_judges_an_answer_once_and_two_may_both() -> None:
    found = read(row(**GOOD), row(**{**GOOD, "complete": "no"}), row(**{**GOOD, "reviewer": "Bob"}))
    assert [one.reviewer for one in found.reviews] == ["Ann", "Bob"]
    assert found.reviews[0].complete
    assert str(found.problems[0]) == "row 3: Ann has reviewed this answer in a row above: delete one of the two"


def test_a_reviewer_for_all_rows_that_name_nobody() -> None:
    found = read(row(**{**GOOD, "reviewer": ""}), row("i-2", **GOOD), reviewer="Cleo")
    assert [one.reviewer for one in found.reviews] == ["Cleo", "Ann"]


def test_a_moment_in_the_file_counts() -> None:
    found = read(row(**GOOD, reviewed_at="'2026-11-20T08:00:00+01:00"))
    assert found.reviews[0].reviewed_at == datetime(2026, 11, 20, 7, tzinfo=UTC)


def test_the_same_verdict_again_keeps_its_moment_and_another_one_gets_a_new_one() -> None:
    (first,) = read(row(**GOOD)).reviews
    earlier = first.model_copy(update={"reviewed_at": datetime(2026, 11, 1, tzinfo=UTC)})
    assert read(row(**GOOD), known=(earlier,)).reviews == (earlier,)
    for own in ({"complete": "no"}, {"reviewer": "Bob"}, {"ideal_answer": ""}):
        (other,) = read(row(**{**GOOD, **own}), known=(earlier,)).reviews
        assert other.reviewed_at == NOW


def test_a_verdict_that_contradicts_one_of_the_same_moment_is_named_here_and_not_refused_by_ingest() -> None:
    """As of two exports that were made of the same data, and both imported: each moves the weights of what is known."""
    dated = {**GOOD, "reviewed_at": "2026-11-20T08:00:00Z"}
    (first,) = read(row(**dated)).reviews
    assert read(row(**dated), known=(first,)).reviews == (first,)
    other = first.model_copy(update={"inclusion_probability": 0.5})
    found = read(row(**dated), row("i-2", **dated), known=(other,))
    assert [one.interaction_id for one in found.reviews] == ["i-2"]
    assert str(found.problems[0]).startswith("row 2: data/ has another verdict of this reviewer from the same moment")
    someone = other.model_copy(update={"reviewer": "Bob"})
    assert len(read(row(**dated), known=(someone,)).reviews) == 1


def test_it_is_known_as_ingest_stored_it() -> None:
    """Redacted, and under the reviewer's pseudonym; what is handed to ingest is what the file says."""

    def as_stored(review: Review) -> Review:
        return review.model_copy(update={"reviewer": "r-1", "ideal_answer": "<AMOUNT>"})

    (first,) = read(row(**GOOD)).reviews
    stored = as_stored(first).model_copy(update={"reviewed_at": datetime(2026, 11, 1, tzinfo=UTC)})
    sheet = Sheet(COLUMNS, {2: row(**GOOD)})
    (again,) = read_verdicts(sheet, NOW, {"i-1": [stored]}, as_stored=as_stored).reviews
    assert again == first.model_copy(update={"reviewed_at": stored.reviewed_at})


@given(st.lists(st.fixed_dictionaries({name: st.text(max_size=8) for name in COLUMNS[8:14]}), max_size=6))
def test_every_row_is_one_of_three(cells: list[dict[str, str]]) -> None:
    rows = [row(f"i-{n}", **own) for n, own in enumerate(cells)]
    found = read(*rows)
    assert len(found.reviews) + found.blank + len(found.problems) == len(rows)
    assert all("\n" not in str(one) for one in found.problems)
