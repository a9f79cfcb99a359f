"""Commands as subprocesses: one environment, output streamed line by line, errors in one line, no orphans.

A command has a supervisor (supervisor.py), so that it ends, with all of its descendants, when it is interrupted here,
when the run stops, and however this process dies. Git has none: it may prompt for a passphrase, which only the
terminal's own foreground commands can do, and it ends soon.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from abstain.config.settings import load_settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError, parse_error_line
from abstain.core.filesystem import redact_urls
from abstain_tasks.runs.stopping import raise_if_stopped, stop_with

SUPERVISOR = [sys.executable, "-I", "-S", str(Path(__file__).with_name("supervisor.py"))]

QUIET = {
    # Threads that wait for each other spin for microseconds, then sleep: longer would burn cores on a busy machine, and
    # to sleep at once makes a beam search take half as long again.
    "GOMP_SPINCOUNT": "3000",
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "GX_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TQDM_DISABLE": "1",  # bars of libraries, which would be lines of the log
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # Prefect's newer UI makes the browser request its configuration from amplitude.com in spite of the settings above.
    "PREFECT_SERVER_UI_V2_ENABLED": "false",
}
"""The environment of this process and of all that it starts: no telemetry, and no work for nothing."""

IDENTITY = {"NAME": "Abstain", "EMAIL": "abstain@localhost"}
"""The author of commits if git has none configured, as on a fresh machine or in a worker."""


REFUSED_PUSH = re.compile(r" ! \[(remote )?rejected\] .*\((?!atomic push fail)")
"""A line of git about a branch or tag that was refused itself, not because another one of the same push was."""


def environment(cwd: Path) -> dict[str, str]:
    """Build the environment of a command: its own source first, this interpreter's tools, no telemetry.

    Args:
        cwd: Folder of the command.

    Returns:
        The environment variables.
    """
    env = os.environ | QUIET
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    env["PYTHONPATH"] = os.pathsep.join([str(cwd / "src"), str(cwd)])
    env["PYTHONUNBUFFERED"] = "1"
    settings = load_settings()
    env["ABSTAIN_HOME"] = str(settings.home.resolve())
    if settings.features_url:
        env["ABSTAIN_FEATURES"] = settings.features
    # A user's own git settings may sign, or refuse to merge: a run has no passphrase and no editor.
    git_config = {"commit.gpgsign": "false", "tag.gpgsign": "false", "merge.ff": "true", "core.editor": "true"}
    if settings.origin and settings.origin_access:  # in a URL it would be in process lists and .git/config
        git_config[f"http.{settings.origin}.extraHeader"] = f"Authorization: {settings.origin_access}"
    env["GIT_CONFIG_COUNT"] = str(len(git_config))
    for number, (key, value) in enumerate(git_config.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    identity = subprocess.run(["git", "config", "user.email"], cwd=cwd, capture_output=True, check=False)
    if identity.returncode != 0:
        for role in ("AUTHOR", "COMMITTER"):
            env |= {f"GIT_{role}_{part}": value for part, value in IDENTITY.items()}
    return env


class CommandFailed(AbstainError):
    """A command failed; `reason` is the line of its output with the reason."""

    def __init__(self, code: Code, command: str, reason: str) -> None:
        super().__init__(code, f"{command} failed: {reason}")
        self.reason = reason


def run(
    command: Sequence[str],
    cwd: Path,
    on_line: Callable[[str], None] | None = None,
    inherit: Sequence[int] = (),
    name: str | None = None,
) -> str:
    """Run a command and return its output, stdout and stderr together.

    Args:
        command: The command.
        cwd: Its folder.
        on_line: Called with each line as it arrives.
        inherit: File descriptors that the command keeps open.
        name: Name of the command in errors; by default the command itself.

    Returns:
        The output.

    Raises:
        CommandFailed: The command fails; the error has the line with the reason and that line's code.
        AbstainError: The command is not installed.
        Stopped: The run is stopped.
    """
    returncode, lines = _execute(command, cwd, on_line, inherit)
    if returncode != 0:
        code, reason = _find_reason(lines)
        label = name or f"`{' '.join(command)}`"
        raise CommandFailed(code, redact_urls(label), redact_urls(reason))
    return "\n".join(lines)


def git(cwd: Path, *arguments: str) -> str:
    """Run `git ARGUMENTS` in a folder.

    Args:
        cwd: The folder.
        *arguments: Arguments of git.

    Returns:
        The output.
    """
    return run(["git", *arguments], cwd)


def succeeds(cwd: Path, *command: str, inherit: Sequence[int] = ()) -> bool:
    """Run a command and ignore its output.

    Args:
        cwd: Folder of the command.
        *command: The command.
        inherit: File descriptors that it keeps open.

    Returns:
        Whether the exit status is 0.
    """
    return _execute(command, cwd, None, inherit)[0] == 0


def _execute(
    command: Sequence[str], cwd: Path, on_line: Callable[[str], None] | None, inherit: Sequence[int]
) -> tuple[int, list[str]]:
    """Return the exit status and the output lines of `command`."""
    env = environment(cwd)
    if shutil.which(command[0], path=env["PATH"]) is None:
        raise AbstainError(
            Code.NO_PACKAGE, f"`{command[0]}` is not installed, or not on PATH: install it and try again"
        )
    raise_if_stopped()
    is_supervised = command[0] != "git"
    process = subprocess.Popen(
        [*SUPERVISOR, *command] if is_supervised else command,
        cwd=cwd,
        env=env,
        stdin=subprocess.PIPE if is_supervised else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=inherit,
        start_new_session=is_supervised,  # Ctrl-C is for us: the supervisor ends the command in good order
    )
    end = process.stdin.close if process.stdin else process.terminate
    lines: list[str] = []
    assert process.stdout is not None
    try:
        with stop_with(end):
            for line in process.stdout:
                raise_if_stopped()  # the outcome of an ended command is ignored
                lines.append(line.rstrip("\n"))
                if on_line:
                    on_line(lines[-1])
            process.wait()
    except BaseException:
        end()
        raise
    finally:
        process.wait()
        for pipe in filter(None, (process.stdin, process.stdout)):
            pipe.close()
    return process.returncode, lines


def _find_reason(lines: list[str]) -> tuple[Code, str]:
    """Find the most informative line of a failed command.

    That is our own error with its code; else why a push was rejected, with the first words of the remote; else any
    other error; else the last line.
    """
    for line in lines:
        if line.startswith("error ") and (error := parse_error_line(line)):
            return error.code, error.message
    for line in lines:
        if REFUSED_PUSH.match(line):
            words = [line.removeprefix("remote:") for line in lines if line.startswith("remote:")]
            return Code.FAILED_STEP, " ".join(" ".join([line.removeprefix(" ! "), *words[:1]]).split())
    for start in ("error: ", "ERROR: ", "fatal: "):
        for line in lines:
            if line.startswith(start):
                return Code.FAILED_STEP, line.removeprefix(start)
    return Code.FAILED_STEP, lines[-1] if lines else "it printed nothing"
