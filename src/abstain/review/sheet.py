"""The review file: a CSV that opens well in a spreadsheet, and that survives being saved there.

Three decisions:

* UTF-8 with a BOM, which is how Excel knows UTF-8. What comes back may have another encoding or delimiter, columns in
  another order, and columns of the reviewer's own: all are read, and the latter are kept.
* A row says for itself what was drawn, and carries a digest of it: rows may be sorted, filtered, deleted and copied,
  but a changed question, answer, id or probability is noticed.
* The probability is written "25 of 1340": no spreadsheet in any language takes that for another number. The probe's
  confidence and the users' thumbs are left out, because a verdict should not lean on them.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from abstain.core.contracts import Context, Interaction, Review
from abstain.core.errors import AbstainError
from abstain.ingest.sources.lines import LIMIT
from abstain.review.cells import guard, readable

DRAWN = ("interaction_id", "question", "answer", "contexts", "product", "line_of_business", "why")
PROBABILITY = "inclusion_probability"
VERDICTS = ("complete", "correct", "truthful")
OWN = (*VERDICTS, "ideal_answer", "reviewer", "reviewed_at")
DIGEST = "digest"
COLUMNS = (*DRAWN, PROBABILITY, *OWN, DIGEST)

DELIMITERS = (",", ";", "\t")
BOM = "\ufeff"


@dataclass(frozen=True)
class Sheet:
    """A review file: its columns, and its rows by the number that a spreadsheet shows, cells as they stand there.

    Blank rows are not among them.
    """

    columns: tuple[str, ...]
    rows: Mapping[int, Mapping[str, str]]
    delimiter: str = ","

    def to_bytes(self) -> bytes:
        """The whole file; every row keeps its number."""
        out = io.StringIO()
        writer = csv.writer(out, delimiter=self.delimiter, lineterminator="\r\n")
        writer.writerow(self.columns)
        for number in range(2, max(self.rows, default=1) + 1):
            row = self.rows.get(number, {})
            writer.writerow([row.get(name, "") for name in self.columns])
        return f"{BOM}{out.getvalue()}".encode()


def new_row(interaction: Interaction, why: str, drawn: int, of: int, review: Review | None = None) -> dict[str, str]:
    """The row of one drawn interaction; with `review`, one that was reviewed before."""
    row = {
        "interaction_id": interaction.interaction_id,
        "question": interaction.question,
        "answer": interaction.answer,
        "contexts": write_contexts(interaction.contexts),
        "product": interaction.product or "",
        "line_of_business": interaction.line_of_business or "",
        "why": why,
        PROBABILITY: f"{drawn} of {of}",
    }
    cells = {name: guard(readable(text)) for name, text in row.items()}
    return {**cells, **(own_cells(review) if review else dict.fromkeys(OWN, "")), DIGEST: digest(cells)}


def own_cells(review: Review) -> dict[str, str]:
    """A verdict as its cells."""
    return {
        **{name: "yes" if getattr(review, name) else "no" for name in VERDICTS},
        "ideal_answer": guard(review.ideal_answer or ""),
        "reviewer": guard(review.reviewer),
        "reviewed_at": guard(review.reviewed_at.isoformat().replace("+00:00", "Z")),
    }


def digest(row: Mapping[str, str]) -> str:
    """Letters that stand for what was drawn, whatever a spreadsheet does to line breaks and apostrophes."""
    cells = [" ".join(row.get(name, "").split()).lstrip("'") for name in (*DRAWN, PROBABILITY)]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16].translate(_LETTERS)


def probability(cell: str) -> float:
    """25 of 1340 as a number. ValueError for anything else."""
    match = re.fullmatch(r"(\d{1,9}) of (\d{1,9})", cell.strip().lstrip("'"))
    drawn, of = map(int, match.groups()) if match else (0, 0)
    if not 0 < drawn <= of:
        raise ValueError(f"'{cell[:40]}' is no probability like 25 of 1340")
    return drawn / of


def write_contexts(contexts: Iterable[Context]) -> str:
    """Ranked chunks as one readable text, `[rank] chunk_id` above each."""
    return "\n\n".join(
        f"[{rank}] {' '.join(one.chunk_id.split())}\n{one.text.strip()}" for rank, one in enumerate(contexts, start=1)
    )


def split_contexts(text: str) -> list[tuple[str, str]]:
    """(chunk_id, text) of each chunk that `write_contexts` wrote."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        match = re.fullmatch(r"\[(\d+)\] (.+)", line)
        if match and int(match[1]) == len(found) + 1:
            found.append((match[2], ""))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]}\n{line}")
    return [(name, body.strip()) for name, body in found]


def read_sheet(path: Path) -> Sheet:
    """The review file at `path`, whatever a spreadsheet saved it as.

    Raises `AbstainError` for a file that cannot be read or is none.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise AbstainError(
            f"{path}: cannot be read ({error.strerror}): name a file of `abstain review export`"
        ) from None
    if content.startswith(b"PK\x03\x04"):
        raise AbstainError(f"{path}: this is a workbook: save it as CSV (UTF-8, comma or semicolon) and name that file")
    text = _decode(content)
    csv.field_size_limit(LIMIT)  # long contexts are more than the 128 KB that are allowed otherwise
    try:
        delimiter = max(DELIMITERS, key=lambda sign: len(set(_names(text, sign)) & set(COLUMNS)))
        columns = _names(text, delimiter)
        records = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise AbstainError(f"{path}: no readable CSV ({error}): save it as CSV in the spreadsheet again") from None
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise AbstainError(
            f"{path}: the column '{missing[0]}' is missing: keep the first row and all columns as `abstain review "
            "export` wrote them, or export again"
        )
    rows = {number: _cells(columns, record) for number, record in enumerate(records[1:], start=2) if any(record)}
    return Sheet(columns, rows, delimiter)


def _cells(columns: Sequence[str], record: Sequence[str]) -> dict[str, str]:
    """By column; cells behind the last column, which only a stray delimiter makes, go to the last one."""
    cells = dict(zip(columns, record, strict=False))
    if extra := [cell for cell in record[len(columns) :] if cell]:
        cells[columns[-1]] = " ".join([cells[columns[-1]], *extra])
    return cells


def _names(text: str, delimiter: str) -> tuple[str, ...]:
    header = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
    names = [name.strip() for name in header]
    return tuple(name.lower() if name.lower() in COLUMNS else name for name in names)


def _decode(content: bytes) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")  # Excel's plain "CSV"; what it lost, the digest tells


_LETTERS = str.maketrans("0123456789", "ghijklmnop")
