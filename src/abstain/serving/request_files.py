"""Requests to a service: rows of a JSON Lines file, or the texts of the command line's flags."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from abstain.core.codes import Code
from abstain.core.contracts import Context, ImportedInteraction, Interaction, Question, make_unnamed_context
from abstain.core.errors import AbstainError
from abstain.core.json_lines import parse_lines

RequestRow = TypeVar("Asked", Question, ImportedInteraction)


def read_interactions(file: Path) -> list[Interaction]:
    """The interactions of a JSON Lines file (`-`: standard input), which may carry feedback that is ignored.

    Raises `AbstainError` naming file, line and field of the first row that is invalid or has a duplicate key, and for
    JSON that is not JSON Lines.
    """
    return [row.to_rows()[0] for row in _read(file, ImportedInteraction)]


def read_questions(file: Path) -> list[Question]:
    """The questions of a JSON Lines file (`-`: standard input). Raises `AbstainError` as `read_interactions` does."""
    return _read(file, Question)


def make_question_from_texts(question: str, contexts: list[str]) -> Question:
    """One question from its texts. Raises `AbstainError` for an empty one."""
    with _named_by_field():
        return Question(interaction_id="command-line", question=question, contexts=_contexts(contexts))


def _read(file: Path, kind: type[RequestRow]) -> list[RequestRow]:
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise AbstainError(
            Code.NOT_READABLE, f"{file} cannot be read ({error}): give a JSON Lines file, as in docs/data.md"
        ) from None
    rows = list(parse_lines(content.split(b"\n"), kind, str(file), strict=False))
    if not rows:
        raise AbstainError(Code.WRONG_FORMAT, f"{file} holds no rows: one JSON object a line, as in docs/data.md")
    return rows


def make_interaction_from_texts(question: str, answer: str, contexts: list[str]) -> Interaction:
    """One interaction from its texts. Raises `AbstainError` for an empty one."""
    with _named_by_field():
        return Interaction(
            interaction_id="command-line",
            asked_at=datetime.now(UTC),
            question=question,
            answer=answer,
            contexts=_contexts(contexts),
            model="unknown",
        )


def _contexts(texts: list[str]) -> tuple[Context, ...]:
    return tuple(map(make_unnamed_context, texts))


@contextmanager
def _named_by_field() -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        problem = error.errors()[0]
        raise AbstainError(Code.USAGE, f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None
