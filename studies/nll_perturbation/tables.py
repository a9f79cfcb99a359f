"""From the results of cells to the tables of an experiment, as one JSON document. Pure.

Notes:

* A cell without a result has a row that says why it is empty.
* A row of the paper follows the row here with the same setting if there is one, and else all rows, as in every table of
  models that are not available here. It is marked as the paper's.
* Numbers that the paper does not state are not filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from studies.nll_perturbation.declared import VARIED, Experiment, ExperimentCell, ExperimentTable, PaperRow
from studies.study import Outcome, select_tables

FIGURES = ("mse", "mse_difference", "positive", "auroc", "accuracy", "f1")
BUFFERED = ("withheld", "accuracy_buffered", "f1_buffered")
WHO = ("base", "perturbation")
HERE, PAPER = "here", "paper"


def tabulate(
    experiment: Experiment,
    tables: Sequence[str],
    outcomes: Mapping[str, Outcome],
    files: Mapping[str, str],
    remark: str = "",
) -> dict[str, Any]:
    """Return `tables` of the experiment, by default all, as JSON: `report.json`.

    Each table has `rows`, those `of` "here" and of the "paper"; a cell without a result has a row with `missing`, the
    reason. `cells` has the counts of each.

    Args:
        experiment: The experiment.
        tables: Names of tables; empty for all.
        outcomes: Outcome by title of the cell: the result of `ExperimentRunner.run`.
        files: sha256 of the files by name.
        remark: What is to be said about the answers.

    Returns:
        The report.

    Raises:
        AbstainError: there is no such table.
    """
    names = select_tables(tables, experiment.tables)
    cells = [(cell, outcomes.get(cell.title, Outcome())) for cell in experiment.list_cells(tables)]
    return {
        "title": experiment.title,
        "paper": experiment.paper,
        "files": dict(files),
        "remark": remark,
        "models": {label: model.model for label, model in experiment.models.items()},
        "draws": experiment.draws,
        "quantiles": list(experiment.quantiles),
        "buffer": experiment.buffer,
        "tables": {name: _table(experiment, name, outcomes) for name in names},
        "cells": [_make_counts(cell, outcome) for cell, outcome in cells],
        "missing": {cell.title: outcome.reason for cell, outcome in cells if outcome.result is None},
    }


def _table(experiment: Experiment, name: str, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    table, cells = experiment.tables[name], experiment.list_table_cells(name)
    cell_outcomes = [(cell, outcomes.get(cell.title, Outcome())) for cell in cells]
    rows = [row for cell, outcome in cell_outcomes for row in _make_rows(table, cell, outcome)]
    paper_rows = [_make_paper_row(row) for row in table.paper.fill_rows()] if table.paper else []
    return {
        "title": table.title,
        "note": table.note,
        "size": experiment.sizes[table.size].model_dump(),
        "varied": [*table.grid.varied_keys, *(("threshold",) if table.at else ())],
        "fixed": {key: getattr(cells[0], key) for key in VARIED if key not in table.grid.varied_keys},
        "at": list(table.at),
        "buffer": experiment.buffer if table.buffer else None,
        "cells": len(cells),
        "missing": {cell.title: outcome.reason for cell, outcome in cell_outcomes if outcome.result is None},
        "rows": _side_by_side(table, rows, paper_rows),
        "baselines": [
            _make_baselines(cell, outcome.result)
            for cell, outcome in cell_outcomes
            if table.baselines and outcome.result
        ],
    }


def _make_rows(table: ExperimentTable, cell: ExperimentCell, outcome: Outcome) -> list[dict[str, Any]]:
    """Return the rows of `cell`: one, or one for every threshold of the table."""
    row = {"of": HERE, **{key: getattr(cell, key) for key in VARIED}}
    result = outcome.result
    if result is None:
        return [row | {"missing": outcome.reason}]
    by_threshold = {metrics["threshold"]: metrics for metrics in result["by_threshold"]}
    names = [*FIGURES, *(BUFFERED if table.buffer else ())]
    keys = ["threshold", "labelled", "note", *(name + end for name in names for end in ("", "_low", "_high"))]
    return [
        row | {name: by_threshold[threshold][name] for name in keys} for threshold in table.at or (result["tuned"],)
    ]


def _make_paper_row(row: PaperRow) -> dict[str, Any]:
    return {"of": PAPER, **row.model_dump(exclude_none=True)}


def _side_by_side(
    table: ExperimentTable, rows: list[dict[str, Any]], paper_rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    setting = [*table.grid.varied_keys, *(("threshold",) if table.at else ())]
    if set(setting) & set(WHO):
        return [*rows, *paper_rows]
    merged: list[dict[str, Any]] = []
    for row in rows:
        matching = [
            paper_row
            for paper_row in paper_rows
            if all(paper_row.get(key, row.get(key)) == row.get(key) for key in setting)
        ]
        merged += [row, *matching]
        paper_rows = [paper_row for paper_row in paper_rows if paper_row not in matching]
    return [*merged, *paper_rows]


def _make_baselines(cell: ExperimentCell, result: Mapping[str, Any]) -> dict[str, Any]:
    tuned_row = next(row for row in result["by_threshold"] if row["threshold"] == result["tuned"])
    auroc = {name: tuned_row[name] for name in ("auroc", "auroc_low", "auroc_high")}
    setting = {key: getattr(cell, key) for key in VARIED}
    return {**setting, "threshold": result["tuned"], **auroc, "baselines": list(result["baselines"])}


def _make_counts(cell: ExperimentCell, outcome: Outcome) -> dict[str, Any]:
    row: dict[str, Any] = {"cell": cell.title, "answers": cell.size.train + cell.size.evaluation}
    if outcome.result is None:
        return row | {"missing": outcome.reason}
    names = ("models", "no_answer", "perturbed", "folds", "columns", "dropped_columns", "computed")
    return row | {name: outcome.result[name] for name in names}
