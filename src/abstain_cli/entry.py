"""Runs a command line: an error is one line, and a stopped run ends in order."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import typer

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.text import replace_control_characters

INTERRUPTED, TERMINATED = 130, 143
"""Exit statuses of a command ended by Ctrl-C or SIGTERM, as a shell reports them."""


def run_app(app: typer.Typer, name: str, prepare: Callable[[], None]) -> None:
    """Run a command line and end this process.

    The exit status is 2 for a usage error, 1 for any other `AbstainError`. A stopped run prints one line and ends with
    130 after Ctrl-C, with 143 after SIGTERM.

    Args:
        app: The commands.
        name: Name of the program.
        prepare: Called before the command.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # the run's processes are ended in order
    try:
        prepare()
        sys.exit(app(prog_name=name, standalone_mode=False))
    except typer.TyperException as error:
        if message := _in_one_line(error):
            print(replace_control_characters(f"error {Code.USAGE}: {message}"), file=sys.stderr)
        sys.exit(error.exit_code)
    except AbstainError as error:
        print(f"error {error.message_with_code}", file=sys.stderr)
        sys.exit(2 if error.code is Code.USAGE else 1)
    except (KeyboardInterrupt, typer.Abort):  # before the command, or at a question; else typer makes a status of it
        _print_stopped()
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        if end.code in (INTERRUPTED, TERMINATED):
            _print_stopped()
        raise


def prepare_run() -> None:
    """Set the environment of a run: caches in the home, Prefect's log kept out of the terminal."""
    from abstain_tasks.server import prepare_environment

    prepare_environment()
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")


def _print_stopped() -> None:
    print("stopped; run the same command again to go on where it was", file=sys.stderr)


def _in_one_line(error: typer.TyperException) -> str:
    """Return the parser's error with a pointer to the command's help; "" if the parser has printed the help."""
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    where = f" (see `{context.command_path} --help`)" if context is not None else ""
    return f"{message}{where}" if message else ""
