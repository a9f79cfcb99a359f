"""Training-data lineage from the git history: the promoted versions that were trained on rows erased since.

Versions share most of their files, which DVC keeps once by their content: each is read once, for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path

from abstain.core.contracts import Review, Thumb
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import read_rows
from abstain.data.store.record_keys import interaction_identity
from abstain.release.registry import make_version_tag, parse_version_tags
from abstain.sample.shipped import DATA_POINTER
from tasks.runs.workspace import Workspace


def versions_trained_on(workspace: Workspace, names: Collection[str], gone: Collection[str] = ()) -> dict[str, bool]:
    """The versions that were trained on an erased user's rows, oldest first; True where that is certain.

    Those rows are thumbs of a user with one of `names`, and thumbs and reviews of the interactions `gone` (identities,
    hex): an answer without either has no label, so nothing is trained on it. It is uncertain for a version whose data
    cannot be read any more.
    """
    tags = {
        version: f"refs/tags/{make_version_tag(version)}"
        for version in parse_version_tags(workspace.git("tag", "--list").split())
    }
    pointers: dict[str, str] = {}  # pointer -> a tag that has it: versions that share their data are checked once
    of: dict[str, str | None] = {}
    for version, tag in tags.items():
        try:
            pointer = workspace.git("rev-parse", f"{tag}:{DATA_POINTER}").strip()
        except AbstainError:  # a tag that no promotion made: it must not stop an erasure
            of[version] = None
            continue
        of[version] = pointer
        pointers.setdefault(pointer, tag)
    tables = ("feedback", "reviews") if gone else ("feedback",)
    files = {pointer: workspace.tracked_data(tag, tables) for pointer, tag in pointers.items()}
    if None in files.values():
        workspace.dvc_succeeds("fetch", "--all-tags", "--quiet", str(DATA_POINTER))
        lacking = [pointer for pointer, there in files.items() if there is None]
        files |= {pointer: workspace.tracked_data(pointers[pointer], tables) for pointer in lacking}

    @cache
    def holds(table: str, file: Path) -> bool:
        contract: type[Thumb | Review] = Thumb if table == "feedback" else Review
        return any(
            (isinstance(row, Thumb) and row.user in names)
            or (bool(gone) and interaction_identity(row.interaction_id).hex() in gone)
            for row in read_rows(file, contract)
        )

    found: dict[str | None, bool | None] = {None: None}
    found |= {pointer: _any_of(there, holds) for pointer, there in files.items()}
    return {version: bool(found[pointer]) for version, pointer in of.items() if found[pointer] is not False}


def _any_of(files: list[tuple[str, Path]] | None, holds: Callable[[str, Path], bool]) -> bool | None:
    """Whether one of the files holds such a row; None where they cannot be read."""
    if files is None:
        return None
    try:
        return any(holds(table, file) for table, file in files)
    except AbstainError:  # of a layout that this release does not read
        return None
