"""The workspace: a separate clone for every writer, so that a run never touches a user's checkout.

Notes:

* A run clones the *origin*, works, commits, pushes. A team's origin is its git server (`ABSTAIN_ORIGIN`); without one
  it is a bare repository in `.abstain/`, into which the checkout's commits are merged first.
* There is one writer for each workspace, by a file lock that the run's commands inherit: they end with a killed run,
  and the next run waits for the last of them instead of colliding with it.
* A run starts from the origin's head and ignores leftovers of a killed one. Stages that it finished are in DVC's
  run-cache, which is keyed by content, so they are not run again, and partial results are never used.
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
from abstain.config.template import read_template
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import create_home, write_atomically
from abstain.data.store.dataset import create_empty_store
from abstain.sample.shipped import DATA_POINTER, parse_data_digest
from abstain_tasks.runs.shell import git, run, succeeds

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
    """A clone that only this process may write to, in step with its origin.

    Attributes:
        path: The folder.
        lock: File descriptor of the lock.
    """

    path: Path
    lock: int

    def dvc(self, *arguments: str) -> str:
        """Run `dvc ARGUMENTS` in the workspace and return its output."""
        return run(["dvc", *arguments], self.path, inherit=[self.lock])

    def dvc_succeeds(self, *arguments: str) -> bool:
        """Run `dvc ARGUMENTS` in the workspace and return whether it succeeds."""
        return succeeds(self.path, "dvc", *arguments, inherit=[self.lock])

    def git(self, *arguments: str) -> str:
        """Run `git ARGUMENTS` in the workspace and return its output."""
        return git(self.path, *arguments)

    def remote_folder(self) -> Path | None:
        """Return the folder of the default DVC remote; None if it is not in the home."""
        name = self.dvc("config", "core.remote").strip()
        url = self.dvc("config", f"remote.{name}.url").strip()
        folder, home = (self.path / ".dvc" / url).resolve(), load_settings().home.resolve()
        return folder if "://" not in url and folder.is_relative_to(home) else None

    def find_cached_files(self, revision: str, tables: Sequence[str]) -> list[tuple[str, Path]] | None:
        """Find the files of data/ at a revision in the DVC cache.

        Args:
            revision: The revision.
            tables: Folders of data/.

        Returns:
            Table and file; None if one of them is not in the cache, or a table has no file.
        """
        objects = load_settings().home.resolve() / "dvc-cache" / "files" / "md5"
        digest = parse_data_digest(self.git("show", f"{revision}:{DATA_POINTER}"))
        listing = objects / digest[:2] / digest[2:]
        if not listing.is_file():
            return None
        entries = [(entry["relpath"].partition("/")[0], entry["md5"]) for entry in json.loads(listing.read_bytes())]
        files = [(table, objects / md5[:2] / md5[2:]) for table, md5 in entries if table in tables]
        is_whole = {table for table, _ in files} == set(tables) and all(file.is_file() for _, file in files)
        return files if is_whole else None

    def require_revision(self, name: str) -> None:
        """Require a tag or commit in this history.

        Args:
            name: The tag or commit.

        Raises:
            AbstainError: It does not exist.
        """
        if not succeeds(self.path, "git", "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}"):
            raise AbstainError(
                Code.NO_VERSION,
                f"{name} is not in the origin, so the comparisons since cannot be counted: push it there (git push "
                "--tags) from a clone that has it, or git fetch --unshallow --tags",
            )

    def list_added_files(self, revision: str, folder: Path) -> list[str]:
        """List the files that any commit after a revision has added to a folder.

        Args:
            revision: The revision.
            folder: The folder.

        Returns:
            Paths in the repository.
        """
        # With --full-history also what a merge has dropped.
        new = ("--full-history", "-z", "--format=", "--name-only", "--no-renames", "--diff-filter=A")
        listed = self.git("log", f"{revision}..HEAD", *new, "--", str(folder))
        return sorted({name.strip() for name in listed.split("\0")} - {""})


def project_root() -> Path:
    """Find the checkout around the current folder.

    Returns:
        Its folder.

    Raises:
        AbstainError: The current folder is in no checkout.
    """
    folder = Path.cwd()
    if shutil.which("git") is None:
        raise AbstainError(
            Code.NO_PACKAGE, "git is not installed: versions and promotions are git commits, so install git"
        )
    if not succeeds(folder, "git", "rev-parse", "--verify", "HEAD"):
        raise AbstainError(
            Code.NO_CHECKOUT, f"{folder} is in no git repository with a commit: run this in a clone of the project"
        )
    root = Path(git(folder, "rev-parse", "--show-toplevel").strip())
    if not (root / "dvc.yaml").is_file():
        raise AbstainError(Code.NO_CHECKOUT, f"{root} has no dvc.yaml: run this in a clone of the project")
    return root


@contextmanager
def open_workspace() -> Iterator[Workspace]:
    """Open the workspace of this checkout: locked, in step with its origin, with `data/` in place.

    Yields:
        The workspace.
    """
    root, settings = project_root(), load_settings()
    origin = ensure_origin(root, settings)
    path = settings.home.resolve() / "workspace"
    with hold_lock(path.with_suffix(".lock")) as lock:
        workspace = Workspace(path, lock)
        if not path.is_dir():
            _clone(origin, path, settings)
        _synchronize(workspace, root if settings.origin is None else None)
        _configure_dvc(path, settings)
        _bring_data(workspace)
        yield workspace


def ensure_origin(root: Path, settings: Settings) -> str:
    """Return the git URL that runs clone from; a missing local bare repository is created from the checkout.

    Args:
        root: The checkout.
        settings: Settings of this machine.

    Returns:
        The URL.

    Raises:
        AbstainError: The checkout has uncommitted changes that a run would read.
    """
    if settings.origin is not None:
        return settings.origin
    changed = [line[3:] for line in git(root, "status", "--porcelain", "--", *READ_BY_RUNS).splitlines()]
    if changed:
        rest = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise AbstainError(
            Code.NO_CHECKOUT,
            f"{changed[0]}{rest} in {root}: not committed, and a run works on commits: `git add` and `git commit` what "
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


def fetch_origin_snapshot() -> tuple[Path, str]:
    """Fetch the origin's state without a lock and without changing files.

    A machine that only scores, and a restored home, clone the origin here.

    Returns:
        A repository, and the revision to read.

    Raises:
        AbstainError: No run was made yet.
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
    """Wait for a lock and hold it while the block runs.

    Args:
        file: The lock file.

    Yields:
        Its file descriptor.
    """
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


