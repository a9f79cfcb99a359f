from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.contracts import Context
from abstain.core.errors import AbstainError
from abstain.ingest.sources.lines import LIMIT
from abstain.review.cells import unguard
from abstain.review.sheet import (
    BOM,
    COLUMNS,
    DIGEST,
    OWN,
    PROBABILITY,
    Sheet,
    digest,
    new_row,
    probability,
    read_sheet,
    split_contexts,
    write_contexts,
)
from tests.data.builders import interaction, review

CONTEXTS = (Context(chunk_id="cards-gold#1", text="Fees\n\nThe fee is 90 euros."), Context(chunk_id="x#2", text="-1"))
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: bool(text.strip()))


def sheet(*rows: dict[str, str], delimiter: str = ",") -> Sheet:
    return Sheet(COLUMNS, dict(enumerate(rows, start=2)), delimiter)


def written(tmp_path: Path, content: bytes) -> Path:
    file = tmp_path / "reviews.csv"
    file.write_bytes(content)
    return file


@given(texts, texts, st.lists(st.tuples(st.from_regex(r"\S{1,20}", fullmatch=True), texts), max_size=3))
def test_a_row_comes_back_from_the_file_and_is_as_drawn(
    tmp_path_factory: pytest.TempPathFactory, question: str, answer: str, chunks: list[tuple[str, str]]
) -> None:
    contexts = tuple(Context(chunk_id=name, text=text) for name, text in chunks)
    row = new_row(interaction(question=question, answer=answer, contexts=contexts), "random", 25, 1340)
    back = read_sheet(written(tmp_path_factory.mktemp("sheet"), sheet(row).to_bytes()))
    assert back == sheet(row)
    assert digest(back.rows[2]) == back.rows[2][DIGEST]
    assert all(back.rows[2][name] == "" for name in OWN)


def test_long_contexts_come_back_whatever_was_read_before(tmp_path: Path) -> None:
    row = new_row(
        interaction(contexts=[Context(chunk_id=f"x#{n}", text="long " * 4000) for n in range(10)]), "random", 1, 1
    )
    csv.field_size_limit(131_072)  # as in a process that has read nothing yet
    assert read_sheet(written(tmp_path, sheet(row).to_bytes())) == sheet(row)


def test_what_stands_in_a_row() -> None:
    asked = interaction("i-7", question="=What?", contexts=CONTEXTS, product="cards", line_of_business=None)
    row = new_row(asked, "drift", 1, 1, review("i-7", right=False, ideal_answer="90"))
    assert row == {
        "interaction_id": "i-7",
        "question": "'=What?",
        "answer": "None.",
        "contexts": "[1] cards-gold#1\nFees\n\nThe fee is 90 euros.\n\n[2] x#2\n-1",
        "product": "cards",
        "line_of_business": "",
        "why": "drift",
        "inclusion_probability": "1 of 1",
        "complete": "yes",
        "correct": "no",
        "truthful": "yes",
        "ideal_answer": "'90",
        "reviewer": "'sme-1",
        "reviewed_at": "'2026-09-03T12:00:00Z",
        "digest": digest(row),
    }
    assert tuple(row) == COLUMNS


def test_the_file_is_what_spreadsheets_know() -> None:
    content = sheet(new_row(interaction(question="Wieviel kostet das für Müller?"), "random", 1, 3)).to_bytes()
    assert content.startswith(BOM.encode()) and content.count(b"\r\n") == 2
    assert b"M\xc3\xbcller" in content
    assert not any(sign.isdigit() for sign in digest({}))  # of digits, a spreadsheet makes a number


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_whatever_a_spreadsheet_saved_it_as(tmp_path: Path, delimiter: str, encoding: str) -> None:
    row = new_row(interaction(question="Für wen; und, wozu?\nJetzt"), "random", 1, 3)
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    columns = ["my notes", *reversed(COLUMNS)]
    writer.writerow([columns[0], *(f" {name.upper()} " for name in columns[1:])])
    writer.writerow(["mine", *(row[name].replace("\n", "\r\n") for name in reversed(COLUMNS))])
    back = read_sheet(written(tmp_path, out.getvalue().encode(encoding)))
    assert (back.delimiter, back.columns) == (delimiter, tuple(columns))
    assert back.rows[2]["my notes"] == "mine"
    assert digest(back.rows[2]) == row[DIGEST]
    again = read_sheet(written(tmp_path, back.to_bytes()))
    assert again == back, "columns of the reviewer's own, and the delimiter, stay"


