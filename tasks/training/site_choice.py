"""What `llm.layer: auto` becomes: a choice made once by a retrain, and committed to params.yaml with its figures."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from abstain.config.params import load_params
from abstain.config.yaml_model import read_yaml
from abstain.core import paths
from tasks.runs.git_commit import commit, push
from tasks.runs.progress import notify_observers
from tasks.runs.run_params import edit_params
from tasks.runs.shell import run
from tasks.runs.workspace import Workspace
from tasks.training.pipeline import report_progress

STEP = "choose_layer"


def wants_choice(workspace: Workspace, file: Path | None = None) -> bool:
    """Whether params.yaml, with the parameters of `file` in place of its own, leaves the layer to a retrain."""
    differing = read_yaml(file, "give the YAML file of the run's own parameters") if file else None
    llm = differing.get("llm") if isinstance(differing, dict) else None
    if isinstance(llm, dict) and "layer" in llm:
        return bool(llm["layer"] == "auto")
    return load_params(workspace.path / paths.PARAMS).llm.layer == "auto"


@task(task_run_name=STEP, cache_policy=NO_CACHE)
def choose_site(workspace: Workspace) -> None:
    """Choose layer and site on the training answers of the stage `dataset`, and commit both to params.yaml.

    Pushed at once: a run that fails later does not choose again.
    """
    notify_observers(STEP, "running")
    on_line = report_progress(STEP, get_run_logger())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "choice.json"
        command = ["python", "-m", "abstain.stages.choose_site", str(file)]
        run(command, workspace.path, on_line, inherit=[workspace.lock], name="the choice of a layer")
        choice = json.loads(file.read_text(encoding="utf-8"))
    edit_params(workspace, {"llm": {"layer": choice["layer"], "site": choice["site"]}})
    if commit(workspace, _message(choice), paths.PARAMS):
        push(workspace)
    notify_observers(STEP, "ran")


def _message(choice: dict[str, Any]) -> str:
    """The figures that the choice was made by."""
    rows = [
        f"layer {at['layer']:3}, {at['site']:8}  {at['auroc']:.3f} ({at['auroc_low']:.3f} to {at['auroc_high']:.3f})"
        for at in choice["sites"]
    ]
    return "\n".join(
        [
            f"Probe reads layer {choice['layer']}, {choice['site']}",
            "",
            f"Out-of-fold AUROC on {choice['reviewed']} reviewed training answers, 95 % interval by groups; the",
            "shallower site wins within one standard error of the best:",
            "",
            *rows,
        ]
    )
