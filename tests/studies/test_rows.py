import gzip
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from studies.rows import QuestionSet, read_parts
from tests.studies.builders import EVALUATION, TRAIN, write_data, write_lines

pytestmark = pytest.mark.soak(twin="test_study_computes_its_cells_and_writes_its_report")


def line(name: str, context: str = "A context.", answers: tuple[str, ...] = ("an answer",)) -> dict[str, Any]:
    return {"id": name, "question": f"What is {name}?", "context": context, "answers": list(answers)}


def parts(folder: Path, train: int, evaluation: int, seed: int = 5) -> tuple[QuestionSet, QuestionSet]:
    return read_parts(folder / TRAIN, folder / EVALUATION, (train, evaluation), seed)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), min_size=2, max_size=40), st.integers(0, 99))
def test_read_parts_share_no_paragraph_and_grow_by_prefix(drawn: list[tuple[str, bool]], seed: int) -> None:
    rows = [(line(f"q{at}", f"Paragraph {letter}."), held) for at, (letter, held) in enumerate(drawn)]
    held = [row for row, is_held in rows if is_held]
    of_held = {row["context"] for row in held}
    train = [row for row, is_held in rows if not is_held]
    left = sum(row["context"] not in of_held for row in train)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_lines(folder / TRAIN, train)
        write_lines(folder / EVALUATION, held)
        whole = parts(folder, left, len(held), seed)
        assert (len(whole[0]), len(whole[1])) == (left, len(held))
        assert not set(whole[0].groups) & set(whole[1].groups)
        smaller = parts(folder, left // 2, len(held) // 2, seed)
        for some, all_of_it in zip(smaller, whole, strict=True):
            assert some.questions == all_of_it.questions[: len(some)]
            assert some.references == all_of_it.references[: len(some)]
            assert some.groups == all_of_it.groups[: len(some)]
        with pytest.raises(AbstainError, match=rf"^{left + 1} questions .* there are {left} in \S+{TRAIN}"):
            parts(folder, left + 1, 0, seed)


def test_read_parts_groups_are_paragraphs_in_order_of_the_seed(tmp_path: Path) -> None:
    train, held = first = parts(write_data(tmp_path), 30, 15)
    assert len(set(train.groups)) == 10 and len(set(held.groups)) == 5
    both = train + held
    assert len(both) == len(both.references) == len(both.groups) == 45
    texts = [question.contexts[0] for question in both.questions]
    assert [context.chunk_id for context in texts] == [f"paragraph#{group}" for group in both.groups]
    assert len({(context.text, group) for context, group in zip(texts, both.groups, strict=True)}) == 15
    assert parts(tmp_path, 30, 15, seed=6)[0].questions != train.questions
    lines = (tmp_path / TRAIN).read_text().splitlines(keepends=True)
    (tmp_path / TRAIN).write_text("".join(reversed(lines)))
    assert parts(tmp_path, 30, 15) == first, "the order of the file says nothing"


def test_read_parts_skips_incomplete_questions(tmp_path: Path) -> None:
    write_lines(tmp_path / EVALUATION, [line("held", "Held.")])
    wrong = [line("a", answers=()), line("b", answers=(" ", "")), line("c", context=" "), line("d") | {"question": " "}]
    file = write_lines(tmp_path / TRAIN, [line("good"), *wrong])
    file.write_text(file.read_text() + "\n\n")
    assert [one.interaction_id for one in parts(tmp_path, 1, 1)[0].questions] == ["good"]
    with pytest.raises(AbstainError, match="^2 questions with an answer are wanted, and there are 1"):
        parts(tmp_path, 2, 1)


def test_read_parts_of_a_compressed_file(tmp_path: Path) -> None:
    plain = parts(write_data(tmp_path), 5, 5)
    packed = tmp_path / f"{TRAIN}.gz"
    packed.write_bytes(gzip.compress((tmp_path / TRAIN).read_bytes()))
    assert read_parts(packed, tmp_path / EVALUATION, (5, 5), 5) == plain
    packed.write_bytes(packed.read_bytes()[:-200])
    with pytest.raises(AbstainError, match=rf"{packed.name} cannot be read after row \d+"):
        read_parts(packed, tmp_path / EVALUATION, (5, 5), 5)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "line 1: row: Invalid JSON"),
        (b"\xff\xfe\x00", f"{TRAIN} line 1: not valid UTF-8"),
        (None, f"{TRAIN} is missing: say with --data"),
    ],
    ids=["cut", "no UTF-8", "missing"],
)
def test_read_parts_wrong_file_is_named(tmp_path: Path, content: bytes | None, says: str) -> None:
    write_data(tmp_path)
    (tmp_path / TRAIN).unlink()
    if content:
        (tmp_path / TRAIN).write_bytes(content + b"\n")
    with pytest.raises(AbstainError, match=says) as raised:
        parts(tmp_path, 1, 1)
    assert "\n" not in str(raised.value) and TRAIN in str(raised.value)
