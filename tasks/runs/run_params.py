"""Values that a run writes to params.yaml: its own, from another file, or those that are decided once.

The parameters of one run are committed in the run's workspace, so that DVC sees every value. The origin's params.yaml
stays as it is: only the bundle and the results of a promoted version keep them (tasks/release/promotion.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from abstain.config.params import Params, require_keys
from abstain.config.yaml_editor import parse_yaml, update_yaml
from abstain.config.yaml_model import read_yaml, validate_yaml
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain_tasks.runs.git_commit import commit
from abstain_tasks.runs.workspace import Workspace


def write_params(workspace: Workspace, file: Path) -> None:
    """Write params.yaml in the workspace with the keys of `file` in place of its own; comments stay.

    A section takes over the keys that `file` gives; a list, like any other value, is replaced in full.

    Args:
        workspace: The workspace.
        file: YAML file with the parameters that differ.

    Raises:
        AbstainError: `file` is missing or no mapping, or the result is invalid; the message names the key.
    """
    differing = read_yaml(file, "give the YAML file of the parameters that differ from params.yaml")
    if not isinstance(differing, dict) or not differing:
        raise AbstainError(
            Code.BAD_SETTING,
            f"{file} holds no parameters: give the keys that differ from params.yaml, in their sections",
        )
    edit_params(workspace, parse_yaml(file.read_text(encoding="utf-8")), file)


def edit_params(workspace: Workspace, values: dict[str, Any], source: Path = paths.PARAMS) -> None:
    """Write values to params.yaml in the workspace; comments and layout stay.

    Args:
        workspace: The workspace.
        values: Section -> key -> value.
        source: The file that an error names.

    Raises:
        AbstainError: The result is invalid; nothing is written then.
    """
    target = workspace.path / paths.PARAMS
    text = update_yaml(target.read_text(encoding="utf-8"), values)
    content = yaml.safe_load(text)
    require_keys(content, paths.PARAMS)
    validate_yaml(content, source, Params)
    write_atomically(target, text.encode())


def commit_params(workspace: Workspace, file: Path) -> str:
    """Write a run's own parameters and commit them in the workspace.

    Args:
        workspace: The workspace.
        file: YAML file with the parameters that differ.

    Returns:
        The commit before.
    """
    base_commit = workspace.git("rev-parse", "HEAD").strip()
    write_params(workspace, file)
    commit(workspace, f"Parameters of one run, from {file.name}", paths.PARAMS)
    return base_commit


def restore_params(workspace: Workspace, base_commit: str) -> None:
    """Restore the content of params.yaml at a commit; the caller commits it.

    Args:
        workspace: The workspace.
        base_commit: The commit.
    """
    workspace.git("checkout", "-q", base_commit, "--", str(paths.PARAMS))


def discard_commits(workspace: Workspace, base_commit: str) -> None:
    """Drop the run's commits from the history; its results stay in the cache of DVC.

    Args:
        workspace: The workspace.
        base_commit: The commit to return to.
    """
    workspace.git("reset", "-q", "--hard", base_commit)
