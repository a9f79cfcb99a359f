from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from abstain.core.errors import AbstainError
from abstain.serving.request_files import make_interaction_from_texts, read_interactions


def row(key: str = "i-1", **changes: Any) -> dict[str, Any]:
    own = {
        "interaction_id": key,
        "asked_at": "2026-09-01T12:00:00Z",
        "question": "What is the fee?",
        "answer": "None.",
        "contexts": [{"chunk_id": "fees#1", "text": "There is no fee."}],
        "model": "m@1",
    }
    return {name: value for name, value in {**own, **changes}.items() if value is not None}


def write(folder: Path, *lines: dict[str, Any] | str) -> Path:
    file = folder / "requests.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines]
    file.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return file


def test_rows_are_read_in_order_and_blank_lines_skipped(tmp_path: Path) -> None:
    file = write(tmp_path, row("b"), "", "   ", row("a", contexts=[]))
    assert [request.interaction_id for request in read_interactions(file)] == ["b", "a"]


def test_feedback_inside_a_row_is_left_out(tmp_path: Path) -> None:
    thumb = {"thumb": "up", "given_at": "2026-09-02T12:00:00Z"}
    assert read_interactions(write(tmp_path, row(thumb=thumb))) == read_interactions(write(tmp_path, row()))


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\u000b"])
def test_a_line_separator_inside_a_text_does_not_end_the_row(tmp_path: Path, separator: str) -> None:
    answer = f"one{separator}two"
    line = json.dumps(row(answer=answer), ensure_ascii=separator == "\u000b")
    assert [request.answer for request in read_interactions(write(tmp_path, line, row("b", answer="x")))] == [
        answer,
        "x",
    ]


def test_what_a_windows_editor_writes_is_read(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_bytes("\r\n".join([json.dumps(row("a")), json.dumps(row("b"))]).encode())
    assert [request.interaction_id for request in read_interactions(file)] == ["a", "b"]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(row("piped")).encode() + b"\n")))
    assert [request.interaction_id for request in read_interactions(Path("-"))] == ["piped"]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ('{"interaction_id": "i', "row: Invalid JSON"),
        ("[1]", "row: "),
        (row(question=None), "question: Field required"),
        (row(answer="  "), "answer: String should have at least 1 character"),
        (row(asked_at="2026-09-01T12:00:00"), "asked_at: Value error, timestamp without a time zone"),
        (row(contexts=[{"chunk_id": "c"}]), "contexts.0.text: Field required"),
        (json.dumps(row())[:-1] + ', "answer": "Ten."}', "answer: this key comes twice in one object"),
        (json.dumps(row()).replace('"text"', '"text": "x", "text"'), "text: this key comes twice in one object"),
        (row(confidence=0.5), "confidence: Extra inputs are not permitted"),
    ],
)
def test_a_row_that_is_none_names_file_line_and_field(tmp_path: Path, bad: dict[str, Any] | str, says: str) -> None:
    file = write(tmp_path, row("a"), "", bad, "not looked at")
    with pytest.raises(AbstainError) as caught:
        read_interactions(file)
    assert str(caught.value).startswith(f"{file} line 3: {says}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (json.dumps([row("a"), row("b")]), "is a JSON array and not JSON Lines: write one object a line"),
        (json.dumps([row("a")], indent=1), "is a JSON array and not JSON Lines: write one object a line"),
        (json.dumps(row(), indent=1), "holds a JSON object over several lines and is not JSON Lines"),
    ],
)
def test_json_that_is_no_json_lines_is_named(tmp_path: Path, content: str, says: str) -> None:
    with pytest.raises(AbstainError, match=f"requests.jsonl: {says}"):
        read_interactions(write(tmp_path, content))


def test_an_empty_file_says_what_it_should_hold(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match=r"requests.jsonl holds no rows: one JSON object a line"):
        read_interactions(write(tmp_path))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match=r"nowhere.jsonl cannot be read \(.*No such file"):
        read_interactions(tmp_path / "nowhere.jsonl")
    (tmp_path / "latin.jsonl").write_bytes('{"question": "Gebühr?"}'.encode("latin-1"))
    with pytest.raises(AbstainError, match=r"latin.jsonl line 1: not valid UTF-8 \(byte 18\)"):
        read_interactions(tmp_path / "latin.jsonl")


def test_flags_make_an_interaction() -> None:
    made = make_interaction_from_texts("Why?", "Because.", ["one", "two"])
    assert (made.question, made.answer) == ("Why?", "Because.")
    assert [context.text for context in made.contexts] == ["one", "two"]
    assert len({context.chunk_id for context in made.contexts}) == 2


@pytest.mark.parametrize(
    ("texts", "field"), [(("", "a", []), "question"), (("q", " ", []), "answer"), (("q", "a", ["x", ""]), "text")]
)
def test_an_empty_flag_is_named(texts: tuple[str, str, list[str]], field: str) -> None:
    with pytest.raises(AbstainError, match=f"^{field}: String should have at least 1 character"):
        make_interaction_from_texts(*texts)
