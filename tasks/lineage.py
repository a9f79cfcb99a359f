"""Training-data lineage from the git history: the promoted versions that were trained on rows erased since."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable
from itertools import chain
from pathlib import Path

from abstain.core import paths
from abstain.core.contracts import Feedback, Review
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import DataStore
from abstain.data.store.record_keys import interaction_identity
from abstain.release.registry import tag_of, versions_of
from tasks.workspace import Workspace


def versions_trained_on(workspace: Workspace, names: Collection[str], gone: Collection[str] = ()) -> dict[str, bool]:
    """The versions that were trained on an erased user's rows, oldest first; True where that is certain.

    Those rows are thumbs of a user with one of `names`, and thumbs and reviews of the interactions `gone` (identities,
    hex): an answer without either has no label, so nothing is trained on it. It is uncertain for a version whose data
    cannot be read any more.
    """
    found: dict[str, bool | None] = {}  # versions that share their data are checked once
    named = {}
    for version in versions_of(workspace.git("tag", "--list").split()):
        tag = f"refs/tags/{tag_of(version)}"
        try:
            data = workspace.git("rev-parse", f"{tag}:data.dvc").strip()
        except AbstainError:  # a tag that no promotion made: it must not stop an erasure
            named[version] = False
            continue
        if data not in found:
            found[data] = _holds(workspace, tag, names, gone)
        if found[data] is not False:
            named[version] = bool(found[data])
    return named


def _holds(workspace: Workspace, revision: str, names: Collection[str], gone: Collection[str]) -> bool | None:
    with tempfile.TemporaryDirectory() as folder:
        store = DataStore(Path(folder))
        try:
            for table in ("feedback", "reviews") if gone else ("feedback",):
                source, target = str(paths.DATA / table), str(store.folder / table)
                workspace.dvc("get", ".", source, "--rev", revision, "-o", target, "--quiet")
            if any(row.user in names for row in store.rows(Feedback)):
                return True
            verdicts: Iterable[Feedback | Review] = chain(store.rows(Feedback), store.rows(Review))
            return bool(gone) and any(interaction_identity(row.interaction_id).hex() in gone for row in verdicts)
        except AbstainError:  # not available, or from before thumbs had their own folder
            return None
