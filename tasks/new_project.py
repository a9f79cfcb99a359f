"""A project of one's own, in place of the sample's: `abstain init`, and what a newer release brings to it.

Notes:

* A commit is built in a worktree of its own and pushed before the clone is moved to it in one step: whatever fails, the
  clone and the origin stay as they were.
* Only what is of the sample is replaced. A clone whose parameters, rows or versions are a user's is refused, by file.
* A newer release is merged by `git merge`. Git merges the state of a project by `MERGE`: of a release, nothing of it is
  taken; of a branch of the project, what git merges.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from abstain.config.params import Params
from abstain.config.settings import Settings, load_settings
from abstain.config.template import template
from abstain.config.yaml_editor import add_missing, edit
from abstain.config.yaml_model import check
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.ingest.sources.config import load_sources
from abstain.release.registry import Registry, parse_registry, tag_of
from abstain.sample.shipped import DATA_POINTER, DVC_CONFIG, MADE_BY_RUNS, MARK, digest_of, shipped_files
from tasks.shell import git, succeeds
from tasks.workspace import BRANCH, SHIPPED_REMOTE, alone, project_root

STATE = (DATA_POINTER, paths.REGISTRY, paths.PARAMS, paths.SOURCES, DVC_CONFIG)
MERGE = (
    f"grep -qE '^(desc: .|# )As shipped|\"history\": \\[\\]|{SHIPPED_REMOTE}' %B"
    " || git merge-file --marker-size=%L %A %O %B"
)
"""The merge driver: theirs (%B) is as shipped where it is a release's, and ours (%A) stays."""
OF_THE_SAMPLE = ("origin.git", "workspace", "releases")
"""Parts of the home that hold what runs made of the sample."""


@dataclass(frozen=True)
class Choices:
    """What `abstain init` asks; None: as in the template."""

    model: str | None = None
    layout: str | None = None
    target: float | None = None
    on_infeasible: str | None = None
    source: str | None = None
    remote: str | None = None

    def files(self) -> dict[Path, str]:
        """The state of the new project. Raises `AbstainError` naming an invalid value."""
        values = {
            "llm": {"model": self.model, "layout": self.layout},
            "threshold": {"target": self.target, "on_infeasible": self.on_infeasible},
        }
        given = {
            name: {key: value for key, value in keys.items() if value is not None} for name, keys in values.items()
        }
        params = edit(template("params.yaml"), {name: keys for name, keys in given.items() if keys})
        check(yaml.safe_load(params), paths.PARAMS, Params)
        sources, config = template("sources.yaml"), template("dvc.config")
        if self.source is not None:
            sources = sources.replace("url: inbox ", f"url: {json.dumps(self.source)} ")
        if self.remote is not None:
            config = config.replace(SHIPPED_REMOTE, f"url = {self.remote}")
        return {
            DATA_POINTER: template("data.yaml"),
            paths.REGISTRY: Registry().to_json(),
            paths.PARAMS: params,
            paths.SOURCES: sources,
            DVC_CONFIG: config,
        }


def start_project(choices: Choices) -> str:
    """Replace the sample's state by that of a new project, in one commit of this clone, which the origin gets, too.

    Returns what was done; where the project was started before, nothing is. Raises `AbstainError` naming the file that
    holds something of one's own, the value that is not valid, the model that cannot be loaded, or the origin that
    cannot be pushed to; nothing is changed then.
    """
    root, settings = project_root(), load_settings()
    if _is_started(root, "HEAD"):
        _configure_merges(root)
        if choices != Choices():
            raise AbstainError(
                Code.USAGE, f"params.yaml is of a project that was started before: edit {_where(root, paths.PARAMS)}"
            )
        return "this project was started before: nothing was changed"
    home = settings.home.resolve()
    with alone(home / "workspace.lock"):
        versions = _require_sample(root, "HEAD", _where)
        if settings.origin is None and (home / "origin.git").is_dir():
            versions += _require_sample(home / "origin.git", BRANCH, _where)
        files: dict[Path, str | None] = {**choices.files(), **dict.fromkeys(MADE_BY_RUNS)}
        with _commit(root, settings, files, "Start a project in place of the sample's", versions) as tree:
            load_sources(tree / paths.SOURCES, tree.parent)
            _require_model(tree, settings)
    _configure_merges(root)
    return "started: data, registry and versions are empty; params.yaml, sources.yaml and .dvc/config are committed"


def upgrade_project() -> list[str]:
    """Add the keys that a merged release has brought to params.yaml, in one commit; returns their names.

    Raises `AbstainError` where the file has changes that are not committed, or a key that is not valid.
    """
    root, settings = project_root(), load_settings()
    file = root / paths.PARAMS
    _require_committed(root, [paths.PARAMS])
    text, added = add_missing(file.read_text(encoding="utf-8"), template("params.yaml"))
    check(yaml.safe_load(text), paths.PARAMS, Params)
    if added:
        message = "Parameters of the new release\n\n" + "\n".join(added)
        with alone(settings.home.resolve() / "workspace.lock"), _commit(root, settings, {paths.PARAMS: text}, message):
            pass
    _configure_merges(root)
    return added


def _is_started(repository: Path, revision: str) -> bool:
    """Whether `abstain init` has written the parameters and the data there."""
    pointer, params = _text(repository, revision, DATA_POINTER), _text(repository, revision, paths.PARAMS)
    return digest_of(pointer) != digest_of(shipped_files()[DATA_POINTER]) and not params.startswith(MARK)


def _require_sample(repository: Path, revision: str) -> list[str]:
    """The versions of the sample there. Raises `AbstainError` naming a file that holds anything else."""
    shipped = shipped_files()
    sample = digest_of(shipped[DATA_POINTER])
    if digest_of(_text(repository, revision, DATA_POINTER)) != sample:
        raise _own(repository, DATA_POINTER, "records rows of your own")
    versions = []
    for event in parse_registry(_text(repository, revision, paths.REGISTRY)).history:
        pointer = _text(repository, f"refs/tags/{tag_of(event.version)}", DATA_POINTER)
        if not pointer or digest_of(pointer) != sample:
            raise _own(repository, paths.REGISTRY, f"records a promotion of your own ({event.version})")
        versions.append(event.version)
    for file in (paths.PARAMS, paths.SOURCES, DVC_CONFIG):
        if _text(repository, revision, file) != shipped[file]:
            raise _own(repository, file, "was edited")
    return versions


def _own(repository: Path, file: Path, what: str) -> AbstainError:
    return AbstainError(
        Code.OWN_PROJECT,
        f"{repository / file} {what}, which `abstain init` would replace: run it in a fresh clone, and bring there what "
        "you want to keep",
    )


def _text(repository: Path, revision: str, file: Path) -> str:
    """The committed text of a file; empty where there is none."""
    if not succeeds(repository, "git", "cat-file", "-e", f"{revision}:{file}"):
        return ""
    return git(repository, "show", f"{revision}:{file}") + "\n"
