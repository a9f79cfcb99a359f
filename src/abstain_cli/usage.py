"""Usage errors: one line and exit status 2, from the parser and from commands."""

from __future__ import annotations

import typer

from abstain.core.errors import AbstainError


class UsageError(AbstainError):
    """Options that are not valid, or that contradict each other; the message names them and the remedy."""


def in_one_line(error: typer.TyperException) -> str:
    """The parser's error and a pointer to the command's help; empty where the parser has printed the help."""
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    where = f" (see `{context.command_path} --help`)" if context is not None else ""
    return f"{message}{where}" if message else ""
