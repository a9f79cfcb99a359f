"""A project of one's own, in place of the sample's: `abstain init`, and what a newer release brings to it.

Notes:

* A commit is built in a worktree of its own and pushed before the clone is moved to it in one step: whatever fails, the
  clone and the origin stay as they were.
* Only what is of the sample is replaced. A clone whose parameters, rows or versions are a user's is refused, by file.
* A newer release is merged by `git merge`. Git merges the state of a project by `MERGE`: of a release, nothing of it is
  taken; of a branch of the project, what git merges.
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
from abstain.config.template import template
from abstain.config.yaml_editor import add_missing, update_yaml
from abstain.config.yaml_model import read_yaml, validate_yaml
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import create_home, write_atomically
from abstain.data.store.dataset import create_empty_store
from abstain.ingest.sources.config import load_sources
from abstain.release.registry import Registry, make_version_tag, parse_registry
from abstain.sample.shipped import DATA_POINTER, DVC_CONFIG, MADE_BY_RUNS, MARK, digest_of, shipped_files
from tasks.projects.base_model import require_base_model
from tasks.runs.shell import CommandFailed, git, succeeds
from tasks.runs.workspace import BRANCH, SHIPPED_REMOTE, hold_lock, project_root

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
        llm = {"model": self.model, "layout": self.layout}
        threshold = {"target": self.target, "on_infeasible": self.on_infeasible}
        params = update_yaml(template("params.yaml"), {"llm": _given(llm), "threshold": _given(threshold)})
        validate_yaml(yaml.safe_load(params), paths.PARAMS, Params)
        sources, config = template("sources.yaml"), template("dvc.config")
        if self.source is not None:
            sources = update_yaml(sources, {"sources": {0: {"url": self.source}}})
        if self.remote is not None:
            config = config.replace(SHIPPED_REMOTE, f"url = {self.remote}")
        return {
            DATA_POINTER: template("data.yaml"),
            paths.REGISTRY: Registry().to_json(),
            paths.PARAMS: params,
            paths.SOURCES: sources,
            DVC_CONFIG: config,
        }


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def start_project(choices: Choices) -> bool:
    """Replace the sample's state by that of a new project, in one commit of this clone, which the origin gets, too.

    Returns whether that was done: not where the project was started before. Raises `AbstainError` naming the file that
    holds something of one's own, the value that is not valid, the model that cannot be read with, or the origin that
    cannot be pushed to; nothing is changed then.
    """
    root, settings = project_root(), load_settings()
    with hold_lock(settings.home.resolve() / "workspace.lock"):
        versions = versions_of_the_sample()
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


def versions_of_the_sample() -> list[str] | None:
    """The versions that runs made of the sample in this clone; None where `abstain init` has started a project in it.

    Raises `AbstainError` naming the file that holds something of one's own.
    """
    root, settings = project_root(), load_settings()
    is_sample = _digest(root, "HEAD") == digest_of(shipped_files()[DATA_POINTER])
    if not is_sample and not _text(root, "HEAD", paths.PARAMS).startswith(MARK):
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
        Their names, as `section.key`, or a whole `section`.

    Raises:
        AbstainError: the file has changes that are not committed or a key that is not valid, or the origin has commits
            that this clone lacks.
    """
    root, settings = project_root(), load_settings()
    _require_committed(root, [paths.PARAMS])
    file = root / paths.PARAMS
    if not isinstance(content := read_yaml(file, "restore it with `git checkout HEAD~ -- params.yaml`"), dict):
        validate_yaml(content, paths.PARAMS, Params)
    text, added = add_missing(file.read_text(encoding="utf-8"), template(paths.PARAMS.name))
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
    """The versions of the sample there. Raises `AbstainError` naming a file that holds anything else."""
    shipped = shipped_files()
    sample = digest_of(shipped[DATA_POINTER])
    if _digest(repository, revision) != sample:
        raise _own(repository, DATA_POINTER, "records other rows than the sample's")
    versions = []
    for event in parse_registry(_text(repository, revision, paths.REGISTRY)).history:
        if _digest(repository, f"refs/tags/{make_version_tag(event.version)}") != sample:
            raise _own(repository, paths.REGISTRY, f"records a promotion on other rows ({event.version})")
        versions.append(event.version)
    for file in (paths.PARAMS, paths.SOURCES, DVC_CONFIG):
        if _text(repository, revision, file) != shipped[file]:
            raise _own(repository, file, "was edited")
    return versions


def _own(repository: Path, file: Path, what: str) -> AbstainError:
    return AbstainError(
        Code.NOT_WRITABLE,
        f"{repository / file} {what}, and `abstain init` would replace it: run it in a fresh clone",
    )


def _digest(repository: Path, revision: str) -> str:
    """The digest of the data of a commit; empty where it records none."""
    pointer = _text(repository, revision, DATA_POINTER)
    return digest_of(pointer) if pointer else ""


def _text(repository: Path, revision: str, file: Path) -> str:
    """The committed text of a file; empty where there is none."""
    name = f"{revision}:{file}"
    return git(repository, "show", name) + "\n" if succeeds(repository, "git", "cat-file", "-e", name) else ""


@contextmanager
def _commit(
    root: Path, settings: Settings, files: Mapping[Path, str | None], message: str, versions: Sequence[str] = ()
) -> Iterator[Path]:
    """Commit `files` (None: none any more) on top of this clone's head, once the block has checked them.

    The block gets the folder with the tree to be committed. `versions` are dropped: their tags, here and at the origin.
    Leaving the block by an error changes nothing.
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
        with _without(home, OF_THE_SAMPLE if DATA_POINTER in files else (), scratch):
            git(root, "merge", "-q", "--ff-only", commit)
        for tag in set(tags) & set(git(root, "tag", "--list").split()):
            git(root, "tag", "--delete", tag)
    finally:
        if tree.is_dir():
            git(root, "worktree", "remove", "--force", str(tree))
        shutil.rmtree(scratch, ignore_errors=True)


def _push(root: Path, origin: str, commit: str, tags: Sequence[str]) -> None:
    try:
        there = git(root, "ls-remote", "--tags", "--refs", origin).split() if tags else []
        gone = [f":refs/tags/{tag}" for tag in tags if f"refs/tags/{tag}" in there]
        git(root, "push", "-q", "--atomic", origin, f"{commit}:refs/heads/{BRANCH}", *gone)
    except CommandFailed as error:
        raise AbstainError(
            Code.NOT_PUBLISHED,
            f"ABSTAIN_ORIGIN cannot be pushed to ({error.reason}), and nothing was changed: correct its URL or your "
            "access, or `git pull` what this clone lacks",
        ) from None


@contextmanager
def _without(home: Path, names: Sequence[str], aside: Path) -> Iterator[None]:
    """Have the block work while the parts `names` of the home lie in the folder `aside`; they stay there, but where it
    fails."""
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
