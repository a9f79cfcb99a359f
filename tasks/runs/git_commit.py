"""Git commits and pushes of a run's results to the origin."""

from __future__ import annotations

from pathlib import Path

from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_tasks.runs.shell import succeeds
from abstain_tasks.runs.workspace import BRANCH, Workspace


class OriginMoved(AbstainError):
    """Another run pushed first; nothing of this run is visible outside its workspace, and it may be tried again."""


def commit(workspace: Workspace, message: str, *files: Path | str) -> bool:
    """Commit the changes of some files.

    Args:
        workspace: The workspace.
        message: Commit message.
        *files: The only files that the caller may commit.

    Returns:
        False if there are no changes.
    """
    existing = [str(file) for file in files if (workspace.path / file).exists()]
    if existing:
        workspace.git("add", "--all", "--", *existing)
    if not workspace.git("diff", "--cached", "--name-only").strip():
        return False
    workspace.git("commit", "-q", "-m", message)
    return True


def push(workspace: Workspace, *tags: str) -> None:
    """Push data, then history: all or nothing, and only if the origin has not moved meanwhile.

    The fast-forward is the compare-and-swap of every pointer in the tree.

    Args:
        workspace: The workspace.
        *tags: Tags to push, too.

    Raises:
        OriginMoved: Another run pushed first; nothing of this run is then visible outside its workspace.
    """
    workspace.dvc("push", "--quiet")
    try:
        workspace.git(
            "push", "-q", "--atomic", "origin", f"HEAD:refs/heads/{BRANCH}", *(f"refs/tags/{t}" for t in tags)
        )
    except AbstainError:
        for tag in tags:
            workspace.git("tag", "-d", tag)
        if not _has_origin_moved(workspace):  # forbidden by a rule of the origin, or out of reach
            raise
        raise OriginMoved(
            Code.NOT_PUBLISHED,
            "the origin has moved while this run was at work (another run or a person pushed); nothing was changed "
            "there: run the command again",
        ) from None


def _has_origin_moved(workspace: Workspace) -> bool:
    """Return whether the origin has a commit that this workspace lacks; False if the origin cannot be read."""
    path = workspace.path
    return succeeds(path, "git", "fetch", "-q", "origin", BRANCH) and not succeeds(
        path, "git", "merge-base", "--is-ancestor", "FETCH_HEAD", "HEAD"
    )


def commit_data(workspace: Workspace, message: str, *files: Path) -> bool:
    """Track `data/` with DVC, commit it with `files` and push.

    Args:
        workspace: The workspace.
        message: Commit message.
        *files: Further files to commit.

    Returns:
        Whether anything had changed.
    """
    workspace.dvc("add", "--quiet", str(paths.DATA))
    changed = commit(workspace, message, "data.dvc", *files)
    if changed:
        push(workspace)
    return changed
