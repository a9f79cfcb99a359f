"""From the results of cells to the tables that a study declares, as one JSON document. Pure.

Notes:

* A cell without a result has its row all the same, which says why it is empty.
* A row of the paper stands below the row here that is of the same setting, where there is one, and after all rows
  where there is none, as with every table of models that are not available here. It is marked as the paper's.
* What the paper does not state is not filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studies.declared import VARIED, Experiment, ExperimentCell, ExperimentTable, PaperRow

FIGURES = ("mse", "positive", "auroc", "accuracy", "f1")
BUFFERED = ("withheld", "accuracy_buffered", "f1_buffered")
WHO = ("base", "perturbation")
HERE, PAPER = "here", "paper"


@dataclass(frozen=True)
class CellOutcome:
    """What became of a cell: its result (`ExperimentRunner.run`) as JSON reads it; or None, and the reason."""

    result: Mapping[str, Any] | None = None
    reason: str = "it was not computed"


def tabulate(
    study: Experiment, tables: Sequence[str], outcomes: Mapping[ExperimentCell, CellOutcome], files: Mapping[str, str]
) -> dict[str, Any]:
    """`tables` of `study`, all where none is named, as JSON: `report.json` of a study.

    Each of `tables` has `rows`, those `of` "here" and of the "paper"; of a cell without a result a row with `missing`,
    the reason. `cells` has what was counted of each. `files`: sha256 by name. Raises `AbstainError` for a table that is
    none.
    """
    names = study.chosen(tables)
    cells = [(cell, outcomes.get(cell, CellOutcome())) for cell in study.cells(tables)]
    return {
        "title": study.title,
        "paper": study.paper,
        "files": dict(files),
        "models": {label: model.model for label, model in study.models.items()},
        "draws": study.draws,
        "buffer": study.buffer,
        "tables": {name: _table(study, name, outcomes) for name in names},
        "cells": [_counted(cell, outcome) for cell, outcome in cells],
        "missing": {cell.title: outcome.reason for cell, outcome in cells if outcome.result is None},
    }


def _table(study: Experiment, name: str, outcomes: Mapping[ExperimentCell, CellOutcome]) -> dict[str, Any]:
    table, cells = study.tables[name], study.cells_of(name)
    done = [(cell, outcomes.get(cell, CellOutcome())) for cell in cells]
    ours = [row for cell, outcome in done for row in _ours(table, cell, outcome)]
    papers = [_papers(row) for row in table.paper.filled()] if table.paper else []
    return {
        "title": table.title,
        "note": table.note,
        "size": study.sizes[table.size].model_dump(),
        "varied": [*table.grid.varied, *(("threshold",) if table.at else ())],
        "fixed": {key: getattr(cells[0], key) for key in VARIED if key not in table.grid.varied},
        "at": list(table.at),
        "buffer": study.buffer if table.buffer else None,
        "cells": len(cells),
        "missing": {cell.title: outcome.reason for cell, outcome in done if outcome.result is None},
        "rows": _side_by_side(table, ours, papers),
        "baselines": [_beside(cell, outcome.result) for cell, outcome in done if table.baselines and outcome.result],
    }


def _ours(table: ExperimentTable, cell: ExperimentCell, outcome: CellOutcome) -> list[dict[str, Any]]:
    """The rows of `cell`: one, or one for every threshold of the table."""
    row = {"of": HERE, **{key: getattr(cell, key) for key in VARIED}}
    result = outcome.result
    if result is None:
        return [row | {"missing": outcome.reason}]
    by_threshold = {found["threshold"]: found for found in result["by_threshold"]}
    names = [*FIGURES, *(BUFFERED if table.buffer else ())]
    shown = ["threshold", "judged", "note", *(name + end for name in names for end in ("", "_low", "_high"))]
    variance = result["correctness"]["std"] ** 2
    return [
        row | {name: by_threshold[at][name] for name in shown} | {"variance": variance}
        for at in table.at or (result["tuned"],)
    ]


def _papers(row: PaperRow) -> dict[str, Any]:
    return {"of": PAPER, **row.model_dump(exclude_none=True)}


def _side_by_side(
    table: ExperimentTable, ours: list[dict[str, Any]], papers: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    setting = [*table.grid.varied, *(("threshold",) if table.at else ())]
    if set(setting) & set(WHO):
        return [*ours, *papers]
    rows: list[dict[str, Any]] = []
    for own in ours:
        same = [one for one in papers if all(one.get(key, own.get(key)) == own.get(key) for key in setting)]
        rows += [own, *same]
        papers = [one for one in papers if one not in same]
    return [*rows, *papers]


def _beside(cell: ExperimentCell, result: Mapping[str, Any]) -> dict[str, Any]:
    own = next(row for row in result["by_threshold"] if row["threshold"] == result["tuned"])
    auroc = {name: own[name] for name in ("auroc", "auroc_low", "auroc_high")}
    setting = {key: getattr(cell, key) for key in VARIED}
    return {**setting, "threshold": result["tuned"], **auroc, "baselines": list(result["baselines"])}


def _counted(cell: ExperimentCell, outcome: CellOutcome) -> dict[str, Any]:
    row: dict[str, Any] = {"cell": cell.title, "answers": cell.size.train + cell.size.evaluation}
    if outcome.result is None:
        return row | {"missing": outcome.reason}
    names = ("models", "no_answer", "perturbed", "folds", "columns", "dropped_columns", "computed")
    return row | {name: outcome.result[name] for name in names}