def _synchronize(workspace: Workspace, checkout: Path | None) -> None:
    """Bring the clone to the origin's head; with a local origin, merge the checkout's commits."""
    locks = ("index.lock", "HEAD.lock", "ORIG_HEAD.lock", f"refs/heads/{BRANCH}.lock")
    for leftover in (
        ".dvc/tmp/rwlock",
        *(f".git/{lock}" for lock in locks),
    ):  # by a killed run: this process has the lock
        (workspace.path / leftover).unlink(missing_ok=True)
    workspace.git("fetch", "-q", "--prune", "--prune-tags", "--tags", "--force", "origin")
    workspace.git("checkout", "-q", "--force", "-B", BRANCH, f"origin/{BRANCH}")
    workspace.git("clean", "-q", "-fd")
    if checkout is not None:
        workspace.git("fetch", "-q", str(checkout), "HEAD")
        # Where both changed the same lines (a lock, the pointer), the runs' own record wins.
        workspace.git("merge", "-q", "-m", "Merge the checkout's commits", "-X", "ours", "FETCH_HEAD")


def _configure_dvc(path: Path, settings: Settings) -> None:
    """Share the cache between workspaces; keep the default remote in the home, but leave a team's own as it is."""
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
    if parse_data_digest(recorded) == parse_data_digest(read_template("data.yaml")):
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
