"""The workspace: a separate clone for every writer, so that a run never touches a user's checkout.

Notes:

* A run clones the *origin*, works, commits, pushes. A team's origin is its git server (`ABSTAIN_ORIGIN`);
  without one it is a bare repository in `.abstain/`, into which the checkout's commits are merged first.
* One writer per workspace, by a file lock that the run's commands inherit: they end with a killed run, and the next
  run waits for the last of them instead of colliding with it.
* A run starts from the origin's head and ignores leftovers of a killed one: stages that it finished are in DVC's
  run-cache, which is keyed by content, so they are not run again and partial results are never used.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from abstain.config.settings import Settings, load_settings
from abstain.config.template import template
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import create_home, write_atomically
from abstain.data.store.dataset import create_empty_store
from abstain.sample.shipped import DATA_POINTER, digest_of
from tasks.runs.shell import git, run, succeeds

BRANCH = "main"
READ_BY_RUNS = (
    *("src", "flows", "tasks", "data.dvc", "dvc.yaml", "dvc.lock", "params.yaml", "registry.json", "release.dvc"),
    *(
        "shadow.json",
        "shadow.dvc",
        "sources.yaml",
        "requirements.lock",
        "approvals",
        ".dvc",
        ".dvcignore",
        ".gitignore",
    ),
)
"""What a run reads of a checkout: other changes, such as an export or a page of the documentation, stop no command."""
SHIPPED_REMOTE = "url = ../.abstain/dvc-remote"


@dataclass(frozen=True)
class Workspace:
    """A clone that this process alone may write to, in step with its origin."""

    path: Path
    lock: int

    def dvc(self, *arguments: str) -> str:
        """`dvc ARGUMENTS` in the workspace."""
        return run(["dvc", *arguments], self.path, inherit=[self.lock])

    def dvc_succeeds(self, *arguments: str) -> bool:
        """Whether `dvc ARGUMENTS` in the workspace does."""
        return succeeds(self.path, "dvc", *arguments, inherit=[self.lock])

    def git(self, *arguments: str) -> str:
        return git(self.path, *arguments)

    def remote_folder(self) -> Path | None:
        """The folder of the default DVC remote where it is in the home; None where it is elsewhere."""
        name = self.dvc("config", "core.remote").strip()
        url = self.dvc("config", f"remote.{name}.url").strip()
        folder, home = (self.path / ".dvc" / url).resolve(), load_settings().home.resolve()
        return folder if "://" not in url and folder.is_relative_to(home) else None

    def tracked_data(self, revision: str, tables: Sequence[str]) -> list[tuple[str, Path]] | None:
        """Table and file of `tables` (folders of data/) as `revision` records them, read from the DVC cache.

        None where one of them is not in the cache, or a table has no file.
        """
        objects = load_settings().home.resolve() / "dvc-cache" / "files" / "md5"
        digest = digest_of(self.git("show", f"{revision}:{DATA_POINTER}"))
        listed = objects / digest[:2] / digest[2:]
        if not listed.is_file():
            return None
        entries = [(one["relpath"].partition("/")[0], one["md5"]) for one in json.loads(listed.read_bytes())]
        found = [(table, objects / md5[:2] / md5[2:]) for table, md5 in entries if table in tables]
        is_whole = {table for table, _ in found} == set(tables) and all(file.is_file() for _, file in found)
        return found if is_whole else None

    def require_revision(self, name: str) -> None:
        """Raises `AbstainError` where this history has no such tag or commit."""
        if not succeeds(self.path, "git", "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}"):
            raise AbstainError(
                Code.NO_VERSION,
                f"{name} is not in the origin, so the comparisons since cannot be counted: push it there (git push "
                "--tags) from a clone that has it, or git fetch --unshallow --tags",
            )

    def list_added_files(self, revision: str, folder: Path) -> list[str]:
        """The files that any commit after `revision` has added to `folder`, as paths in the repository."""
        # With --full-history also what a merge has dropped.
        new = ("--full-history", "-z", "--format=", "--name-only", "--no-renames", "--diff-filter=A")
        listed = self.git("log", f"{revision}..HEAD", *new, "--", str(folder))
        return sorted({name.strip() for name in listed.split("\0")} - {""})


def project_root() -> Path:
    """The checkout around the current folder. Raises `AbstainError` outside one."""
    here = Path.cwd()
    if shutil.which("git") is None:
        raise AbstainError(
            Code.NO_PACKAGE, "git is not installed: versions and promotions are git commits, so install git"
        )
    if not succeeds(here, "git", "rev-parse", "--verify", "HEAD"):
        raise AbstainError(
            Code.NO_CHECKOUT, f"{here} is in no git repository with a commit: run this in a clone of the project"
        )
    root = Path(git(here, "rev-parse", "--show-toplevel").strip())
    if not (root / "dvc.yaml").is_file():
        raise AbstainError(Code.NO_CHECKOUT, f"{root} has no dvc.yaml: run this in a clone of the project")
    return root


@contextmanager
def open_workspace() -> Iterator[Workspace]:
    """The workspace of this checkout, locked, in step with its origin, with `data/` in place."""
    root, settings = project_root(), load_settings()
    origin = ensure_origin(root, settings)
    path = settings.home.resolve() / "workspace"
    with hold_lock(path.with_suffix(".lock")) as lock:
        workspace = Workspace(path, lock)
        if not path.is_dir():
            _clone(origin, path, settings)
        _synchronise(workspace, root if settings.origin is None else None)
        _configure_dvc(path, settings)
        _bring_data(workspace)
        yield workspace


def ensure_origin(root: Path, settings: Settings) -> str:
    """The git URL that runs clone from; the local bare repository is made from the checkout when it is missing."""
    if settings.origin is not None:
        return settings.origin
    changed = [line[3:] for line in git(root, "status", "--porcelain", "--", *READ_BY_RUNS).splitlines()]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise AbstainError(
            Code.NO_CHECKOUT,
            f"{changed[0]}{more} in {root}: not committed, and a run works on commits: `git add` and `git commit` what "
            "belongs to the project, or `git stash --include-untracked`",
        )
    bare = settings.home.resolve() / "origin.git"
    if not bare.is_dir():
        create_home(bare.parent)
        scratch = Path(tempfile.mkdtemp(dir=bare.parent, prefix=".origin-"))
        git(root, "init", "-q", "--bare", f"--initial-branch={BRANCH}", str(scratch))
        git(scratch, "config", "receive.shallowUpdate", "true")  # the checkout may be a shallow clone
        git(root, "push", "-q", str(scratch), f"HEAD:refs/heads/{BRANCH}")
        scratch.rename(bare)
    return str(bare)


def origin_snapshot() -> tuple[Path, str]:
    """A repository to read the origin's state from, and the revision to read: takes no lock, changes no file.

    A machine that only scores, and a home that was restored, clone the origin here. Raises `AbstainError` before the
    first run.
    """
    root, settings = project_root(), load_settings()
    path, bare = (settings.home.resolve() / name for name in ("workspace", "origin.git"))
    if not path.is_dir():
        if settings.origin is None and not bare.is_dir():
            raise AbstainError(
                Code.NO_VERSION,
                f"no run has been made from {root} yet: run `abstain retrain` first; what `abstain demo` made is in "
                f"{settings.home / 'demo'}",
            )
        _clone(settings.origin or str(bare), path, settings)
    git(path, "fetch", "-q", "--tags", "--force", "origin")
    return path, f"origin/{BRANCH}"


@contextmanager
def hold_lock(file: Path) -> Iterator[int]:
    """Hold the lock `file`, for which this process waits; gives its descriptor."""
    create_home(file.parent)
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another run is at work; waiting for it to end", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def _clone(origin: str, path: Path, settings: Settings) -> None:
    create_home(path.parent)
    scratch = Path(tempfile.mkdtemp(dir=path.parent, prefix=".workspace-"))
    try:
        git(path.parent, "clone", "-q", "--branch", BRANCH, origin, str(scratch))
        _configure_dvc(scratch, settings)
        scratch.rename(path)
    except OSError:
        if not path.is_dir():  # otherwise another process has cloned it first
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _synchronise(workspace: Workspace, checkout: Path | None) -> None:
    """Bring the clone to the origin's head; merge the checkout's commits where the origin is local."""
    locks = ("index.lock", "HEAD.lock", "ORIG_HEAD.lock", f"refs/heads/{BRANCH}.lock")
    for left in (".dvc/tmp/rwlock", *(f".git/{lock}" for lock in locks)):  # by a killed run: this process has the lock
        (workspace.path / left).unlink(missing_ok=True)
    workspace.git("fetch", "-q", "--prune", "--prune-tags", "--tags", "--force", "origin")
    workspace.git("checkout", "-q", "--force", "-B", BRANCH, f"origin/{BRANCH}")
    workspace.git("clean", "-q", "-fd")
    if checkout is not None:
        workspace.git("fetch", "-q", str(checkout), "HEAD")
        # Where both changed the same lines (a lock, the pointer), the runs' own record wins.
        workspace.git("merge", "-q", "-m", "Merge the checkout's commits", "-X", "ours", "FETCH_HEAD")


def _configure_dvc(path: Path, settings: Settings) -> None:
    """Share the cache between workspaces; keep the default remote beside it, and a team's own where it is."""
    home = settings.home.resolve()
    text = f"[cache]\n    dir = {home / 'dvc-cache'}\n"
    if SHIPPED_REMOTE in (path / ".dvc" / "config").read_text():
        (home / "dvc-remote").mkdir(parents=True, exist_ok=True)
        text += f"['remote \"local\"']\n    url = {home / 'dvc-remote'}\n"
    write_atomically(path / ".dvc" / "config.local", text.encode())


