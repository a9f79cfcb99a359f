"""What is wrong with a command as it was typed: one line, exit status 2, whether the parser or the command finds it."""

from __future__ import annotations

import typer

from abstain.core.errors import AbstainError

RENAMED_OPTIONS = {"--read-at-most": "--max-inference"}
"""Old option -> the option that replaced it. The old one is an error that names the new one."""


class UsageError(AbstainError):
    """Options that are no good, or do not go together; the message names them and the remedy."""


def in_one_line(error: typer.TyperException) -> str:
    """What the parser refuses, and where to read how it is meant; empty where it has printed the help."""
    said = renamed_option(error) or " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    where = f" (see `{context.command_path} --help`)" if context is not None else ""
    return f"{said}{where}" if said else ""


def renamed_option(error: typer.TyperException) -> str | None:
    """A line that names the new option, where the parser refuses an old one of a command that has the new one."""
    old, context = getattr(error, "option_name", ""), getattr(error, "ctx", None)
    new = RENAMED_OPTIONS.get(old)
    if new is None or context is None or all(new not in param.opts for param in context.command.params):
        return None
    return f"{old} is now {new}"
