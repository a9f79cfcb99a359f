"""`abstain import`: published feedback sets become files that `abstain ingest` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

console = Console(markup=False, highlight=False)


def import_files(
    format: Annotated[str, typer.Argument(help="squad, qa_from_hf or feedbackqa")],
    files: Annotated[list[Path], typer.Argument(help="the files as they were published, also packed (.gz)")],
    output: Annotated[Path, typer.Option("--output", "-o", help="a new folder, for `abstain ingest`")],
    options: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE: an option of the format; repeatable")
    ] = None,
) -> None:
    """Turn a published set of feedback into rows and documents in a new folder (docs/importers.md)."""
    from abstain.ingest.importers.convert import convert, find_importer, parse_options

    importer = find_importer(format)
    made = convert(importer, files, parse_options(importer, options or []), output)
    console.print(
        f"{made.interactions:,} interactions, {made.feedback:,} thumbs, {made.reviews:,} reviews and "
        f"{made.documents:,} documents in {output}"
    )
    for reason, count in made.skipped.items():
        console.print(f"{count:,} records skipped: {reason}")
    console.print(f"next: abstain ingest {output}", soft_wrap=True)
