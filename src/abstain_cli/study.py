"""`abstain study`: the tables of a paper, re-made as a study file declares them.

Prefect and torch are imported by the command, as in `abstain_cli.app`: `--help` is instant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from abstain.core.errors import AbstainError
from abstain_cli.usage import UsageError

console = Console(markup=False, highlight=False)


def run_study(
    file: Annotated[Path, typer.Argument(help="what is to be computed, such as studies/nll_perturbation.yaml")],
    data: Annotated[Path, typer.Option(help="the folder of the files that the study names")],
    table: Annotated[list[str] | None, typer.Option("--table", help="only this table; repeatable")] = None,
    size: Annotated[
        list[str] | None,
        typer.Option("--size", help="NAME=TRAIN,EVALUATION: answers, instead of the file's; repeatable"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder of the report; default: in ABSTAIN_HOME/studies")] = None,
) -> None:
    """Re-make the tables of a paper, cell by cell; run again, it goes on where it was."""
    from abstain.study.declared import load_study
    from abstain.study.results import check_rows, file_digests
    from tasks.server import server_for_run

    sizes = dict(map(_size, size or ()))
    declared = load_study(file).resized(sizes)
    cells = len(declared.cells(table or ()))
    # What is wrong so far is said before a server is started, and not by every cell.
    file_digests(declared, data)
    check_rows(declared, data, table or ())
    if out:
        _make(out)
    with server_for_run():
        from flows.study import study as flow

    with _progress(cells):
        done = flow(str(file), str(data), table or (), sizes, str(out) if out else None)
    console.print(f"{done.cells} cells, {done.computed} of them computed now: {done.report}", soft_wrap=True)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AbstainError(f"--out {folder} cannot be a folder: {error.strerror}") from None


def _size(text: str) -> tuple[str, tuple[int, int]]:
    name, _, counts = text.partition("=")
    parts: Sequence[str] = counts.split(",")
    if not name or len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise UsageError(f"--size {text}: say NAME=TRAIN,EVALUATION, as in --size grid=300,150")
    return name, (int(parts[0]), int(parts[1]))


@contextmanager
def _progress(cells: int) -> Iterator[None]:
    """A line a finished cell, and bars of the cells and of the answers at hand; on no terminal, lines of these too."""
    from tasks.pipeline import PROGRESS
    from tasks.progress import observed_by

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        all_cells, at_hand = bars.add_task("cells", total=cells), bars.add_task("answers", total=None)
        done = 0

        def observer(cell: str, says: str) -> None:
            nonlocal done
            if match := PROGRESS.fullmatch(says):
                bars.update(at_hand, completed=int(match["done"]), total=int(match["total"]))
                if not console.is_terminal:
                    console.print(f"{cell}: {says}", soft_wrap=True)
                return
            done += 1
            bars.update(all_cells, completed=done)
            console.print(f"{done} of {cells}: {cell}: {says}", soft_wrap=True)

        with observed_by(observer):
            yield
