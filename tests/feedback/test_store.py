import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.errors import AbstainError
from abstain.feedback.store import (
    Dataset,
    QuarantinedRow,
    file_name_problem,
    read_dataset,
    read_quarantine,
    require_interactions,
    row_key,
    write_dataset,
    write_quarantine,
)
from abstain.files import write_atomically
from abstain.knowledge.markdown import chunk_document, parse_document

from .builders import bytes_of, feedback, interaction, later, markdown, review


def full() -> Dataset:
    document = parse_document(markdown(), "fees.md")
    return Dataset(
        documents=(document,),
        sources={"fees": markdown()},
        chunks=tuple(chunk_document(document)),
        interactions=(interaction("b"), interaction("a", answer="two\u2028lines, naïve")),
        feedback=(feedback("b", comment="so-so"),),
        reviews=(review("a", inclusion_probability=0.25),),
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", full())
    assert read_dataset(tmp_path / "data") == full()


def test_the_documented_files_are_there_in_order_of_arrival(tmp_path: Path) -> None:
    write_dataset(tmp_path, full())
    files = bytes_of(tmp_path)
    assert set(files) == {
        "chunks.jsonl",
        "documents/fees.md",
        "feedback.jsonl",
        "interactions.jsonl",
        "reviews.jsonl",
    }
    assert files["documents/fees.md"] == markdown().encode()
    assert files["interactions.jsonl"].decode() == "".join(f"{row.canonical()}\n" for row in full().interactions)


def test_a_missing_folder_is_an_empty_dataset(tmp_path: Path) -> None:
    assert read_dataset(tmp_path / "nowhere") == Dataset()
    assert not (tmp_path / "nowhere").exists()


def test_stages_are_told_what_to_do_about_empty_data() -> None:
    with pytest.raises(AbstainError, match=r"^no interactions in data/: run `abstain ingest FILE...` first$"):
        require_interactions(Dataset())
    assert require_interactions(full()) == full()


def test_newest_is_the_latest_moment_of_any_row() -> None:
    assert full().newest() == later(2)
    with pytest.raises(AbstainError, match="no rows in data/"):
        Dataset().newest()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"interaction_id": "i-1"', r"feedback.jsonl line 2: row: Invalid JSON"),
        ('{"interaction_id": "i-1", "given_at": "2026-01-01T00:00:00Z", "thumb": "sideways"}', "line 2: thumb: "),
        ("[]", "line 2: row: "),
    ],
)
def test_a_broken_stored_row_is_named_by_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "feedback.jsonl").write_text(f"{feedback().canonical()}\n{line}\n", encoding="utf-8")
    with pytest.raises(AbstainError, match=message):
        read_dataset(tmp_path)


def test_stored_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "reviews.jsonl").write_bytes(b'{"interaction_id": "\xff"}\n')
    with pytest.raises(AbstainError, match=r"reviews.jsonl line 1: not valid UTF-8 \(byte 21\)"):
        read_dataset(tmp_path)


def test_a_renamed_document_is_named(tmp_path: Path) -> None:
    write_dataset(tmp_path, full())
    (tmp_path / "documents" / "fees.md").rename(tmp_path / "documents" / "tariff.md")
    with pytest.raises(AbstainError, match=r"rename it to fees\.md"):
        read_dataset(tmp_path)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    write_atomically(path, b"old\n")

    def fail(self: Path, target: Path) -> Path:
        raise OSError("disk gone")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk gone"):
        write_atomically(path, b"new\n")
    assert bytes_of(tmp_path) == {"rows.jsonl": b"old\n"}


def test_equal_content_is_not_written_again(tmp_path: Path) -> None:
    write_dataset(tmp_path, full())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")}
    write_dataset(tmp_path, full())
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")} == before


def test_quarantine_is_written_once_whatever_the_reasons(tmp_path: Path) -> None:
    path, is_new = write_quarantine(tmp_path, [QuarantinedRow.of("a.jsonl", 3, b"{", ["truncated"])])
    again, still_new = write_quarantine(tmp_path, [QuarantinedRow.of("a.jsonl", 3, b"{", ["worded otherwise"])])
    assert (is_new, still_new) == (True, False)
    assert again == path
    assert read_quarantine(path)[0].reasons == ("truncated",)
    other, _ = write_quarantine(tmp_path, [QuarantinedRow.of("a.jsonl", 4, b"{", ["truncated"])])
    assert other != path


@given(st.binary())
def test_quarantine_loses_no_byte(raw: bytes) -> None:
    row = QuarantinedRow.of("a.jsonl", 1, raw, ["why"])
    again = QuarantinedRow.model_validate_json(row.canonical())
    assert (base64.b64decode(again.raw_base64) if again.raw_base64 else again.raw.encode()) == raw


@pytest.mark.parametrize("doc_id", ["../fees", "a/b", ".hidden", "a#b", "a b", "x" * 129, "é"])
def test_document_ids_that_cannot_name_a_file(tmp_path: Path, doc_id: str) -> None:
    assert "cannot name a file" in str(file_name_problem(doc_id))
    document = parse_document(markdown(), "fees.md").model_copy(update={"doc_id": doc_id})
    with pytest.raises(AbstainError, match="cannot name a file"):
        write_dataset(tmp_path, Dataset(documents=(document,), sources={doc_id: ""}))
    assert bytes_of(tmp_path) == {}


def test_row_keys_tell_all_rows_apart() -> None:
    data = full()
    keys = [row_key(row) for row in (*data.documents, *data.chunks, *data.interactions, *data.feedback, *data.reviews)]
    assert len(set(keys)) == len(keys)
    assert {"documents/fees", "interactions/a", "chunks/fees#0"} <= set(keys)
