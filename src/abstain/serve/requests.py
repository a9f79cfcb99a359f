"""What may be scored: interactions from a JSON Lines file or from the command line's flags."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from abstain.contracts import Context, ImportedInteraction, Interaction
from abstain.errors import AbstainError


def read_requests(file: Path) -> list[Interaction]:
    """The interactions of a JSON Lines file (`-`: standard input), which may carry feedback that is not looked at.

    Raises `AbstainError` naming file, line and field of the first row that is not one.
    """
    try:
        lines = (sys.stdin if str(file) == "-" else file.open(encoding="utf-8")).read().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise AbstainError(f"{file} cannot be read ({error}): give a JSON Lines file of interactions") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(ImportedInteraction.model_validate_json(line).split()[0])
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"])) or "row"
            raise AbstainError(f"{file}, line {number}: {where}: {problem['msg']}") from None
    if not rows:
        raise AbstainError(f"{file} holds no interactions: one JSON object a line, as in docs/data.md")
    return rows


def from_flags(question: str, answer: str, contexts: list[str]) -> Interaction:
    """One interaction from its texts. Raises `AbstainError` for an empty one."""
    try:
        return Interaction(
            interaction_id="command-line",
            asked_at=datetime.now(UTC),
            question=question,
            answer=answer,
            contexts=tuple(Context(chunk_id=f"context#{n}", text=text) for n, text in enumerate(contexts)),
            model="unknown",
        )
    except ValidationError as error:
        problem = error.errors()[0]
        raise AbstainError(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None