def test_rows_have_the_numbers_that_a_spreadsheet_shows(tmp_path: Path) -> None:
    one, two = (new_row(interaction(key, question="A\nB"), "random", 1, 3) for key in ("i-1", "i-2"))
    lines = sheet(one).to_bytes().decode() + "\r\n,,,\r\n" + sheet(two).to_bytes().decode().split("\r\n", 1)[1]
    back = read_sheet(written(tmp_path, lines.encode()))
    assert {number: row["interaction_id"] for number, row in back.rows.items()} == {2: "i-1", 5: "i-2"}
    again = read_sheet(written(tmp_path, back.to_bytes()))
    assert {number: row["interaction_id"] for number, row in again.rows.items()} == {2: "i-1", 5: "i-2"}


def test_rows_stay_as_drawn_however_they_are_moved_and_do_not_when_they_are_changed() -> None:
    row = new_row(interaction(contexts=CONTEXTS), "random", 25, 1340)
    assert digest({**row, "complete": "yes", "reviewer": "me", "mine": "?"}) == row[DIGEST]
    assert digest({**row, "contexts": row["contexts"].replace("\n", "\r\n") + "  "}) == row[DIGEST]
    for name in COLUMNS[: COLUMNS.index("complete")]:
        assert digest({**row, name: row[name] + "x"}) != row[DIGEST]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the column 'interaction_id' is missing"),
        (b"a,b\n1,2\n", "the column 'interaction_id' is missing"),
        (",".join(name for name in COLUMNS if name != "digest").encode(), "the column 'digest' is missing"),
        (b"PK\x03\x04rest", "is a workbook: save it as CSV"),
        ((",".join(COLUMNS) + '\n"' + "x" * LIMIT + "x").encode(), "no readable CSV"),
        (b'"' + b"x" * LIMIT + b"x", "no readable CSV"),
    ],
    ids=["empty", "others", "no digest", "workbook", "endless cell", "endless name"],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(AbstainError, match=says) as error:
        read_sheet(written(tmp_path, content))
    assert "reviews.csv" in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match="nowhere.csv: cannot be read"):
        read_sheet(tmp_path / "nowhere.csv")


def test_short_and_long_rows(tmp_path: Path) -> None:
    """A spreadsheet may leave trailing empty cells out; cells behind the last column come of a stray delimiter."""
    row = new_row(interaction(), "random", 1, 2)
    header, line = sheet(row).to_bytes().decode().split("\r\n")[:2]
    short = ",".join(line.split(",")[:5])
    back = read_sheet(written(tmp_path, f"{header}\n{short}\n{line},extra\n".encode()))
    assert back.rows[2].get("why", "") == "" and digest(back.rows[2]) != row[DIGEST]
    assert back.rows[3][DIGEST] == f"{row[DIGEST]} extra"


def test_probabilities() -> None:
    assert probability("25 of 1340") == 25 / 1340
    assert probability(" '1 of 1 ") == 1
    for cell in ("", "0.5", "0 of 3", "4 of 3", "1 of", "-1 of 2"):
        with pytest.raises(ValueError, match="no probability like 25 of 1340"):
            probability(cell)
    assert unguard(new_row(interaction(), "random", 3, 17)[PROBABILITY]) == "3 of 17"


def test_contexts_in_rank_order() -> None:
    assert split_contexts(write_contexts(CONTEXTS)) == [(c.chunk_id, c.text) for c in CONTEXTS]
    assert split_contexts("") == []
    tricky = (Context(chunk_id="a#1", text="see\n[3] there\n[1] and here"), Context(chunk_id="b c#2", text="z"))
    assert split_contexts(write_contexts(tricky)) == [("a#1", tricky[0].text), ("b c#2", "z")]
