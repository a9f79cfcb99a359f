"""`python -m studies.run NAME|all --data FOLDER | --project FOLDER`: tables of papers, on their data or a project's.

Prefect and torch are imported by the command: `--help` is instant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_cli.entry import prepare_run, run_app
from abstain_cli.terminal import console

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
FOLDER, ALL = Path(__file__).parent, "all"


@app.command()
def run_study(
    name: Annotated[str, typer.Argument(help="a study of studies/, such as nll_perturbation, or a .yaml file; or all")],
    data: Annotated[Path | None, typer.Option(help="the folder of the files that the study names")] = None,
    project: Annotated[Path | None, typer.Option(help="a project's folder, whose reviewed answers are used")] = None,
    table: Annotated[list[str] | None, typer.Option("--table", help="only this table; repeatable")] = None,
    size: Annotated[
        list[str] | None,
        typer.Option("--size", help="NAME=TRAIN,EVALUATION: answers, instead of the file's; repeatable"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder of the report; default: in ABSTAIN_HOME/studies")] = None,
) -> None:
    """Reproduce the tables of a paper, part by part; an interrupted run continues where it was."""
    if (data is None) == (project is None):
        raise AbstainError(Code.USAGE, "give --data or --project: the folder of the paper's data, or that of a project")
    if name == ALL and (table or size):
        raise AbstainError(Code.USAGE, f"--table and --size are those of a study: leave them out with {ALL}")
    sizes = dict(map(_size, size or ()))
    data, project, out = (path and path.resolve() for path in (data, project, out))
    file = Path(name).resolve() if name.endswith(".yaml") else FOLDER / f"{name}.yaml"
    with _enter(project):
        from abstain_tasks.server import server_for_run
        from studies.study import StudySource, load_study

        source, parts = StudySource(data, project), None
        if name != ALL:  # errors of one study are reported once, before a server starts
            parts = len(load_study(file, source, sizes).list_parts(table or ()))
        if out:
            _make(out)
        with server_for_run():
            from studies.flow import all_studies, study
        with _progress(parts):
            if name == ALL:
                files = sorted(map(str, FOLDER.glob("*.yaml")))
                message = f"{len(files)} studies: {all_studies(files, source, str(out) if out else None)}"
            else:
                result = study(str(file), source, table or (), sizes, str(out) if out else None)
                message = f"{result.parts} parts, {result.computed} of them computed now: {result.report}"
    console.print(message, soft_wrap=True)


@contextmanager
def _enter(project: Path | None) -> Iterator[None]:
    """Run the block in the workspace of `project`, which has its data, and with its home; by default in this folder."""
    if project is None:
        prepare_run()
        yield
        return
    from abstain_tasks.runs.workspace import open_workspace

    if not project.is_dir():
        raise AbstainError(Code.NOT_READABLE, f"--project {project} is no folder")
    with chdir(project):
        prepare_run()
        with open_workspace() as workspace, chdir(workspace.path):
            yield


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
def _progress(parts: int | None) -> Iterator[None]:
    """Show a line for each finished part, and bars of `parts` and of a part's answers; lines without a terminal."""
    from abstain_tasks.runs.progress import register_observer
    from abstain_tasks.training.pipeline import PROGRESS

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        all_parts, answers = bars.add_task("parts", total=parts), bars.add_task("answers", total=None)
        done = 0

        def observer(part: str, message: str) -> None:
            nonlocal done
            if match := PROGRESS.fullmatch(message):
                bars.update(answers, completed=int(match["done"]), total=int(match["total"]))
                if not console.is_terminal:
                    console.print(f"{part}: {message}", soft_wrap=True)
                return
            done += 1
            bars.update(all_parts, completed=done)
            console.print(f"{done}{f' of {parts}' if parts else ''}: {part}: {message}", soft_wrap=True)

        with register_observer(observer):
            yield


if __name__ == "__main__":
    run_app(app, "python -m studies.run", lambda: None)  # the environment depends on --project
