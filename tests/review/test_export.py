import hashlib
import re
import unicodedata
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl import load_workbook

from abstain.core.contracts import Context, Review
from abstain.core.errors import AbstainError
from abstain.core.json_lines import to_json_lines
from abstain.data.labels.answer_labels import resolve_reviews, select_latest_reviews
from abstain.data.store.dataset import REVIEW_QUEUE_PREFIX, DataStore
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.report import IngestReport
from abstain.ingest.sources.files import make_explicit_sources
from abstain.review import workbook
from abstain.review.candidates import read_candidates
from abstain.review.export import collect_sample, describe_sample, make_review_file
from abstain.review.import_reviews import parse_reviews
from abstain.review.sampling import ReviewDesign, draw_sample
from abstain.review.workbook import COLUMNS, SAMPLED_COLUMNS, format_contexts, read_workbook, to_bytes
from tests.checkout import shipped_params
from tests.factories import CHUNK, PARAMS, accept_all, interaction, later, review, row, thumb, verdict
from tests.review.builders import SEAL_KEY, cells_of, fill, rows_of, write_file
from tests.review.test_candidates import take

FIRST = datetime(2026, 11, 10, 9, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [
        row(
            f"q-{n}",
            asked_at=later(n / 20).isoformat(),
            question=f"=Question {n}?",
            product=("cards", "loans")[n % 2],
            thumb=thumb(("up", "down")[n % 7 == 0], days=n / 20 + 1) if n % 3 else None,
        )
        for n in range(200)
    ]
    take(tmp_path / "data", *rows)
    return tmp_path / "data"


def export(data: Path, size: int, since: datetime | None = None) -> tuple[ReviewDesign, Path]:
    window = read_candidates(DataStore(data), since)
    design = draw_sample(window.frame, size, 1.0, seed=0)
    path = data.parent / f"reviews-{size}.xlsx"
    path.write_bytes(to_bytes(make_review_file(collect_sample(design, window, DataStore(data)), SEAL_KEY)))
    return design, path


def describe(data: Path, size: int, **options: float) -> tuple[str, ...]:
    window = read_candidates(DataStore(data))
    return tuple(describe_sample(draw_sample(window.frame, size, 1.0, 0, **options), window))


def fill_in(path: Path, reviewer: str = "Ann") -> None:
    """Every open row, as people do: some with dates, most without."""

    def review(number: int, cells: dict[str, str]) -> dict[str, object]:
        if cells["complete"]:
            return {}
        moment = "2026-11-09 17:30" if number % 5 == 0 else None
        words = {"complete": "yes", "correct": "no" if number % 4 == 0 else "Yes", "truthful": True}
        return words | {"reviewer": reviewer, "reviewed_at": moment}

    fill(path, review)


def bring(data: Path, path: Path, now: datetime) -> IngestReport:
    known: dict[str, list[Review]] = {}
    for stored in DataStore(data).iter_rows(Review):
        known.setdefault(stored.interaction_id, []).append(stored)
    found = parse_reviews(rows_of(path).values(), now, known)
    assert found.problems == ()
    lines = data.parent / f"{REVIEW_QUEUE_PREFIX}-{path.stem}.jsonl"
    lines.write_bytes(to_json_lines(found.reviews))
    return ingest(make_explicit_sources([str(lines)]), data, PARAMS, now, validate=accept_all)


def weights(data: Path) -> pd.Series:
    """The inclusion probability of the label of each reviewed answer, by interaction."""
    reviews = pd.DataFrame([review.model_dump() for review in DataStore(data).iter_rows(Review)])
    codes, names = pd.factorize(reviews["interaction_id"])
    params = shipped_params().labels
    labels = resolve_reviews(select_latest_reviews(reviews.assign(row=codes), params), params)
    return pd.Series(labels["inclusion_probability"].to_numpy(float), index=names)


@pytest.mark.parametrize(("share", "own"), [(0.0, [5, 50]), (0.4, [8, 80]), (0.6, [10, 100, 2])])
def test_describe_sample_counts_withheld_answers(data: Path, tmp_path: Path, share: float, own: list[int]) -> None:
    take(tmp_path / "some", *(row(f"q-{n}", display="withheld" if n < 10 else "shown") for n in range(40)))
    (line,) = (line for line in describe(tmp_path / "some", 20, withheld_share=share) if "withheld" in line)
    assert [int(number) for number in re.findall(r"\d+", line)] == [10, *own]
    assert "withheld" not in "".join(describe(data, 20, withheld_share=0.5)), "of answers that no gate has decided on"
    take(tmp_path / "all shown", *(row(f"q-{n}", display="shown") for n in range(40)))
    assert "(0%); 10 fewer" in "".join(describe(tmp_path / "all shown", 20, withheld_share=0.5))


@pytest.mark.heavy
def test_export_names_heading_and_page_of_sources(data: Path) -> None:
    own = {"chunk_id": "fees#1", "section_path": ("Gold", "Fees"), "page": 3}
    (data / "chunks.jsonl").write_text(CHUNK.model_copy(update=own).to_json_line() + "\n")
    take(data, row("q-cited", contexts=[{"chunk_id": "fees#1", "text": "t"}]), name="cited.jsonl")
    _, path = export(data, 999)
    (cells,) = (cells for cells in cells_of(path) if cells["interaction_id"] == "q-cited")
    assert cells["contexts"] == "[1] fees#1 (Gold › Fees, page 3)\nt"


@pytest.mark.heavy
def test_export_leaves_out_a_review_too_long_for_a_cell(data: Path) -> None:
    first, _ = export(data, 40)
    words = verdict(days=60, ideal_answer="\N{PILE OF POO}" * 20_000, inclusion_probability=0.2)
    take(data, *({"interaction_id": key, **words} for key in first.rows.index), name=f"{REVIEW_QUEUE_PREFIX}-x.jsonl")
    _, path = export(data, 100)
    assert not set(first.rows.index) & {cells["interaction_id"] for cells in cells_of(path)}
    assert len(cells_of(path)) == 60


@pytest.mark.heavy
def test_export_larger_sample_asks_for_the_rest_and_reweights(data: Path) -> None:
    first, path = export(data, 40)
    assert [cells["interaction_id"] for cells in cells_of(path)] == list(first.rows.index)
    fill_in(path)
    assert (bring(data, path, FIRST).accepted, weights(data).to_dict()) == (40, first.rows["probability"].to_dict())
    moments = {review.reviewed_at for review in DataStore(data).iter_rows(Review)}
    assert moments == {FIRST, datetime(2026, 11, 9, 17, 30, tzinfo=UTC)}
    assert any("60 at random; 40 sampled ones were reviewed before" in line for line in describe(data, 100))
    assert any("rows more than -n" in line for line in describe(data, 10))
    second, larger = export(data, 100)
    assert set(first.rows.index) < set(second.rows.index)
    rows = cells_of(larger)
    assert [bool(cells["complete"]) for cells in rows] == [False] * 60 + [True] * (len(rows) - 60)
    assert 0 < len(rows) - 60 <= 40
    fill_in(larger, "Bob")
    assert bring(data, larger, FIRST + DAY).accepted == len(rows)
    assert weights(data).to_dict() == second.rows["probability"].to_dict()
    assert (1 / weights(data)).sum() == pytest.approx(200)
    ann = [review for review in DataStore(data).iter_rows(Review) if review.reviewer == "Ann"]
    last = {review.interaction_id: review for review in sorted(ann, key=lambda one: one.reviewed_at)}
    verdicts = {key: (one.complete, one.correct, one.truthful) for key, one in last.items()}
    assert verdicts == {one.interaction_id: (one.complete, one.correct, one.truthful) for one in ann[:40]}
    assert bring(data, larger, FIRST + 2 * DAY).duplicate == len(rows)
    with pytest.raises(AbstainError, match="every row of this sample is reviewed already"):
        export(data, 100, later(0))


def test_describe_sample_counts_reviews_by_other_means(data: Path) -> None:
    reviews = ({"interaction_id": f"q-{n}", **verdict(days=60, inclusion_probability=0.5)} for n in range(20))
    take(data, *reviews, name="x.jsonl")
    assert any("20 reviews of this window were sampled by other means" in line for line in describe(data, 100))


CONTEXTS = (Context(chunk_id="cards-gold#1", text="Fees\n\nThe fee is 90 euros."), Context(chunk_id="x#2", text="-1"))
RUN_OR_CONVERTED = ["=1+1", '=HYPERLINK("http://x","y")', "+31 20", "-1", "@SUM(A1)", "00123", "1e5", "TRUE", "#N/A"]
ODD = ["\x00a\x1f", "a\r\nb\rc\td\x7f\ufffe\uffff", "_x000D_ _x005F_x0041_ _xD800_", " x ", "\N{PILE OF POO}" * 9]
RUNS = st.builds(
    str.__mul__, st.sampled_from(["'", "=", "\x00", "_x", "_x0041_", "\n", "[1] ", "\u00e9"]), st.integers(1, 2_000)
)
texts = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | RUNS | st.sampled_from([*RUN_OR_CONVERTED, *ODD])
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [interaction(f"i-{n}", contexts=CONTEXTS, product="cards") for n in range(3)]
    return write_file(tmp_path / "reviews.xlsx", *rows)


@pytest.mark.heavy
@settings(max_examples=40)  # of up to 42 texts
@given(st.lists(st.fixed_dictionaries(dict.fromkeys(COLUMNS, texts)), max_size=3))
def test_workbook_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, str]]) -> None:
    path = tmp_path_factory.mktemp("workbook") / "reviews.xlsx"
    path.write_bytes(to_bytes(workbook.make_workbook(rows, SEAL_KEY)))
    expected = [row for row in rows if any(row.values())]
    assert cells_of(path) == expected
    load_workbook(path).save(path)
    assert cells_of(path) == expected


