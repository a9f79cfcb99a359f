"""Usage errors: one line and exit status 2, from the parser and from commands."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

RENAMED = {
    ("forget",): "erase-user",
    ("quarantine", "drop"): "discard",
    ("quarantine", "release"): "retry",
    ("retrain", "--new-holdout"): "--accept-new-holdout",
    ("promote", "--new-holdout"): "--accept-new-holdout",
    ("review", "export", "--read-at-most"): "--max-inference",
}
"""The words of a command up to a renamed command or option (`--`) -> its new name."""


def reject_renamed(arguments: Sequence[str]) -> None:
    """Raise `AbstainError` with the new name where `arguments`, those of `abstain`, use a name of `RENAMED`."""
    for (*command, old), new in RENAMED.items():
        words = list(arguments[: len(command) + 1])
        options = {argument.partition("=")[0] for argument in arguments}
        is_used = words[:-1] == command and old in options if old.startswith("-") else words == [*command, old]
        if is_used:
            path = " ".join(["abstain", *command])
            raise AbstainError(Code.USAGE, f"`{path} {old}` is now `{path} {new}`")


def in_one_line(error: typer.TyperException) -> str:
    """The parser's error and a pointer to the command's help; empty where the parser has printed the help."""
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    where = f" (see `{context.command_path} --help`)" if context is not None else ""
    return f"{message}{where}" if message else ""