def _bring_data(workspace: Workspace) -> None:
    """Check out the recorded files: from the cache, from the remote, or, if no row is a user's, by writing them.

    Stage outputs that the remote lacks are computed again later; missing data is an error.
    """
    quiet = ("--force", "--quiet")
    if workspace.dvc_succeeds("checkout", *quiet):
        return
    workspace.dvc_succeeds("pull", *quiet)
    if workspace.dvc_succeeds("status", "--quiet", str(DATA_POINTER)):
        return
    data, recorded = workspace.path / paths.DATA, (workspace.path / DATA_POINTER).read_text()
    shutil.rmtree(data, ignore_errors=True)
    if digest_of(recorded) == digest_of(template("data.yaml")):
        create_empty_store(data)
    else:  # perhaps the sample's
        run(["python", "-m", "abstain.sample", str(data)], workspace.path, inherit=[workspace.lock])
    workspace.dvc("add", "--quiet", str(paths.DATA))
    if workspace.git("status", "--porcelain", str(DATA_POINTER)):
        workspace.git("checkout", "--quiet", str(DATA_POINTER))
        shutil.rmtree(data)
        raise AbstainError(
            Code.DAMAGED_DATA,
            "the data that data.dvc records is neither in the cache nor in the DVC remote: `dvc push` it from where "
            "it was added, or set the remote in .dvc/config",
        )
