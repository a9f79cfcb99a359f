from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from abstain.core.contracts import Context
from abstain.core.errors import AbstainError
from abstain.review.review_file import Desk, Stale, Verdict, open_desk
from abstain.review.sheet import COLUMNS, Sheet, new_row, read_sheet
from abstain.review.verdicts import read_verdicts
from tests.data.builders import interaction, review

NOW = datetime(2026, 11, 21, 12, 30, 15, 999, tzinfo=UTC)
CONTEXTS = (Context(chunk_id="fees#1", text="The fee is 90 euros."),)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [
        new_row(interaction(f"i-{n}", contexts=CONTEXTS, product="cards", line_of_business="retail"), "random", 3, 17)
        for n in range(3)
    ]
    path = tmp_path / "reviews.csv"
    path.write_bytes(Sheet(COLUMNS, dict(enumerate(rows, start=2)), ";").to_bytes())
    return path


def says(row: dict[str, Any], **changes: Any) -> Verdict:
    given = {"complete": True, "correct": True, "truthful": False, "ideal_answer": "", "reviewer": "Ann"}
    return Verdict(**{"row": row["row"], "version": row["version"], **given, **changes})


def test_a_verdict_is_in_the_file_at_once_and_can_be_imported(file: Path) -> None:
    desk = Desk(file)
    row = desk.rows()[1]
    assert (row["done"], row["begun"], row["complete"]) == (False, False, None)
    after = desk.save(says(row, ideal_answer=" =90 euros\n"), NOW)
    assert (after["done"], after["complete"], after["truthful"], after["ideal_answer"]) == (
        True,
        True,
        False,
        "=90 euros",
    )
    assert desk.rows() == [desk.rows()[0], after, desk.rows()[2]]
    assert desk.reviewed() == (1, 3)
    sheet = read_sheet(file)
    assert sheet.delimiter == ";" and sheet.rows[3]["ideal_answer"] == "'=90 euros"
    found = read_verdicts(sheet, NOW, {})
    (given,) = found.reviews
    assert (found.blank, given.interaction_id, given.reviewer, given.ideal_answer) == (2, "i-1", "Ann", "=90 euros")
    assert given.reviewed_at == NOW.replace(microsecond=0) and given.inclusion_probability == 3 / 17
    assert (given.complete, given.correct, given.truthful) == (True, True, False)


def test_what_a_reviewer_sees_of_a_row(file: Path) -> None:
    row = Desk(file).rows()[0]
    assert row["contexts"] == [{"chunk_id": "fees#1", "text": "The fee is 90 euros."}]
    assert (row["question"], row["about"], row["row"], row["is_as_drawn"]) == (
        "What is the fee?",
        "cards · retail",
        2,
        True,
    )
    assert not {"why", "inclusion_probability"} & set(row)


def test_an_unfinished_verdict_is_kept_and_a_withdrawn_one_leaves_nothing(file: Path) -> None:
    desk = Desk(file)
    half = desk.save(says(desk.rows()[0], complete=None), NOW)
    assert (half["done"], half["begun"], half["reviewer"]) == (False, True, "Ann")
    assert read_sheet(file).rows[2]["reviewed_at"] == ""
    assert str(read_verdicts(read_sheet(file), NOW, {}).problems[0]).startswith("row 2: complete is empty")
    before = file.read_bytes()
    none = desk.save(says(half, complete=None, correct=None, truthful=None))
    assert not none["begun"] and none["reviewer"] == ""
    assert file.read_bytes() != before and read_verdicts(read_sheet(file), NOW, {}).blank == 3


def test_a_verdict_on_what_is_not_there_any_more_is_refused_with_what_is(file: Path) -> None:
    one, other = Desk(file), Desk(file)
    seen = one.rows()[0]
    first = one.save(says(seen))
    before = file.read_bytes()
    with pytest.raises(Stale) as stale:
        other.save(says(seen, complete=False))
    assert stale.value.now == first and file.read_bytes() == before
    other.save(says(first, complete=False))
    assert read_sheet(file).rows[2]["complete"] == "no"
    file.write_bytes(Sheet(COLUMNS, {2: read_sheet(file).rows[3]}).to_bytes())  # sorted and cut in a spreadsheet
    for row in (first, one.rows()[0] | {"row": 4}):
        with pytest.raises(Stale):
            one.save(says(row))


