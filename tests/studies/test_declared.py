"""What a study file may say, the one that is shipped, and one clear line for each that is wrong."""

from __future__ import annotations

import copy
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from studies.declared import VARIED, Grid, PaperRow, Size, load_experiment
from tests.conftest import ROOT
from tests.studies.builders import BAD, DECLARED, declared, write_study

pytestmark = pytest.mark.soak(twin="test_a_study_computes_its_cells_and_writes_its_report")

SHIPPED = ROOT / "studies" / "nll_perturbation.yaml"
PAPER = ROOT.parent / "shared" / "papers" / "estimating-rag-correctness-nll-perturbation.txt"


def test_the_shipped_study_has_the_tables_of_the_paper() -> None:
    study = load_experiment(SHIPPED)
    assert list(study.tables) == ["headline", "regressors", *map(str, range(2, 13))]
    grids = {name: table.grid for name, table in study.tables.items()}
    assert grids["2"].tokens == (5, 10, 15, 20, 25)
    assert {grids[name].where for name in ("3", "5", "7", "2")} == {("entropy",)}
    assert {grids[name].where for name in ("4", "6", "8")} == {("random",)}
    assert grids["3"].when == grids["4"].when == ("single_shot", "iterative")
    assert [grids[name].when for name in ("5", "6", "7", "8")] == [("iterative",)] * 2 + [("single_shot",)] * 2
    assert grids["9"].metric == ("cosine", "rouge1_f1", "rouge1_precision")
    assert grids["10"].base == grids["10"].perturbation == ("embedded", "second")
    assert study.tables["11"].buffer and len(study.tables["12"].at) > 5
    headline = study.list_table_cells("headline")
    assert len(headline) == 4 and all(study.wants_baselines(cell) for cell in headline)
    assert {(cell.size.train, cell.size.evaluation) for cell in headline} == {(2100, 900)}
    assert {cell.regressor for cell in study.list_table_cells("regressors")} == {
        "random_forest",
        "gradient_boosting",
        "linear",
    }
    assert study.regressors.trees == 2100


def test_a_size_at_hand_does_not_make_a_smaller_cell_want_what_the_headline_wants() -> None:
    study = load_experiment(SHIPPED)
    assert not any(study.wants_baselines(cell) for cell in study.list_table_cells("2"))
    same = study.resize({"grid": (2100, 900)})
    assert any(same.wants_baselines(cell) for cell in same.list_table_cells("2"))
    assert len(same.list_cells()) < len(study.list_cells())


def label_of(table: str, row: PaperRow) -> str:
    """What the paper's line of `row` has in front of its figures."""
    if table in ("3", "4"):
        return str(row.when).replace("_", "-").capitalize()
    if table == "9":
        return {"cosine": "Cos Sim.", "rouge1_f1": "ROUGE-f1", "rouge1_precision": "ROUGE-p"}[str(row.metric)]
    return {"2": str(row.tokens), "12": f"{row.threshold:g}"}.get(table, str(row.perturbation))


@pytest.mark.skipif(not PAPER.is_file(), reason="needs ../shared/papers")
def test_the_papers_figures_are_those_of_the_paper() -> None:
    """Its text has every table as lines of tabs above the caption; two rows of table 10 are joined there in one."""
    text = PAPER.read_text().replace(
        "Llama3-8b Mistral-7b\t0.756 0.590\t0.823 0.469\t0.784 0.706",
        "Llama3-8b\t0.756\t0.823\t0.784\n\tMistral-7b\t0.590\t0.469\t0.706",
    )
    parts = re.split(r"^Table (\d+): (.*)$", text, flags=re.MULTILINE)
    above, captions = dict(zip(parts[1::3], parts[::3], strict=False)), dict(zip(parts[1::3], parts[2::3], strict=True))
    study, checked = load_experiment(SHIPPED), 0
    for name, table_of in study.tables.items():
        for row in table_of.paper.fill_rows() if table_of.paper else ():
            table = {"entropy": "3", "random": "4"}[str(row.where)] if name == "headline" else name
            figures = [row.accuracy, row.f1_buffered, row.f1, row.auroc]
            stated = [figure for figure in figures if figure is not None]
            cells = [re.split(r"\t| (?=0\.\d)", line) for line in above[table].splitlines()]
            fit = [line for line in cells if numbers(line)[-len(stated) :] == stated]
            assert any(label_of(table, row) in line for line in fit), (table, row)
            named = [float(t) for t in re.findall(r"t\W*=\W*(0\.\d+)", captions[table])]
            assert not named or row.threshold in named, (table, row)
            checked += 1
    assert checked == 4 + 5 + 2 + 2 + 3 + 3 + 3 + 3 + 3 + 11 + 3 + 5


def numbers(line: list[str]) -> list[float]:
    return [float(part) for part in line if re.fullmatch(r"\d?\.?\d+", part)]