@pytest.mark.parametrize("text", [*RUN_OR_CONVERTED, *ODD])
def test_workbook_odd_text_is_a_valid_text_cell(tmp_path: Path, text: str) -> None:
    asked = interaction(f"i{text}", question=f"{text}?", answer=text, contexts=[Context(chunk_id="c#1", text=text)])
    path = write_file(tmp_path / "reviews.xlsx", asked, cells=workbook.make_reviewer_cells(review(ideal_answer=text)))
    (row,) = read_workbook(path)
    assert (row.problem, row.cells["interaction_id"], row.cells["answer"]) == (None, asked.interaction_id, asked.answer)
    with ZipFile(path) as archive:
        sheet = archive.read("xl/worksheets/sheet1.xml").decode()
    filled = re.findall(r"<c ([^>]*)>(?!</c>)", sheet)
    assert len(filled) > len(COLUMNS) and all('t="inlineStr"' in one for one in filled), "no formula, number or error"


def test_workbook_long_cell_is_cut_and_its_row_stays_valid(tmp_path: Path) -> None:
    for text in ("x" * 100_000, "\N{PILE OF POO}" * 20_000, "\x00" * 10_000):
        path = write_file(tmp_path / "reviews.xlsx", interaction(answer=f"a{text}"))
        fill(path, lambda number, cells: {"complete": "yes"})
        (row,) = read_workbook(path)
        assert row.problem is None and row.cells["complete"] == "yes"
        assert row.cells["answer"].endswith(f" [... cut: {len(text) + 1:,} characters in all]")
        assert len(str(load_workbook(path)["reviews"]["C2"].value).encode("utf-16-le")) <= 2 * workbook.MAX_CELL
    write_file(tmp_path / "reviews.xlsx", interaction("\x00" * 1000))  # the longest id that there is
    with pytest.raises(AbstainError, match=r"'i{40}...' is longer than the 32,767 characters of a cell"):
        write_file(path, interaction(), cells={"ideal_answer": "i" * 40_000})


