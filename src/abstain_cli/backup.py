"""`abstain backup` and `abstain restore`: the home, with all that cannot be made again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from abstain_cli.terminal import console


def backup(
    destination: Annotated[Path, typer.Argument(help="folder to make; it will hold keys and personal data")],
) -> None:
    """Back up the home (decision log, keys, git history, releases, Prefect's database) and the DVC remote."""
    from tasks.backup.backup import back_up

    manifest = back_up(destination)
    console.print(f"{len(manifest.files):,} files in {destination}", soft_wrap=True)
    _print_elsewhere(manifest.elsewhere)
    console.print(
        "left out, since it is made again: models, features, embeddings, workspace, logs, the demo", soft_wrap=True
    )


def restore(source: Annotated[Path, typer.Argument(help="folder that `abstain backup` has made")]) -> None:
    """Restore a backup into this project's home, which must be empty."""
    from tasks.backup.restore import restore as bring

    manifest = bring(source)
    console.print(f"{len(manifest.files):,} files as of {manifest.made_at}; see `abstain status`", soft_wrap=True)
    _print_elsewhere(manifest.elsewhere)


def _print_elsewhere(lines: tuple[str, ...]) -> None:
    for line in lines:
        console.print(f"not in the backup: {line}", soft_wrap=True)
