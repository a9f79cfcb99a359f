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
from abstain.review.review_file import ReviewEntry, ReviewFile, Stale, open_review_file
from abstain.review.verdicts import Verdicts, read_verdicts
from abstain.review.workbook import REVIEWER_COLUMNS, reviewer_cells
from tests.data.builders import interaction, review
from tests.review.builders import cells_of, fill, rows_of, write_file

NOW = datetime(2026, 11, 21, 12, 30, 15, 999, tzinfo=UTC)
CONTEXTS = (Context(chunk_id="fees#1", text="The fee is 90 euros."),)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [interaction(f"i-{n}", contexts=CONTEXTS, product="cards", line_of_business="retail") for n in range(3)]
    return write_file(tmp_path / "reviews.xlsx", *rows)


def says(row: dict[str, Any], **changes: Any) -> ReviewEntry:
    given = {"complete": True, "correct": True, "truthful": False, "ideal_answer": "", "reviewer": "Ann"}
    return ReviewEntry(**{"row": row["row"], "version": row["version"], **given, **changes})


def imported(file: Path) -> Verdicts:
    return read_verdicts(rows_of(file).values(), NOW, {})


def test_verdict_is_in_the_file_at_once_and_is_imported(file: Path) -> None:
    review_file = ReviewFile(file)
    row = review_file.rows()[1]
    assert (row["done"], row["complete"]) == (False, None)
    after = review_file.save(says(row, ideal_answer=" =90 euros\n"), NOW)
    assert {name: after[name] for name in ("done", "complete", "truthful", "ideal_answer")} == {
        "done": True,
        "complete": True,
        "truthful": False,
        "ideal_answer": "=90 euros",
    }
    assert review_file.rows() == [review_file.rows()[0], after, review_file.rows()[2]]
    assert review_file.progress() == (1, 3)
    found = imported(file)
    (given,) = found.reviews
    assert (found.blank, given.interaction_id, given.reviewer, given.ideal_answer) == (2, "i-1", "Ann", "=90 euros")
    assert given.reviewed_at == NOW.replace(microsecond=0) and given.inclusion_probability == 3 / 17
    assert (given.complete, given.correct, given.truthful) == (True, True, False)


def test_row_shows_the_answer_but_not_how_it_was_drawn(file: Path) -> None:
    row = ReviewFile(file).rows()[0]
    assert row["contexts"] == [{"chunk_id": "fees#1", "text": "The fee is 90 euros."}]
    assert (row["question"], row["about"], row["row"]) == ("What is the fee?", "cards · retail", 2)
    assert not {"why", "inclusion_probability"} & set(row)


def test_row_with_an_edit_or_an_odd_word_is_shown_so(file: Path) -> None:
    fill(file, lambda number, cells: {"complete": "maybe", "answer": "Something else."} if number == 2 else {})
    edited, other, _ = ReviewFile(file).rows()
    assert edited["complete"] is None and edited["refused"].startswith("reviews!C2: answer was changed")
    assert other["refused"] is None


def test_unfinished_verdict_is_kept_a_withdrawn_one_is_not(file: Path) -> None:
    review_file = ReviewFile(file)
    half = review_file.save(says(review_file.rows()[0], complete=None), NOW)
    (cells, *_) = cells_of(file)
    assert (half["done"], cells["reviewer"], cells["reviewed_at"]) == (False, "Ann", "")
    assert imported(file).problems[0].startswith("reviews!I2: complete is empty")
    review_file.save(says(half, complete=None, correct=None, truthful=None))
    assert set(map(cells_of(file)[0].get, REVIEWER_COLUMNS)) == {""} and imported(file).blank == 3


def test_verdict_on_a_changed_row_is_refused_with_the_row(file: Path) -> None:
    one, other = ReviewFile(file), ReviewFile(file)
    seen = one.rows()[0]
    first = one.save(says(seen))
    before = file.read_bytes()
    with pytest.raises(Stale) as stale:
        other.save(says(seen, complete=False))
    assert stale.value.now == first and file.read_bytes() == before
    other.save(says(first, complete=False))
    assert cells_of(file)[0]["complete"] == "no"
    write_file(file, interaction("i-2"))  # sorted and cut in a spreadsheet
    for row in (first, one.rows()[0] | {"row": 4}):
        with pytest.raises(Stale):
            one.save(says(row))


@pytest.mark.heavy
def test_verdicts_of_many_threads_are_all_kept(tmp_path: Path) -> None:
    """Threads of two review files, as two tabs and two programs are; each row is judged by one of them."""
    path = write_file(tmp_path / "reviews.xlsx", *(interaction(f"i-{n}") for n in range(24)))
    files = ReviewFile(path), ReviewFile(path)
    shown = files[0].rows()

    def work(part: int) -> None:
        for row in shown[part::4]:
            files[part % 2].save(says(row, reviewer=f"reviewer {part}"))

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert files[0].progress() == (24, 24)
    assert {one.name for one in path.parent.iterdir()} == {path.name, f".{path.name}.lock"}, "no temporary file stays"


@pytest.mark.slow
def test_saved_verdict_survives_a_kill(file: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from abstain.review.review_file import *\n"
        "review_file = ReviewFile(Path(sys.argv[1]))\n"
        "for row in review_file.rows():\n"
        "    review_file.save(ReviewEntry(row=row['row'], version=row['version'], complete=True, correct=True,\n"
        "                             truthful=True, ideal_answer='', reviewer='Ann')); print(row['row'], flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(file)], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "2\n"
        running.kill()
    rows = rows_of(file)
    assert rows[2].cells["complete"] == "yes" and len(rows) == 3
    ReviewFile(file).save(says(ReviewFile(file).rows()[2]))  # no lock is left behind


def test_review_that_stands_in_the_file_may_be_changed(tmp_path: Path) -> None:
    path = write_file(tmp_path / "reviews.xlsx", interaction(), cells=reviewer_cells(review(right=False)))
    review_file = ReviewFile(path)
    assert review_file.rows()[0]["done"]
    review_file.save(says(review_file.rows()[0], truthful=True, reviewer="Bob"), NOW)
    (found,) = imported(path).reviews
    assert (found.reviewer, found.correct, found.reviewed_at) == ("Bob", True, NOW.replace(microsecond=0))


def test_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match="no row to review"):
        open_review_file(write_file(tmp_path / "empty.xlsx"))
    with pytest.raises(AbstainError, match="cannot be read"):
        open_review_file(tmp_path / "nowhere.xlsx")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_file_that_cannot_be_written_is_refused(file: Path) -> None:
    file.parent.chmod(0o500)
    try:
        with pytest.raises(AbstainError, match="could not be written into it: copy it"):
            open_review_file(file)
    finally:
        file.parent.chmod(0o700)
