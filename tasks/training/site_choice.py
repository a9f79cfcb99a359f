"""Resolves `llm.layer: auto`: a retrain chooses once, and commits the choice to params.yaml with its metrics."""

from __future__ import annotations

import tempfile
from pathlib import Path

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from abstain.config.params import load_params
from abstain.config.yaml_model import read_yaml
from abstain.core import paths
from abstain.core.formatting import format_with_interval
from abstain.learning.evaluation.records import SiteChoice
from abstain_tasks.runs.git_commit import commit, push
from abstain_tasks.runs.progress import notify_observers
from abstain_tasks.runs.run_params import edit_params
from abstain_tasks.runs.shell import run
from abstain_tasks.runs.workspace import Workspace
from abstain_tasks.training.pipeline import report_progress

STEP = "choose_layer"


def should_choose_site(workspace: Workspace, file: Path | None = None) -> bool:
    """Check whether the parameters leave the layer to a retrain.

    Args:
        workspace: The workspace with params.yaml.
        file: YAML file with the run's own parameters, which replace those of params.yaml.

    Returns:
        Whether `llm.layer` is `auto`.
    """
    differing = read_yaml(file, "give the YAML file of the run's own parameters") if file else None
    llm = differing.get("llm") if isinstance(differing, dict) else None
    if isinstance(llm, dict) and "layer" in llm:
        return bool(llm["layer"] == "auto")
    return load_params(workspace.path / paths.PARAMS).llm.layer == "auto"


@task(task_run_name=STEP, cache_policy=NO_CACHE)
def choose_site(workspace: Workspace) -> None:
    """Choose layer and site on the training answers of the stage `dataset`, and commit both to params.yaml.

    The commit is pushed at once, so that a run that fails later does not choose again.

    Args:
        workspace: The workspace.
    """
    notify_observers(STEP, "running")
    on_line = report_progress(STEP, get_run_logger())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "choice.json"
        command = ["python", "-m", "abstain.stages.choose_site", str(file)]
        run(command, workspace.path, on_line, inherit=[workspace.lock], name="the choice of a layer")
        choice = SiteChoice.model_validate_json(file.read_bytes())
    edit_params(workspace, {"llm": {"layer": choice.layer, "site": choice.site}})
    if commit(workspace, _format_message(choice), paths.PARAMS):
        push(workspace)
    notify_observers(STEP, "ran")


def _format_message(choice: SiteChoice) -> str:
    """Format the commit message with the metrics of the choice."""
    rows = [f"layer {site.layer:3}, {site.site:8}  {format_with_interval(site, 'auroc')}" for site in choice.sites]
    return "\n".join(
        [
            f"Probe reads layer {choice.layer}, {choice.site}",
            "",
            f"Out-of-fold AUROC on {choice.reviewed} reviewed training answers, 95 % interval by groups; the",
            "shallower site wins within one standard error of the best:",
            "",
            *rows,
        ]
    )
