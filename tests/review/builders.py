"""Review files to fill in, and to fill in as a reviewer does: with a spreadsheet's cells, not with our own code."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from openpyxl import load_workbook

from abstain.core.contracts import Interaction
from abstain.review import workbook

SEAL_KEY = b"of the home that exports"
YES = {"complete": "yes", "correct": "yes", "truthful": "yes"}
Cells = Mapping[str, Any]


def write_file(path: Path, *interactions: Interaction, cells: Cells | None = None, **sampled: Any) -> Path:
    """A review file at `path`; every row is drawn as `sampled` says and filled in with `cells`."""
    selection = {"reason": "random", "n_sampled": 3, "n_population": 17, "locations": {}, **sampled}
    rows = [
        {**workbook.make_sampled_cells(interaction, **selection), **workbook.make_reviewer_cells(None), **(cells or {})}
        for interaction in interactions
    ]
    path.write_bytes(workbook.to_bytes(workbook.make_workbook(rows, SEAL_KEY)))
    return path


def fill(path: Path, change: Callable[[int, dict[str, str]], Cells]) -> None:
    """Write into every row what `change` makes of its number and its texts."""
    book = load_workbook(path)
    for row in workbook.read_workbook(path):
        for name, value in change(row.number, dict(row.cells)).items():
            book["reviews"].cell(row.number, list(workbook.COLUMNS).index(name) + 1).value = value
    book.save(path)


def rows_of(path: Path) -> dict[int, workbook.ReviewRow]:
    return {row.number: row for row in workbook.read_workbook(path)}


def cells_of(path: Path) -> list[Mapping[str, str]]:
    return [row.cells for row in workbook.read_workbook(path)]