def test_workbook_protects_all_but_reviewer_cells(file: Path) -> None:
    sheet = load_workbook(file)["reviews"]
    assert sheet.protection.sheet and not sheet.protection.autoFilter
    for name, cell in zip(COLUMNS, sheet[2], strict=False):
        assert (cell.protection.locked, cell.number_format) == (name in SAMPLED_COLUMNS, "@")
        assert cell.alignment.wrap_text and sheet.column_dimensions[cell.column_letter].width >= 10
    (choice,) = sheet.data_validations.dataValidation
    assert (choice.type, choice.formula1, str(choice.sqref)) == ("list", '"yes,no"', "I2:K4")
    assert sheet.column_dimensions["O"].protection.locked is False
    assert load_workbook(file)["export"].sheet_state == "hidden"


@pytest.mark.heavy
@pytest.mark.parametrize("column", SAMPLED_COLUMNS)
def test_read_workbook_edited_locked_cell_rejects_its_row(file: Path, column: str) -> None:
    fill(file, lambda number, cells: {column: f"{cells[column]} x"} if number == 3 else {"complete": "yes"})
    rows = rows_of(file)
    assert rows[2].problem is None and rows[4].problem is None
    place = f"reviews!{'ABCDEFGH'[list(SAMPLED_COLUMNS).index(column)]}3: "
    assert rows[3].problem.startswith(place)


