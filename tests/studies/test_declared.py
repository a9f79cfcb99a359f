import copy
import gzip
import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from studies.nll_perturbation.declared import load_experiment
from studies.rows import QuestionSet, read_parts
from studies.study import select_tables
from tests.conftest import ROOT
from tests.factories import write_lines
from tests.studies.builders import DECLARED, EVALUATION, TRAIN, write_data, write_study

pytestmark = pytest.mark.soak(twin="test_study_computes_its_cells_and_writes_its_report")

SHIPPED = load_experiment(ROOT / "studies" / "nll_perturbation.yaml")


def test_load_experiment_shipped_study_has_the_paper_tables() -> None:
    study = SHIPPED
    assert list(study.tables) == ["headline", "regressors", "outputs", *map(str, range(2, 13))]
    headline = study.list_table_cells("headline")
    assert len(headline) == 4 and all(study.wants_baselines(cell) for cell in headline)
    assert {(cell.size.train, cell.size.evaluation) for cell in headline} == {(2100, 900)}
    rows = [row for table in study.tables.values() if table.paper for row in table.paper.fill_rows()]
    figures = [figure or 0 for row in rows for figure in (row.auroc, row.accuracy, row.f1, row.f1_buffered)]
    assert len(rows) == 47 and sum(figures) == pytest.approx(104.907), "the figures of the paper, as they were checked"
    assert not any(study.wants_baselines(cell) for cell in study.list_table_cells("2"))
    same = study.resize({"grid": (2100, 900)})
    assert any(same.wants_baselines(cell) for cell in same.list_table_cells("2"))
    assert len(same.list_cells()) < len(study.list_cells())


def test_list_cells_are_unique_and_grouped_by_features() -> None:
    study, cells = SHIPPED, SHIPPED.list_cells()
    assert len(cells) == len(set(cells))
    assert set(cells) == {cell for name in study.tables for cell in study.list_table_cells(name)}
    conditions = [cell.condition for cell in cells]
    changes = sum(one != other for one, other in itertools.pairwise(conditions))
    assert changes + 1 == len(set(conditions))
    assert len({cell.title for cell in cells}) == len(cells)
    assert study.list_cells(("12",)) == study.list_table_cells("12")
    assert select_tables(("9", "2"), study.tables) == ["2", "9"]
    with pytest.raises(AbstainError, match="no table '13': there are headline, regressors, outputs, 2, 3"):
        study.list_cells(("13",))


def test_resize_changes_sizes_by_name() -> None:
    study = SHIPPED.resize({"grid": (300, 150)})
    assert str(study.sizes["grid"]) == "300 + 150" and str(study.sizes["paper"]) == "2,100 + 900"
    assert all(cell.size.train == 300 for cell in study.list_table_cells("2"))
    with pytest.raises(AbstainError, match="no size 'small': there are paper, grid"):
        study.resize({"small": (3, 3)})
    with pytest.raises(AbstainError, match="size grid=300,1: "):
        study.resize({"grid": (300, 1)})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("tables.2.size", "huge", "table 2: no size 'huge': there are tiny"),
        ("tables.2.grid", {"base": ["nobody"]}, "table 2: no model 'nobody': there are embedded, absent"),
        ("tables.2.grid", {"base": ["absent"]}, "table 2: the base model 'absent' needs a layout"),
        ("tables.2.grid", {"metric": ["bleu"]}, "table 2: no correctness metric 'bleu': there are cosine"),
        ("tables.2.grid", {"wher": ["random"]}, "unknown key 'tables.2.grid.wher': did you mean 'where'"),
        ("models.embedded.layout", "no-such-layout", "no prompt layout 'no-such-layout'"),
        ("quantiles", [1.5], "quantiles.0: Input should be less than 1"),
    ],
)  # fmt: skip
def test_load_experiment_wrong_file_is_one_line(tmp_path: Path, path: str, value: Any, message: str) -> None:
    content = inner = copy.deepcopy(DECLARED)
    *above, last = path.split(".")
    for key in above:
        inner = inner[key]
    inner[last] = value
    file = write_study(tmp_path, **content)
    with pytest.raises(AbstainError, match=message) as raised:
        load_experiment(file)
    assert str(raised.value).startswith(str(file))


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
        write_lines(folder / TRAIN, *train)
        write_lines(folder / EVALUATION, *held)
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
    write_lines(tmp_path / EVALUATION, line("held", "Held."))
    wrong = [line("a", answers=()), line("b", answers=(" ", "")), line("c", context=" "), line("d") | {"question": " "}]
    file = write_lines(tmp_path / TRAIN, line("good"), *wrong)
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
    assert TRAIN in str(raised.value)
