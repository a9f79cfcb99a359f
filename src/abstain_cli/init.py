"""`abstain init`: a user's own project in place of the sample's, from options, questions or defaults.

abstain init                                       on a terminal: asks; else every default holds
abstain init --model Qwen/Qwen3-8B --remote s3://team-abstain/dvc
abstain init --upgrade                             after the merge of a newer release
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

if TYPE_CHECKING:
    from abstain_tasks.projects.new_project import Choices


def init(
    model: Annotated[
        str | None, typer.Option(help="the base model: embedded, a Hugging Face id[@revision], or a folder")
    ] = None,
    layout: Annotated[str | None, typer.Option(help="its prompt layout")] = None,
    target: Annotated[
        float | None, typer.Option(min=0, max=1, help="largest share of all answers to be shown and incorrect")
    ] = None,
    on_infeasible: Annotated[
        str | None,
        typer.Option(metavar="heuristic|fail", help="a version without a guarantee: live and marked, or rejected"),
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="PATH|URL", help="where `abstain ingest` finds feedback: a folder or bucket")
    ] = None,
    remote: Annotated[
        str | None, typer.Option(metavar="PATH|URL", help="the DVC remote: a folder or bucket for data and versions")
    ] = None,
    upgrade: Annotated[
        bool,
        typer.Option("--upgrade", help="add the parameters that a merged release has brought"),
    ] = False,
) -> None:
    """Replace the sample by an empty project of your own, in one commit; on a terminal, ask what no option gives."""
    from abstain_tasks.projects.new_project import Choices, list_sample_versions, start_project, upgrade_project
    from abstain_tasks.runs.workspace import project_root

    choices = Choices(model, layout, target, on_infeasible, source, remote)
    if upgrade:
        if choices != Choices():
            raise AbstainError(Code.USAGE, "--upgrade keeps every value: give it without the other options")
        if added := upgrade_project():
            print(*(f"added: {name}" for name in added), "`abstain plan` says what a retrain costs now", sep="\n")
        else:
            print("params.yaml has the parameters of this release: unchanged")
        return
    if sys.stdin.isatty() and sys.stdout.isatty() and list_sample_versions() is not None:
        choices = _ask(choices)
    if not start_project(_resolve_folders(choices)):
        print("the project was started before: nothing was changed")
        return
    print(f"started in {project_root()}: no rows, no versions; params.yaml, sources.yaml, .dvc/config are committed")
    print("next: `abstain ingest FILE`, then `abstain retrain`")


def _ask(choices: Choices) -> Choices:
    """Complete `choices` with answers on the terminal."""
    import yaml

    from abstain.config.template import read_template
    from abstain_tasks.projects.new_project import Choices

    params = yaml.safe_load(read_template("params.yaml"))
    questions: dict[str, tuple[str, Any]] = {
        "model": ("Base model (embedded, Hugging Face id, or folder)", params["llm"]["model"]),
        "layout": ("Prompt layout", params["llm"]["layout"]),
        "target": ("Largest share of all answers to be shown and incorrect", params["threshold"]["target"]),
        "on_infeasible": ("Versions without a guarantee (heuristic: live, fail: rejected)", "heuristic"),
        "source": ("Folder or bucket of feedback", "inbox"),
        "remote": ("DVC remote (folder or bucket)", "local"),
    }
    answers = {}
    for name, (question, default) in questions.items():
        value = getattr(choices, name)
        answer = value if value is not None else typer.prompt(question, default=default)
        answers[name] = None if answer == default else answer
    return Choices(**answers)


def _resolve_folders(choices: Choices) -> Choices:
    """Make the folders in `choices` absolute."""
    from dataclasses import replace

    def place(folder: str | None) -> str | None:
        return str(Path(folder).expanduser().resolve()) if folder and "://" not in folder else folder

    model = place(choices.model) if choices.model and Path(choices.model).is_dir() else choices.model
    return replace(choices, model=model, source=place(choices.source), remote=place(choices.remote))
