"""What is wrong with a command as it was typed: one line, exit status 2, whether the parser or the command finds it."""

from __future__ import annotations

import typer

from abstain.core.errors import AbstainError


class UsageError(AbstainError):
    """Options that are no good, or do not go together; the message names them and the remedy."""


def in_one_line(error: typer.TyperException) -> str:
    """What the parser refuses, and where to read how it is meant; empty where it has printed the help."""
    said = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    where = f" (see `{context.command_path} --help`)" if context is not None else ""
    return f"{said}{where}" if said else ""
