"""Training-data lineage from the git history: the versions that were trained on rows erased or corrected later.

Versions share most of their files, and DVC stores each content once, so each file is read once for all versions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from abstain.core.contracts import Review, Thumb
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import read_rows
from abstain.release.registry import make_version_tag, parse_version_tags
from abstain.sample.shipped import DATA_POINTER
from abstain_tasks.runs.workspace import Workspace


def find_versions_trained_on(
    workspace: Workspace, is_affected: Callable[[Thumb | Review], bool], tables: Sequence[str] = ("feedback", "reviews")
) -> dict[str, bool]:
    """Find the versions that were trained on erased or corrected rows.

    An answer without a thumb or review has no label, so nothing is trained on it.

    Args:
        workspace: The workspace.
        is_affected: Tests whether a thumb or review, or its interaction, was erased or corrected.
        tables: The tables that may hold such rows.

    Returns:
        Version -> whether it is certain, oldest first. It is uncertain if the version's data cannot be read any more.
    """
    tags = {
        version: f"refs/tags/{make_version_tag(version)}"
        for version in parse_version_tags(workspace.git("tag", "--list").split())
    }
    pointers: dict[str, str] = {}  # pointer -> a tag that has it: versions that share their data are checked once
    pointer_by_version: dict[str, str | None] = {}
    for version, tag in tags.items():
        try:
            pointer = workspace.git("rev-parse", f"{tag}:{DATA_POINTER}").strip()
        except AbstainError:  # a tag that no promotion made: it must not stop anything
            pointer_by_version[version] = None
            continue
        pointer_by_version[version] = pointer
        pointers.setdefault(pointer, tag)
    files_by_pointer = {pointer: workspace.find_cached_files(tag, tables) for pointer, tag in pointers.items()}
    if None in files_by_pointer.values():
        workspace.dvc_succeeds("fetch", "--all-tags", "--quiet", str(DATA_POINTER))
        missing = [pointer for pointer, files in files_by_pointer.items() if files is None]
        files_by_pointer |= {pointer: workspace.find_cached_files(pointers[pointer], tables) for pointer in missing}

    @cache
    def holds(table: str, file: Path) -> bool:
        contract: type[Thumb | Review] = Thumb if table == "feedback" else Review
        return any(map(is_affected, read_rows(file, contract)))

    holds_by_pointer: dict[str | None, bool | None] = {None: None}
    holds_by_pointer |= {pointer: _hold_affected_rows(files, holds) for pointer, files in files_by_pointer.items()}
    return {
        version: bool(holds_by_pointer[pointer])
        for version, pointer in pointer_by_version.items()
        if holds_by_pointer[pointer] is not False
    }


def _hold_affected_rows(files: list[tuple[str, Path]] | None, holds: Callable[[str, Path], bool]) -> bool | None:
    """Return whether one of the files holds such a row; None if they cannot be read."""
    if files is None:
        return None
    try:
        return any(holds(table, file) for table, file in files)
    except AbstainError:  # of a layout that this release does not read
        return None
