import copy
import itertools
from pathlib import Path
from typing import Any

import pytest

from abstain.core.errors import AbstainError
from studies.declared import load_experiment
from tests.conftest import ROOT
from tests.studies.builders import DECLARED, declared, write_study

pytestmark = pytest.mark.soak(twin="test_study_computes_its_cells_and_writes_its_report")

SHIPPED = load_experiment(ROOT / "studies" / "nll_perturbation.yaml")


def test_load_experiment_shipped_study_has_the_paper_tables() -> None:
    study = SHIPPED
    assert list(study.tables) == ["headline", "regressors", *map(str, range(2, 13))]
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
    assert study.select_tables(("9", "2")) == ["2", "9"]
    with pytest.raises(AbstainError, match="no table '13': there are headline, regressors, 2, 3"):
        study.list_cells(("13",))


def test_resize_changes_sizes_by_name() -> None:
    study = SHIPPED.resize({"grid": (300, 150)})
    assert str(study.sizes["grid"]) == "300 + 150" and str(study.sizes["paper"]) == "2,100 + 900"
    assert all(cell.size.train == 300 for cell in study.list_table_cells("2"))
    with pytest.raises(AbstainError, match="no size 'small': there are paper, grid"):
        study.resize({"small": (3, 3)})
    with pytest.raises(AbstainError, match="size grid=300,1: "):
        study.resize({"grid": (300, 1)})


def test_get_thresholds_adds_those_of_the_tables() -> None:
    study = declared()
    two, three = study.list_table_cells("2")
    assert study.get_thresholds(two) == (0.2, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    assert study.get_thresholds(three) == study.thresholds
    other = study.model_copy(update={"thresholds_of_metric": {"cosine": (0.1, 0.2)}})
    assert other.get_candidates(two) == (0.1, 0.2) and other.get_thresholds(two)[:3] == (0.1, 0.2, 0.35)
    assert study.get_candidates(two) == study.thresholds


def test_fill_rows_inherits_the_values_above(tmp_path: Path) -> None:
    paper = {"base": "Big", "threshold": 0.95, "rows": [{"auroc": 0.7}, {"base": "Bigger", "auroc": 0.8}]}
    file = write_study(tmp_path, tables={11: {**DECLARED["tables"]["2"], "paper": paper}})
    assert "\n  11:" in file.read_text(), "the name of a table may be a number"
    filled = load_experiment(file).tables["11"].paper
    assert filled is not None
    rows = [(row.base, row.threshold, row.auroc) for row in filled.fill_rows()]
    assert rows == [("Big", 0.95, 0.7), ("Bigger", 0.95, 0.8)]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("tables.2.size", "huge", "table 2: no size 'huge': there are tiny"),
        ("tables.2.grid", {"base": ["nobody"]}, "table 2: no model 'nobody': there are embedded, absent"),
        ("tables.2.grid", {"base": ["absent"]}, "table 2: the base model 'absent' needs a layout"),
        ("tables.2.grid", {"metric": ["bleu"]}, "table 2: no correctness metric 'bleu': there are cosine"),
        ("tables.2.grid", {"wher": ["random"]}, "unknown key 'tables.2.grid.wher': did you mean 'where'"),
        ("tables.2.paper.rows", [{"auc": 0.7}], "unknown key 'tables.2.paper.rows.0.auc': did you mean 'auroc'"),
        ("models.embedded.layout", "no-such-layout", "no prompt layout 'no-such-layout'"),
        ("thresholds_of_metric", {"bleu": [0.5]}, "thresholds_of_metric: no correctness metric 'bleu': there are cosine"),
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
    assert "\n" not in str(raised.value) and str(raised.value).startswith(str(file))
