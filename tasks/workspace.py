"""The workspace: a clone of its own for every writer, so that no run ever touches anybody's checkout.

Three decisions:

* A run clones the *origin*, works, commits, pushes. A team's origin is its git server (`ABSTAIN_ORIGIN`);
  without one it is a bare repository in `.abstain/`, into which the checkout's commits are merged first.
* One writer a workspace, by a file lock that the run's subprocesses inherit: if a run is killed, the next
  one waits for what it left running instead of colliding with it.
* An unfinished run's `dvc.lock` survives the reset: DVC checks every entry by content, so finished stages
  are not run again and a wrong entry cannot be believed.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from abstain import paths
from abstain.errors import AbstainError
from abstain.settings import Settings, load_settings
from tasks.shell import git, run, succeeds

BRANCH = "main"


@dataclass(frozen=True)
class Workspace:
    """A clone that this process alone may write to, in step with its origin."""

    path: Path
    lock: int

    def dvc(self, *arguments: str) -> str:
        """`dvc ARGUMENTS` in the workspace."""
        return run(["dvc", *arguments], self.path, inherit=[self.lock])

    def git(self, *arguments: str) -> str:
        return git(self.path, *arguments)


def project_root() -> Path:
    """The checkout around the current folder. Raises `AbstainError` outside one."""
    here = Path.cwd()
    if shutil.which("git") is None:
        raise AbstainError("git is not installed: versions and promotions are git commits, so install git")
    if not succeeds(here, "git", "rev-parse", "--verify", "HEAD"):
        raise AbstainError(f"{here} is in no git repository with a commit: run this in a clone of the project")
    root = Path(git(here, "rev-parse", "--show-toplevel").strip())
    if not (root / "dvc.yaml").is_file():
        raise AbstainError(f"{root} has no dvc.yaml: run this in a clone of the project")
    return root


@contextmanager
def open_workspace() -> Iterator[Workspace]:
    """The workspace of this checkout, locked, in step with its origin, with `data/` in place."""
    root, settings = project_root(), load_settings()
    origin = ensure_origin(root, settings)
    path = settings.home.resolve() / "workspace"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        _take(lock.fileno())
        workspace = Workspace(path, lock.fileno())
        if not path.is_dir():
            _clone(origin, path)
        _synchronise(workspace, root if settings.origin is None else None)
        _configure_dvc(workspace, settings)
        _bring_data(workspace)
        yield workspace


def ensure_origin(root: Path, settings: Settings) -> str:
    """The git URL that runs clone from; the local bare repository is made from the checkout when it is missing."""
    if settings.origin is not None:
        return settings.origin
    changed = git(root, "status", "--porcelain").splitlines()
    if changed:
        raise AbstainError(
            f"{root} has uncommitted changes ({changed[0][3:]}{' and more' if len(changed) > 1 else ''}), and a run "
            "works on commits: commit or stash them"
        )
    bare = settings.home.resolve() / "origin.git"
    if not bare.is_dir():
        bare.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=bare.parent, prefix=".origin-"))
        git(root, "init", "-q", "--bare", f"--initial-branch={BRANCH}", str(scratch))
        git(root, "push", "-q", str(scratch), f"HEAD:refs/heads/{BRANCH}")
        scratch.rename(bare)
    return str(bare)


def origin_snapshot() -> tuple[Path, str]:
    """A repository to read the origin's state from, and the revision to read: takes no lock, changes nothing.

    Raises `AbstainError` before the first run.
    """
    root, settings = project_root(), load_settings()
    path = settings.home.resolve() / "workspace"
    if not path.is_dir():
        raise AbstainError(f"no run has been made from {root} yet: run `abstain retrain` (or `abstain demo`) first")
    git(path, "fetch", "-q", "--tags", "origin")
    return path, f"origin/{BRANCH}"


def _take(lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("another run is at work in the workspace; waiting for it to end", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


def _clone(origin: str, path: Path) -> None:
    scratch = Path(tempfile.mkdtemp(dir=path.parent, prefix=".workspace-"))
    git(path.parent, "clone", "-q", "--branch", BRANCH, origin, str(scratch))
    scratch.rename(path)


def _synchronise(workspace: Workspace, checkout: Path | None) -> None:
    """Bring the clone to the origin's head; merge the checkout's commits where the origin is local."""
    (workspace.path / ".dvc" / "tmp" / "rwlock").unlink(missing_ok=True)  # of a killed run: nobody else is here
    unfinished = workspace.path / "dvc.lock"
    lock = unfinished.read_text() if unfinished.is_file() else None
    workspace.git("fetch", "-q", "--tags", "--force", "origin")
    workspace.git("checkout", "-q", "--force", "-B", BRANCH, f"origin/{BRANCH}")
    workspace.git("clean", "-q", "-fd")
    if checkout is not None:
        workspace.git("fetch", "-q", str(checkout), "HEAD")
        # Where both changed the same lines (a lock, the pointer), the runs' own record wins.
        workspace.git("merge", "-q", "-m", "Merge the checkout's commits", "-X", "ours", "FETCH_HEAD")
    if lock is not None:
        unfinished.write_text(lock)


def _configure_dvc(workspace: Workspace, settings: Settings) -> None:
    """Share the cache between workspaces; keep the default local remote beside it."""
    home = settings.home.resolve()
    (home / "dvc-remote").mkdir(parents=True, exist_ok=True)
    (workspace.path / ".dvc" / "config.local").write_text(
        f"[cache]\n    dir = {home / 'dvc-cache'}\n['remote \"local\"']\n    url = {home / 'dvc-remote'}\n"
    )


def _bring_data(workspace: Workspace) -> None:
    """Put in place what is recorded: from the cache, from the remote, or, for the sample's data, by writing it.

    What the remote lacks of the stages' outputs is left to be made again; the data may not be lacking.
    """
    quiet = ("--force", "--quiet")
    if succeeds(workspace.path, "dvc", "checkout", *quiet):
        return
    succeeds(workspace.path, "dvc", "pull", "--run-cache", *quiet)
    if succeeds(workspace.path, "dvc", "status", "--quiet", "data.dvc"):
        return
    data = workspace.path / paths.DATA
    shutil.rmtree(data, ignore_errors=True)
    run(["python", "-m", "abstain.sample", str(data)], workspace.path)
    workspace.dvc("add", "--quiet", str(paths.DATA))
    if workspace.git("status", "--porcelain", "data.dvc"):
        workspace.git("checkout", "--quiet", "data.dvc")
        shutil.rmtree(data)
        raise AbstainError(
            "the data that data.dvc records is neither in the cache nor in the DVC remote: `dvc push` it from where "
            "it was added, or set the remote in .dvc/config"
        )
