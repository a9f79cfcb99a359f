"""Git commits and pushes of a run's results to the origin."""

from __future__ import annotations

from pathlib import Path

from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from tasks.runs.workspace import BRANCH, Workspace


class OriginMoved(AbstainError):
    """Another run pushed first; nothing of this run is visible outside its workspace, and it may be tried again."""


def commit(workspace: Workspace, message: str, *files: Path | str) -> bool:
    """Commit the changes of `files`, the only files that the caller may commit; False where there are none."""
    there = [str(file) for file in files if (workspace.path / file).exists()]
    if there:
        workspace.git("add", "--all", "--", *there)
    if not workspace.git("diff", "--cached", "--name-only").strip():
        return False
    workspace.git("commit", "-q", "-m", message)
    return True


def push(workspace: Workspace, *tags: str) -> None:
    """Push data, then history: all of it or nothing, and only where the origin has not moved meanwhile.

    The fast-forward is the compare-and-swap of every pointer in the tree. Raises `OriginMoved` when another
    run pushed first; nothing of this run is then visible outside its workspace.
    """
    workspace.dvc("push", "--quiet")
    try:
        workspace.git(
            "push", "-q", "--atomic", "origin", f"HEAD:refs/heads/{BRANCH}", *(f"refs/tags/{t}" for t in tags)
        )
    except AbstainError as error:
        for tag in tags:
            workspace.git("tag", "-d", tag)
        moved = any(word in str(error) for word in ("rejected", "fetch first", "failed to push", "atomic push failed"))
        if not moved or "declined" in str(error):  # by a rule of the origin, such as a protected branch
            raise
        raise OriginMoved(
            Code.NOT_PUBLISHED,
            "the origin has moved while this run was at work (another run or a person pushed); nothing was changed "
            "there: run the command again",
        ) from None


def commit_data(workspace: Workspace, message: str, *files: Path) -> bool:
    """Track `data/` with DVC, commit it with `files` and push; return whether anything had changed."""
    workspace.dvc("add", "--quiet", str(paths.DATA))
    changed = commit(workspace, message, "data.dvc", *files)
    if changed:
        push(workspace)
    return changed