def test_many_at_once_lose_nothing(tmp_path: Path) -> None:
    """Threads of two desks, as two tabs and two programs are; each row is judged by one of them."""
    path = tmp_path / "reviews.csv"
    rows = {n: new_row(interaction(f"i-{n}"), "random", 1, 2) for n in range(2, 26)}
    path.write_bytes(Sheet(COLUMNS, rows).to_bytes())
    desks = Desk(path), Desk(path)
    shown = desks[0].rows()

    def work(part: int) -> None:
        for row in shown[part::4]:
            desks[part % 2].save(says(row, reviewer=f"sme {part}"))

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert desks[0].reviewed() == (24, 24)
    assert sorted(path.parent.iterdir()) == [path], "no lock, no temporary file stays"


@pytest.mark.slow
def test_a_verdict_that_was_taken_survives_a_kill(file: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from abstain.review.review_file import *\n"
        "desk = Desk(Path(sys.argv[1]))\n"
        "for row in desk.rows():\n"
        "    desk.save(Verdict(row=row['row'], version=row['version'], complete=True, correct=True, truthful=True,\n"
        "                      ideal_answer='', reviewer='Ann')); print(row['row'], flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(file)], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "2\n"
        running.kill()
    assert read_sheet(file).rows[2]["complete"] == "yes"
    assert len(read_sheet(file).rows) == 3


def test_columns_and_blank_rows_of_the_reviewers_own_stay(file: Path) -> None:
    sheet = read_sheet(file)
    rows = {number + 2 * (number > 2): {**row, "notes": f"mine {number}"} for number, row in sheet.rows.items()}
    file.write_bytes(Sheet((*COLUMNS, "notes"), rows, ",").to_bytes())
    desk = Desk(file)
    desk.save(says(desk.rows()[1]))
    after = read_sheet(file)
    assert {number: row["notes"] for number, row in after.rows.items()} == {2: "mine 2", 5: "mine 3", 6: "mine 4"}
    assert after.rows[5]["complete"] == "yes"


def test_words_that_are_none_are_shown_as_open_and_a_changed_row_is_told(file: Path) -> None:
    sheet = read_sheet(file)
    rows = {**sheet.rows, 2: {**sheet.rows[2], "complete": "maybe", "answer": "Something else."}}
    file.write_bytes(Sheet(COLUMNS, rows, ";").to_bytes())
    row = Desk(file).rows()[0]
    assert (row["complete"], row["is_as_drawn"]) == (None, False)


def test_a_review_that_stands_in_the_file_again_may_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    row = new_row(interaction(), "random", 1, 2, review(right=False))
    path.write_bytes(Sheet(COLUMNS, {2: row}).to_bytes())
    desk = Desk(path)
    assert desk.rows()[0]["done"]
    desk.save(says(desk.rows()[0], truthful=True, reviewer="Bob"), NOW)
    (found,) = read_verdicts(read_sheet(path), NOW, {}).reviews
    assert (found.reviewer, found.correct, found.reviewed_at) == ("Bob", True, NOW.replace(microsecond=0))


def test_what_no_desk_can_be_made_of(tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_bytes(Sheet(COLUMNS, {}).to_bytes())
    with pytest.raises(AbstainError, match="no row to review"):
        open_desk(empty)
    with pytest.raises(AbstainError, match="cannot be read"):
        open_desk(tmp_path / "nowhere.csv")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_cannot_be_written(file: Path) -> None:
    file.parent.chmod(0o500)
    try:
        with pytest.raises(AbstainError, match="could not be written into it: copy it"):
            open_desk(file)
    finally:
        file.parent.chmod(0o700)