def test_cells_are_the_product_each_once_and_those_with_the_same_features_together() -> None:
    study = load_experiment(SHIPPED)
    cells = study.list_cells()
    assert len(cells) == len(set(cells))
    assert set(cells) == {cell for name in study.tables for cell in study.list_table_cells(name)}
    conditions = [cell.condition for cell in cells]
    changes = sum(one != other for one, other in itertools.pairwise(conditions))
    assert changes + 1 == len(set(conditions))
    assert len({cell.title for cell in cells}) == len(cells)
    assert study.list_cells(("12",)) == study.list_table_cells("12")
    assert study.select_tables(("9", "2")) == ["2", "9"]
    with pytest.raises(AbstainError, match="no table '13': there are headline, regressors, 2, 3"):
        study.list_cells(("13",))


@given(
    tokens=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    where=st.lists(st.sampled_from(["entropy", "random"]), min_size=1, max_size=3),
)
def test_a_grid_is_a_product_without_repetition(tokens: list[int], where: list[Any]) -> None:
    grid = Grid(tokens=tuple(tokens), where=tuple(where))
    cells = grid.list_cells(Size(train=2, evaluation=2))
    assert len(cells) == len(set(cells)) == len(set(tokens)) * len(set(where))
    assert set(grid.varied_keys) <= set(VARIED)


def test_sizes_are_changed_by_name() -> None:
    study = load_experiment(SHIPPED).resize({"grid": (300, 150)})
    assert str(study.sizes["grid"]) == "300 + 150" and str(study.sizes["paper"]) == "2,100 + 900"
    assert all(cell.size.train == 300 for cell in study.list_table_cells("2"))
    with pytest.raises(AbstainError, match="no size 'small': there are paper, grid"):
        study.resize({"small": (3, 3)})
    with pytest.raises(AbstainError, match="size grid=300,1: train and evaluation are at least 2"):
        study.resize({"grid": (300, 1)})


def test_a_cell_is_judged_at_the_candidates_and_where_its_tables_want() -> None:
    study = declared()
    two, three = study.list_table_cells("2")
    assert study.get_thresholds(two) == (0.2, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    assert study.get_thresholds(three) == study.thresholds
    other = study.model_copy(update={"thresholds_of_metric": {"cosine": (0.1, 0.2)}})
    assert other.get_candidates(two) == (0.1, 0.2) and other.get_thresholds(two)[:3] == (0.1, 0.2, 0.35)
    assert study.get_candidates(two) == study.thresholds


def test_a_row_of_the_paper_has_what_stands_above_it_unless_it_says_otherwise() -> None:
    paper = {"base": "Big", "threshold": 0.95, "rows": [{"auroc": 0.7}, {"base": "Bigger", "auroc": 0.8}]}
    table = {**DECLARED["tables"]["2"], "paper": paper}
    of = declared(tables={"2": table}).tables["2"].paper
    assert of is not None
    assert [(row.base, row.threshold, row.auroc) for row in of.fill_rows()] == [
        ("Big", 0.95, 0.7),
        ("Bigger", 0.95, 0.8),
    ]


def wrong(*path: Any, value: Any) -> dict[str, Any]:
    """The small study with one thing wrong in it."""
    found = inner = copy.deepcopy(DECLARED)
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return found


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (wrong("tables", "2", "size", value="huge"), "table 2: no size 'huge': there are tiny"),
        (wrong("tables", "2", "grid", value={"base": ["nobody"]}), "table 2: no model 'nobody': there are embedded, absent"),
        (wrong("tables", "2", "grid", value={"base": ["absent"]}), "table 2: the base model 'absent' needs a layout"),
        (wrong("tables", "2", "grid", value={"metric": ["bleu"]}), "table 2: no correctness metric 'bleu': there are cosine"),
        (wrong("tables", "2", "grid", value={"tokens": []}), "tables.2.grid.tokens: .*at least 1 item"),
        (wrong("tables", "2", "grid", value={"wher": ["random"]}), "unknown key 'tables.2.grid.wher': did you mean 'where'"),
        (wrong("tables", "2", "paper", "rows", value=[{"auc": 0.7}]), "unknown key 'tables.2.paper.rows.0.auc': did you mean 'auroc'"),
        (wrong("models", "embedded", "layout", value="no-such-layout"), "no prompt layout 'no-such-layout'"),
        (wrong("tables", value={}), "tables: .*at least 1 item"),
        (wrong("thresholds_of_metric", value={"bleu": [0.5]}), "thresholds_of_metric: no correctness metric 'bleu': there are cosine"),
    ],
)  # fmt: skip
def test_a_wrong_file_gives_one_clear_line(tmp_path: Path, content: Any, says: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    with pytest.raises(AbstainError, match=says) as raised:
        load_experiment(file)
    assert "\n" not in str(raised.value) and str(raised.value).startswith(str(file))


def test_a_table_may_be_called_by_a_number(tmp_path: Path) -> None:
    file = write_study(tmp_path, tables={11: BAD})
    assert "\n  11:" in file.read_text()
    assert list(load_experiment(file).tables) == ["11"]