def test_read_workbook_takes_what_a_spreadsheet_writes(file: Path) -> None:
    values = {"complete": True, "correct": 1.0, "truthful": 0, "reviewed_at": datetime(2026, 11, 21, 14, 30)}
    fill(file, lambda number, cells: {"contexts": cells["contexts"].replace("\n", "_x000D_\n") + "  ", **values})
    fill(file, lambda number, cells: {"ideal_answer": "=A1"} if number == 4 else {})
    rows = rows_of(file)
    assert [rows[2].cells[name] for name in values] == ["True", "1", "0", "2026-11-21 14:30:00"]
    assert rows[2].problem is rows[3].problem is None
    assert rows[4].problem.startswith("reviews!L4: ideal_answer is a formula")


def test_read_workbook_rows_and_columns_may_be_moved(file: Path) -> None:
    old = load_workbook(file)["reviews"]
    book = load_workbook(file)
    sheet = book["reviews"]
    sheet.delete_rows(1, 9)
    header, first, second, _ = ([cell.value for cell in reversed(line)] for line in old["A1:N4"])
    sheet.append([None, "My notes", *(f" {name.upper()} " for name in header)])
    for line in (["mine", *second], [None] * 15, ["mine", *first], ["mine", *first]):
        sheet.append([None, *line])
    book.save(file)
    rows = rows_of(file)
    assert [(at, row.cells["interaction_id"]) for at, row in rows.items()] == [(2, "i-1"), (4, "i-0"), (5, "i-0")]
    assert {row.problem for row in rows.values()} == {None}
    assert rows[4].cell_addresses["complete"] == "H4"


def test_sampled_and_reviewer_cells_hold_the_row() -> None:
    asked = interaction("i-7", question="=What?", contexts=CONTEXTS, product="cards", line_of_business=None)
    contexts = "[1] cards-gold#1 (Gold › Fees, page 3)\nFees\n\nThe fee is 90 euros.\n\n[2] x#2\n-1"
    sampled = ("i-7", "=What?", "None.", contexts, "cards", "", "drift", "1 of 4")
    cells = workbook.make_sampled_cells(asked, {"cards-gold#1": "Gold › Fees, page 3"}, "drift", 1, 4)
    assert cells == dict(zip(SAMPLED_COLUMNS, sampled, strict=True))
    own = ("yes", "no", "yes", "90", "sme-1", "2026-09-03T12:00:00Z")
    filled = workbook.make_reviewer_cells(review("i-7", right=False, ideal_answer="90"))
    assert filled == dict(zip(workbook.REVIEWER_COLUMNS, own, strict=True))
    assert workbook.make_reviewer_cells(None) == dict.fromkeys(workbook.REVIEWER_COLUMNS, "")
    tricky = (Context(chunk_id="a#1", text="see\n[3] there\n\\[1] and here"), Context(chunk_id="b c#2", text="z"))
    assert format_contexts(tricky, {}) == "[1] a#1\nsee\n\\[3] there\n\\\\[1] and here\n\n[2] b c#2\nz"


