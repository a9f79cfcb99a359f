"""The project of `abstain demo`: a shipped checkout in the home, with its own home and origin.

The demo neither reads nor changes what a clone holds of its own (rows, versions, parameters, remotes).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

from abstain.config.settings import load_settings
from abstain.core.files import write_atomically
from abstain.sample.shipped import copy_as_shipped
from abstain_tasks.runs.shell import git
from abstain_tasks.runs.workspace import BRANCH, hold_lock, project_root

_OWN_NAMES = ("ORIGIN", "FEATURES", "INDEX", "DECISION_LOG", "USER_KEY", "RUNNER")
OWN_PLACES = tuple(f"ABSTAIN_{name}" for name in _OWN_NAMES)
"""Settings of a team's project that would take the demo's rows elsewhere."""
SHARED = ("models", "decoder-checks", "stage-times", "reports", "prefect")
"""Parts of the home that are about the machine, or served by `make up`: the demo uses those of the clone."""


@contextmanager
def demo_project() -> Iterator[Path]:
    """Run the block in the demo's project, which is created or updated to this clone's code first.

    Yields:
        The folder of the project.
    """
    root, home = project_root(), load_settings().home.resolve()
    project = home / "demo"
    with hold_lock(home / "demo.lock"):
        _update_project(root, project)
        for name in SHARED:
            (home / name).mkdir(parents=True, exist_ok=True)
            _link(project / ".abstain" / name, home / name)
        if (root / ".venv").is_dir():
            _link(project / ".venv", root / ".venv")
        environment = dict(os.environ)
        for name in OWN_PLACES:
            os.environ.pop(name, None)
        os.environ["ABSTAIN_HOME"] = str(project / ".abstain")
        try:
            with chdir(project):
                yield project
        finally:
            os.environ.clear()
            os.environ.update(environment)


def _update_project(root: Path, project: Path) -> None:
    """Commit this clone's tracked files, as they are now, on top of those of an earlier demo.

    The histories have nothing in common, so a merge into the demo's workspace brings changes of the code only.
    """
    project.mkdir(parents=True, exist_ok=True)
    if not (project / ".git").is_dir():
        git(project, "init", "-q", f"--initial-branch={BRANCH}")
    write_atomically(project / ".git" / "info" / "exclude", b"/.venv\n")
    tracked = _list_tracked_files(project)
    names = copy_as_shipped(root, [name for name in _list_tracked_files(root) if os.path.lexists(root / name)], project)
    for name in set(tracked) - set(names):
        (project / name).unlink(missing_ok=True)
    git(project, "add", "--update")
    git(project, "add", "--", *names)
    if git(project, "diff", "--cached", "--name-only").strip():
        git(project, "commit", "-q", "-m", "The project as it is shipped")


def _list_tracked_files(repository: Path) -> list[str]:
    return [name for name in git(repository, "ls-files", "-z").split("\0") if name.strip()]


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.exists():
        link.unlink(missing_ok=True)  # to a folder that is gone
        link.symlink_to(target)
