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
from abstain.core.errors import AbstainError, describe_first_problem
from abstain.core.json_lines import parse_lines

RequestRow = TypeVar("RequestRow", Question, ImportedInteraction)


def read_interactions(file: Path) -> list[Interaction]:
    """Read the interactions of a JSON Lines file; feedback in the rows is ignored.

    Args:
        file: The file; `-` is standard input.

    Returns:
        The interactions, in order.

    Raises:
        AbstainError: The file cannot be read, is not JSON Lines, or has an invalid row or a duplicate key. The message
            names file, line and field of the first such row.
    """
    return [row.to_rows()[0] for row in _read_rows(file, ImportedInteraction)]


def read_questions(file: Path) -> list[Question]:
    """Read the questions of a JSON Lines file.

    Args:
        file: The file; `-` is standard input.

    Returns:
        The questions, in order.

    Raises:
        AbstainError: As in `read_interactions`.
    """
    return _read_rows(file, Question)


def make_question_from_texts(question: str, contexts: list[str]) -> Question:
    """Build a question from its texts.

    Args:
        question: The question.
        contexts: Retrieved chunks, best first.

    Returns:
        The question.

    Raises:
        AbstainError: A text is empty.
    """
    with _report_invalid_field():
        return Question(interaction_id="command-line", question=question, contexts=_make_contexts(contexts))


def _read_rows(file: Path, kind: type[RequestRow]) -> list[RequestRow]:
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
    """Build an interaction from its texts.

    Args:
        question: The question.
        answer: The answer.
        contexts: Retrieved chunks, best first.

    Returns:
        The interaction.

    Raises:
        AbstainError: A text is empty.
    """
    with _report_invalid_field():
        return Interaction(
            interaction_id="command-line",
            asked_at=datetime.now(UTC),
            question=question,
            answer=answer,
            contexts=_make_contexts(contexts),
            model="unknown",
        )


def _make_contexts(texts: list[str]) -> tuple[Context, ...]:
    return tuple(map(make_unnamed_context, texts))


@contextmanager
def _report_invalid_field() -> Iterator[None]:
    """Convert a validation error into an `AbstainError` that names the field."""
    try:
        yield
    except ValidationError as error:
        raise AbstainError(Code.USAGE, describe_first_problem(error)) from None
