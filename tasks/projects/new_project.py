"""A user's own project in place of the sample's: `abstain init`, and what a newer release brings to it.

Notes:

* A commit is built in a separate worktree and pushed before the clone is moved to it in one step. If anything fails,
  the clone and the origin stay as they were.
* Only the sample's state is replaced. A clone whose parameters, rows or versions are a user's is rejected, naming the
  file.
* A newer release is merged by `git merge`. Git merges the state of a project by `MERGE`: nothing of a release's state
  is taken; a branch of the project is merged as usual.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from abstain.config.params import Params, load_params
from abstain.config.settings import Settings, load_settings
from abstain.config.template import read_template
from abstain.config.yaml_editor import add_missing_keys, update_yaml
from abstain.config.yaml_model import read_yaml, validate_yaml
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import create_home, write_atomically
from abstain.data.store.dataset import create_empty_store
from abstain.ingest.sources.config import load_sources
from abstain.release.registry import Registry, make_version_tag, parse_registry
from abstain.sample.shipped import DATA_POINTER, DVC_CONFIG, MADE_BY_RUNS, MARK, make_shipped_files, parse_data_digest
from abstain_tasks.projects.base_model import require_base_model
from abstain_tasks.runs.shell import CommandFailed, git, succeeds
from abstain_tasks.runs.workspace import BRANCH, SHIPPED_REMOTE, hold_lock, project_root

STATE = (DATA_POINTER, paths.REGISTRY, paths.PARAMS, paths.SOURCES, DVC_CONFIG)
MERGE = (
    f"grep -qE '^(desc: .|# )As shipped|\"history\": \\[\\]|{SHIPPED_REMOTE}' %B"
    " || git merge-file --marker-size=%L %A %O %B"
)
"""The merge driver: if theirs (%B) is as shipped, it is a release's, and ours (%A) stays."""
SAMPLE_PARTS = ("origin.git", "workspace", "releases")
"""Parts of the home that hold what runs made of the sample."""


@dataclass(frozen=True)
class Choices:
    """The answers to the questions of `abstain init`; None selects the template's value.

    Attributes:
        model: The base model.
        layout: Its prompt layout.
        target: Target of the threshold.
        on_infeasible: What happens to a version without a guarantee.
        source: Folder or bucket of feedback.
        remote: The DVC remote.
    """

    model: str | None = None
    layout: str | None = None
    target: float | None = None
    on_infeasible: str | None = None
    source: str | None = None
    remote: str | None = None

    def files(self) -> dict[Path, str]:
        """Build the state of the new project.

        Returns:
            Path -> content.

        Raises:
            AbstainError: A value is invalid; the message names it.
        """
        llm = {"model": self.model, "layout": self.layout}
        threshold = {"target": self.target, "on_infeasible": self.on_infeasible}
        params = update_yaml(
            read_template("params.yaml"), {"llm": _drop_missing(llm), "threshold": _drop_missing(threshold)}
        )
        validate_yaml(yaml.safe_load(params), paths.PARAMS, Params)
        sources, config = read_template("sources.yaml"), read_template("dvc.config")
        if self.source is not None:
            sources = update_yaml(sources, {"sources": {0: {"url": self.source}}})
        if self.remote is not None:
            config = config.replace(SHIPPED_REMOTE, f"url = {self.remote}")
        return {
            DATA_POINTER: read_template("data.yaml"),
            paths.REGISTRY: Registry().to_json(),
            paths.PARAMS: params,
            paths.SOURCES: sources,
            DVC_CONFIG: config,
        }


