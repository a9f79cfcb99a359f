import io
import json
from pathlib import Path
from typing import Any

import pytest

from abstain.core.errors import AbstainError
from abstain.serving.request_files import make_interaction_from_texts, read_interactions
from tests.factories import row, thumb, write_lines

CONTEXTS = [{"chunk_id": "fees#1", "text": "There is no fee."}]


def write(folder: Path, *lines: dict[str, Any] | str) -> Path:
    return write_lines(folder / "requests.jsonl", *lines)


def read_ids(file: Path) -> list[str]:
    return [interaction.interaction_id for interaction in read_interactions(file)]


def test_read_interactions_in_order_without_blank_lines(tmp_path: Path) -> None:
    assert read_ids(write(tmp_path, row("b"), "", "   ", row("a", contexts=[]))) == ["b", "a"]
    assert read_interactions(write(tmp_path, row(thumb=thumb()))) == read_interactions(write(tmp_path, row()))


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\u000b"])
def test_read_interactions_keeps_a_separator_inside_a_text(tmp_path: Path, separator: str) -> None:
    answers = [f"one{separator}two", "x"]
    lines = [json.dumps(row(answer=answer), ensure_ascii=separator == "\u000b") for answer in answers]
    assert [interaction.answer for interaction in read_interactions(write(tmp_path, *lines))] == answers


def test_read_interactions_of_windows_and_of_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "\r\n".join([json.dumps(row("a")), json.dumps(row("b"))]).encode()
    (tmp_path / "requests.jsonl").write_bytes(content)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert read_ids(tmp_path / "requests.jsonl") == read_ids(Path("-")) == ["a", "b"]


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ('{"interaction_id": "i', "row"),
        (row(question=None), "question"),
        (json.dumps(row(contexts=CONTEXTS)).replace('"text"', '"text": "x", "text"'), "text"),
        (row(confidence=0.5), "confidence"),
    ],
)
def test_read_interactions_names_line_and_field(tmp_path: Path, bad: dict[str, Any] | str, field: str) -> None:
    with pytest.raises(AbstainError) as error:
        read_interactions(write(tmp_path, row("a"), "", bad, "not looked at"))
    assert str(error.value).startswith(f"{tmp_path / 'requests.jsonl'} line 3: {field}: ")


def test_read_interactions_names_what_is_no_file_of_rows(tmp_path: Path) -> None:
    arrays = {json.dumps([row("a"), row("b")]): "a JSON array", json.dumps(row(), indent=1): "over several lines"}
    for content, kind in {**arrays, "": "no rows"}.items():
        with pytest.raises(AbstainError, match=f"requests.jsonl.*{kind}"):
            read_interactions(write(tmp_path, content))
    with pytest.raises(AbstainError, match="nowhere.jsonl"):
        read_interactions(tmp_path / "nowhere.jsonl")
    (tmp_path / "latin.jsonl").write_bytes('{"question": "Gebühr?"}'.encode("latin-1"))
    with pytest.raises(AbstainError, match=r"latin.jsonl line 1: .*\(byte 18\)"):
        read_interactions(tmp_path / "latin.jsonl")


def test_make_interaction_from_texts() -> None:
    interaction = make_interaction_from_texts("Why?", "Because.", ["one", "two"])
    assert (interaction.question, interaction.answer) == ("Why?", "Because.")
    assert [context.text for context in interaction.contexts] == ["one", "two"]
    assert len({context.chunk_id for context in interaction.contexts}) == 2
    for texts, field in ((("", "a", []), "question"), (("q", " ", []), "answer"), (("q", "a", ["x", ""]), "text")):
        with pytest.raises(AbstainError, match=f"^{field}: "):
            make_interaction_from_texts(*texts)