DISGUISED = [
    "[2]\u00a0policy#99",
    "[2]\tpolicy#99",
    "[\u200b2] policy#99",
    "\uff3b2\uff3d policy#99",
    "[\uff12] policy#99",
]
LINES = st.builds(
    str.__add__,
    st.sampled_from(["", " ", "\t", "\\", "\\\\", "\u200b", "\u3000", "\ufeff \u00ad"]),
    st.sampled_from(["[1] a#1", "[2] policy#99", "[3] x", "[12] y", "[a] z", "text", "[2]", "", *DISGUISED])
    | st.text(max_size=5),
)
BREAKS = ["\n", "\n\n", "\r", "\u2028", "\x0b", "\x85"]


@given(st.lists(st.tuples(st.sampled_from(["a#1", "b c#2"]), st.lists(LINES, min_size=1), st.sampled_from(BREAKS))))
def test_format_contexts_no_text_forges_another_chunk(parts: list[tuple[str, list[str], str]]) -> None:
    texts = [(name, f"x{line_break.join(lines)}x{line_break}{lines[0]}y") for name, lines, line_break in parts]
    written = format_contexts([Context(chunk_id=name, text=text) for name, text in texts], {})
    seen = re.sub("[\u00ad\u200b\ufeff]", "", unicodedata.normalize("NFKC", written))
    shown = [line for line in seen.splitlines() if re.match(r"\s*\[\d+\]", line)]
    assert len(shown) == len(texts), "what a reviewer sees in a spreadsheet"


def test_check_seals_refuses_forged_rows_and_other_homes(file: Path) -> None:
    def forge(change: str) -> list[workbook.ReviewRow]:
        book = load_workbook(file)
        book["reviews"]["H3"].value = change
        book["export"]["H3"].value = hashlib.sha256(change.encode()).hexdigest()[:16]  # anybody can compute it
        book.save(file)
        return read_workbook(file)

    assert [row.problem for row in workbook.check_seals(forge("3 of 17"), SEAL_KEY)] == [None, None, None]
    rows = forge("1 of 999999999")
    assert [row.problem for row in rows] == [None, None, None]
    refused = [row.problem for row in workbook.check_seals(rows, SEAL_KEY)]
    assert refused[::2] == [None, None] and refused[1].startswith("reviews!H3: inclusion_probability")
    with pytest.raises(AbstainError, match="ABSTAIN_USER_KEY"):
        workbook.check_seals(rows, b"of another home")
    assert workbook.check_seals([], SEAL_KEY) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda book: book["reviews"].delete_cols(9), "'complete' of the sheet 'reviews'"),
        (lambda book: book["export"].delete_rows(1, 9), "'interaction_id' of the sheet 'export'"),
        (lambda book: book.remove(book["export"]), "the sheet 'export' is missing"),
        (b"", "is no .xlsx workbook"),
        (b"interaction_id,question\ni-1,What?\n", "is no .xlsx workbook"),
        (None, "cannot be read"),
    ],
)
def test_read_workbook_of_another_file_is_one_line(file: Path, change: Any, message: str) -> None:
    if change is None:
        file.unlink()
    elif isinstance(change, bytes):
        file.write_bytes(change)
    else:
        book = load_workbook(file)
        change(book)
        book.save(file)
    with pytest.raises(AbstainError) as error:
        read_workbook(file)
    assert str(error.value).startswith(f"{file}: ") and message in str(error.value)
