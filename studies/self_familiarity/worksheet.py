"""The worksheet in which people judge explanations: a CSV file that the study writes, and reads again.

Rows that are there stay as they are, with their scores; rows that are missing are added.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from studies.self_familiarity.concept7 import ConceptInstruction

COLUMNS = ("id", "concept", "background", "explanation", "score")
LIKE_A_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def get_worksheet_digest(file: Path) -> str:
    """Return the sha256 of the worksheet; empty if there is none."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def write_worksheet(file: Path, concepts: Sequence[ConceptInstruction], explanations: Sequence[str]) -> None:
    """Add to the worksheet the concepts that it lacks, with the model's explanations.

    Raises:
        AbstainError: the file is no worksheet, or cannot be written.
    """
    rows = _read_rows(file) if file.is_file() else []
    present = {row["id"]: row.get("explanation") for row in rows}
    missing = []
    for concept, text in zip(concepts, explanations, strict=True):
        explanation = _escape(text)
        if concept.key not in present:
            cells = (concept.key, _escape(concept.concepts[0]), _escape(concept.background), explanation, "")
            missing.append(dict(zip(COLUMNS, cells, strict=True)))
        elif (present[concept.key] or "").split() != explanation.split():
            raise AbstainError(
                Code.FAILED_CHECK,
                f"{file}: the explanation of {concept.key} is of another model: name another file in worksheet",
            )
    if not missing:
        return
    sheet = io.StringIO()
    writer = csv.DictWriter(sheet, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows([*rows, *missing])
    try:
        write_atomically(file, sheet.getvalue().encode())
    except OSError as error:
        raise AbstainError(
            Code.NOT_WRITABLE, f"{file} cannot be written: {error.strerror}: name another file in worksheet"
        ) from None


def read_scores(file: Path, concepts: Sequence[ConceptInstruction]) -> list[float | None]:
    """Return the score of each concept, (concepts,), 1 to 9; None where the cell is empty.

    Raises:
        AbstainError: a score is no number from 1 to 9.
    """
    scores: dict[str, float | None] = {}
    for row in _read_rows(file):
        cell = (row["score"] or "").strip().replace(",", ".")
        try:
            scores[row["id"]] = float(cell) if cell else None
        except ValueError:
            scores[row["id"]] = float("nan")
        score = scores[row["id"]]
        if score is not None and not 1 <= score <= 9:
            raise AbstainError(
                Code.INVALID_ROW, f"{file}: the score of {row['id']} is '{cell[:20]}': write a number from 1 to 9"
            )
    return [scores.get(concept.key) for concept in concepts]


def _read_rows(file: Path) -> list[dict[str, str]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines)
            rows = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise AbstainError(Code.WRONG_FORMAT, f"{file} cannot be read as CSV ({error}): save it as UTF-8") from None
    if not {"id", "score"} <= set(reader.fieldnames or ()):
        raise AbstainError(Code.WRONG_FORMAT, f"{file} has no columns id and score: name another file in worksheet")
    return rows


def _escape(cell: str) -> str:
    """Return `cell` so that no spreadsheet takes it for a formula: models write it."""
    return f"'{cell}" if cell.startswith(LIKE_A_FORMULA) else cell
