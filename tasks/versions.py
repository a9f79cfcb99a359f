"""What a promoted version was trained on, asked of the history: which ones have seen a user's rows."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path

from abstain import paths
from abstain.contracts import Feedback
from abstain.errors import AbstainError
from abstain.feedback.store import Store
from abstain.registry.registry import MODEL, tag_of, version_key
from tasks.workspace import Workspace


def versions_with(workspace: Workspace, names: Collection[str]) -> list[str]:
    """The versions whose data holds a thumb of a user who goes by one of `names`, oldest first.

    A version whose thumbs cannot be read any more is named with a question mark.
    """
    tags = workspace.git("tag", "--list", f"{MODEL}@v*").split()
    versions = sorted((tag.removeprefix(f"{MODEL}@") for tag in tags), key=version_key)
    found: dict[str, bool | None] = {}  # versions that share their data are looked at once
    named = []
    for version in versions:
        tag = f"refs/tags/{tag_of(version)}"
        data = workspace.git("rev-parse", f"{tag}:data.dvc").strip()
        if data not in found:
            found[data] = _holds(workspace, tag, names)
        if found[data] is not False:
            named.append(version if found[data] else f"{version} (?)")
    return named


def _holds(workspace: Workspace, revision: str, names: Collection[str]) -> bool | None:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "feedback"
        try:
            workspace.dvc("get", ".", str(paths.DATA / "feedback"), "--rev", revision, "-o", str(target), "--quiet")
        except AbstainError:  # not at hand, or from before thumbs lay in a folder of their own
            return None
        return any(row.user in names for row in Store(Path(folder)).rows(Feedback))