def _drop_missing(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def start_project(choices: Choices) -> bool:
    """Replace the sample's state by that of a new project, in one commit of this clone that is pushed to the origin.

    Args:
        choices: The answers.

    Returns:
        Whether the project was started; False if it was started before.

    Raises:
        AbstainError: A file holds a user's own content, a value is invalid, the model cannot be read with, or the
            origin cannot be pushed to. Nothing is changed then.
    """
    root, settings = project_root(), load_settings()
    with hold_lock(settings.home.resolve() / "workspace.lock"):
        versions = list_sample_versions()
        if versions is None:
            if choices != Choices():
                raise AbstainError(Code.USAGE, f"the project was started before: edit {root / paths.PARAMS} instead")
            _configure_merges(root)
            return False
        files: dict[Path, str | None] = {**choices.files(), **dict.fromkeys(MADE_BY_RUNS)}
        with _commit(root, settings, files, "Start a project in place of the sample's", versions) as tree:
            load_sources(tree / paths.SOURCES, tree.parent)
            require_base_model(load_params(tree / paths.PARAMS).llm, settings)
    _configure_merges(root)
    if not (root / paths.DATA).exists():
        create_empty_store(root / paths.DATA)  # for a `dvc repro` in the clone
    return True


def list_sample_versions() -> list[str] | None:
    """List the versions that runs made of the sample in this clone.

    Returns:
        The versions; None if `abstain init` has started a project in this clone.

    Raises:
        AbstainError: A file holds a user's own content; the message names it.
    """
    root, settings = project_root(), load_settings()
    is_sample = _read_digest(root, "HEAD") == parse_data_digest(make_shipped_files()[DATA_POINTER])
    if not is_sample and not _read_text(root, "HEAD", paths.PARAMS).startswith(MARK):
        return None
    _require_committed(root, STATE)
    versions = _require_sample(root, "HEAD")
    bare = settings.home.resolve() / "origin.git"
    if settings.origin is None and bare.is_dir():
        versions += _require_sample(bare, BRANCH)
    return versions


def upgrade_project() -> list[str]:
    """Add the keys that a merged release has brought to params.yaml, in one commit.

    Returns:
        Their names, as `section.key` or a whole `section`.

    Raises:
        AbstainError: The file has uncommitted changes or an invalid key, or the origin has commits that this clone
            lacks.
    """
    root, settings = project_root(), load_settings()
    _require_committed(root, [paths.PARAMS])
    file = root / paths.PARAMS
    if not isinstance(content := read_yaml(file, "restore it with `git checkout HEAD~ -- params.yaml`"), dict):
        validate_yaml(content, paths.PARAMS, Params)
    text, added = add_missing_keys(file.read_text(encoding="utf-8"), read_template(paths.PARAMS.name))
    validate_yaml(yaml.safe_load(text), paths.PARAMS, Params)
    home = settings.home.resolve()
    if added:
        bare = home / "origin.git"
        if settings.origin is None and bare.is_dir():
            head = git(bare, "rev-parse", BRANCH).strip()
            if not succeeds(root, "git", "merge-base", "--is-ancestor", head, "HEAD"):
                raise AbstainError(
                    Code.NOT_PUBLISHED,
                    f"runs have committed what this clone lacks: `git pull {bare} {BRANCH}` first, then run it again",
                )
        message = "Parameters of the new release\n\n" + "\n".join(f"added: {name}" for name in added)
        with hold_lock(home / "workspace.lock"), _commit(root, settings, {paths.PARAMS: text}, message):
            pass
    _configure_merges(root)
    return added


def _require_committed(root: Path, files: Sequence[Path]) -> None:
    changed = git(root, "status", "--porcelain", "--", *map(str, files)).splitlines()
    if changed:
        raise AbstainError(
            Code.NO_CHECKOUT, f"{root / changed[0][3:]} has changes that are not committed: commit or undo them"
        )


def _require_sample(repository: Path, revision: str) -> list[str]:
    """Return the versions of the sample at a revision. Raises `AbstainError` naming a file that holds anything else."""
    shipped = make_shipped_files()
    sample = parse_data_digest(shipped[DATA_POINTER])
    if _read_digest(repository, revision) != sample:
        raise _make_file_error(repository, DATA_POINTER, "records other rows than the sample's")
    versions = []
    for event in parse_registry(_read_text(repository, revision, paths.REGISTRY)).history:
        if _read_digest(repository, f"refs/tags/{make_version_tag(event.version)}") != sample:
            raise _make_file_error(repository, paths.REGISTRY, f"records a promotion on other rows ({event.version})")
        versions.append(event.version)
    for file in (paths.PARAMS, paths.SOURCES, DVC_CONFIG):
        if _read_text(repository, revision, file) != shipped[file]:
            raise _make_file_error(repository, file, "was edited")
    return versions


def _make_file_error(repository: Path, file: Path, what: str) -> AbstainError:
    return AbstainError(
        Code.NOT_WRITABLE,
        f"{repository / file} {what}, and `abstain init` would replace it: run it in a fresh clone",
    )


def _read_digest(repository: Path, revision: str) -> str:
    """Return the digest of a commit's data; "" if it records none."""
    pointer = _read_text(repository, revision, DATA_POINTER)
    return parse_data_digest(pointer) if pointer else ""


def _read_text(repository: Path, revision: str, file: Path) -> str:
    """Return the committed text of a file; "" if there is none."""
    name = f"{revision}:{file}"
    return git(repository, "show", name) + "\n" if succeeds(repository, "git", "cat-file", "-e", name) else ""


@contextmanager
def _commit(
    root: Path, settings: Settings, files: Mapping[Path, str | None], message: str, versions: Sequence[str] = ()
) -> Iterator[Path]:
    """Commit `files` (None removes one) on top of this clone's head, once the block has checked them.

    The block gets the folder with the tree to be committed. The tags of `versions` are deleted, here and at the origin.
    If the block raises an error, nothing is changed.
    """
    home = settings.home.resolve()
    create_home(home)
    scratch = Path(tempfile.mkdtemp(dir=home, prefix=".commit-"))
    tree = scratch / "tree"
    try:
        git(root, "worktree", "add", "-q", "--detach", str(tree), "HEAD")
        for name, text in files.items():
            if text is not None:
                write_atomically(tree / name, text.encode())
            elif (tree / name).exists():
                git(tree, "rm", "-q", "-r", str(name))
        yield tree
        git(tree, "add", "--all")
        git(tree, "commit", "-q", "-m", message)
        commit = git(tree, "rev-parse", "HEAD").strip()
        tags = [make_version_tag(version) for version in versions]
        if settings.origin is not None:
            _push(root, settings.origin, commit, tags)
        with _move_aside(home, SAMPLE_PARTS if DATA_POINTER in files else (), scratch):
            git(root, "merge", "-q", "--ff-only", commit)
        for tag in set(tags) & set(git(root, "tag", "--list").split()):
            git(root, "tag", "--delete", tag)
    finally:
        if tree.is_dir():
            git(root, "worktree", "remove", "--force", str(tree))
        shutil.rmtree(scratch, ignore_errors=True)


def _push(root: Path, origin: str, commit: str, tags: Sequence[str]) -> None:
    try:
        remote_refs = git(root, "ls-remote", "--tags", "--refs", origin).split() if tags else []
        deletions = [f":refs/tags/{tag}" for tag in tags if f"refs/tags/{tag}" in remote_refs]
        git(root, "push", "-q", "--atomic", origin, f"{commit}:refs/heads/{BRANCH}", *deletions)
    except CommandFailed as error:
        raise AbstainError(
            Code.NOT_PUBLISHED,
            f"ABSTAIN_ORIGIN cannot be pushed to ({error.reason}), and nothing was changed: correct its URL or your "
            "access, or `git pull` what this clone lacks",
        ) from None


@contextmanager
def _move_aside(home: Path, names: Sequence[str], aside: Path) -> Iterator[None]:
    """Run the block while the parts `names` of the home lie in the folder `aside`; they return only if it fails."""
    moved = [name for name in names if (home / name).exists()]
    for name in moved:
        (home / name).rename(aside / name)
    try:
        yield
    except BaseException:
        for name in moved:
            (aside / name).rename(home / name)
        raise


def _configure_merges(root: Path) -> None:
    """Configure the merge driver that .gitattributes names, in this clone."""
    git(root, "config", "merge.abstain.name", "keep the project's own state when a release is merged")
    git(root, "config", "merge.abstain.driver", MERGE)
