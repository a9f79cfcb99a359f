"""`python -m studies.run NAME --data FOLDER`: reproduce the tables of a paper, as declared in `studies/NAME.yaml`.

Prefect and torch are imported by the command: `--help` is instant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_cli.entry import prepare_run, run_app
from abstain_cli.terminal import console

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
FOLDER = Path(__file__).parent


@app.command()
def run_study(
    name: Annotated[str, typer.Argument(help="a study of studies/, such as nll_perturbation, or a .yaml file")],
    data: Annotated[Path, typer.Option(help="the folder of the files that the study names")],
    table: Annotated[list[str] | None, typer.Option("--table", help="only this table; repeatable")] = None,
    size: Annotated[
        list[str] | None,
        typer.Option("--size", help="NAME=TRAIN,EVALUATION: answers, instead of the file's; repeatable"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder of the report; default: in ABSTAIN_HOME/studies")] = None,
) -> None:
    """Reproduce the tables of a paper, cell by cell; an interrupted run continues where it was."""
    from abstain_tasks.server import server_for_run
    from studies.declared import load_experiment
    from studies.results import check_rows, file_digests

    file = Path(name) if name.endswith(".yaml") else FOLDER / f"{name}.yaml"
    sizes = dict(map(_size, size or ()))
    config = load_experiment(file).resize(sizes)
    cells = len(config.list_cells(table or ()))
    # Errors of the files are reported once, before a server starts.
    file_digests(config, data)
    check_rows(config, data, table or ())
    if out:
        _make(out)
    with server_for_run():
        from studies.flow import study as flow

    with _progress(cells):
        result = flow(str(file), str(data), table or (), sizes, str(out) if out else None)
    console.print(f"{result.cells} cells, {result.computed} of them computed now: {result.report}", soft_wrap=True)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AbstainError(Code.NOT_WRITABLE, f"--out {folder} cannot be a folder: {error.strerror}") from None


def _size(text: str) -> tuple[str, tuple[int, int]]:
    name, _, counts = text.partition("=")
    parts: Sequence[str] = counts.split(",")
    if not name or len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise AbstainError(Code.USAGE, f"--size {text}: give NAME=TRAIN,EVALUATION, as in --size grid=300,150")
    return name, (int(parts[0]), int(parts[1]))


@contextmanager
def _progress(cells: int) -> Iterator[None]:
    """Show a line for each finished cell, and bars of cells and of a cell's answers; lines without a terminal."""
    from abstain_tasks.runs.progress import register_observer
    from abstain_tasks.training.pipeline import PROGRESS

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        all_cells, answers = bars.add_task("cells", total=cells), bars.add_task("answers", total=None)
        done = 0

        def observer(cell: str, message: str) -> None:
            nonlocal done
            if match := PROGRESS.fullmatch(message):
                bars.update(answers, completed=int(match["done"]), total=int(match["total"]))
                if not console.is_terminal:
                    console.print(f"{cell}: {message}", soft_wrap=True)
                return
            done += 1
            bars.update(all_cells, completed=done)
            console.print(f"{done} of {cells}: {cell}: {message}", soft_wrap=True)

        with register_observer(observer):
            yield


if __name__ == "__main__":
    run_app(app, "python -m studies.run", prepare_run)
