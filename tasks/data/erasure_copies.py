"""Copies of removed interactions outside of data/: an erasure lists them by place and leaves them to the operator.

Notes:

* A copy is recognized by the interaction's identity, so another call lists what still exists.
* Nothing is deleted: a review file may hold reviews of other answers, and a bundle may be in production.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.data.store.record_keys import make_interaction_identity
from abstain.review.workbook import ID_COLUMN, read_workbook
from abstain_tasks.runs.workspace import Workspace

_TAG = re.compile(r"<[^>]*>")


def record_export(file: Path) -> None:
    """Record a review file of this home, so that `find_copies` finds it.

    Args:
        file: The review file.
    """
    exports = {*(str(export) for export in _read_exports() if export.exists()), str(file.resolve())}
    write_atomically(_get_export_list(), "".join(f"{name}\n" for name in sorted(exports)).encode())


def find_copies(workspace: Workspace, removed: Collection[str]) -> Iterator[str]:
    """List the places with a copy of removed interactions.

    Args:
        workspace: The workspace.
        removed: Identities (hex) of the removed interactions.

    Yields:
        One line for each place: where it is, and what to do.
    """
    if not removed:
        return
    from abstain_tasks.server import reports  # needs psutil, which `record_export` does not

    for file in _read_exports():
        if file.exists() and _is_among(_read_interaction_ids(file), removed):
            yield f"{file}: a review file with removed answers: import its reviews, then delete it"
    for page in sorted(reports.get_folder().glob("*/evaluation.html")):
        if _is_among(_parse_example_ids(page), removed):
            yield f"{page}: a report that shows removed answers: delete it"
    if _is_among(_read_example_ids(workspace.path / paths.EVALUATION), removed):
        yield f"{workspace.path / paths.REPORT}: shows removed answers: `abstain retrain` writes it anew"
    for evaluation in sorted((load_settings().home.resolve() / "releases").glob(f"*/{paths.EVALUATION.name}")):
        if _is_among(_read_example_ids(evaluation), removed):
            version = evaluation.parent.name
            yield f"{evaluation.parent}: the report of {version} shows removed answers: promote another, then delete it"
    yield (
        f"{load_settings().features}: may hold features of removed answers: `abstain cache prune --older-than-days 0` "
        "after the next retrain; jobs/ there, where a distributed run was killed, the texts: delete it while none runs"
    )


def _get_export_list() -> Path:
    return load_settings().home.resolve() / "review-files.txt"


def _read_exports() -> list[Path]:
    file = _get_export_list()
    return [Path(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def _is_among(interactions: Collection[str], removed: Collection[str]) -> bool:
    return any(make_interaction_identity(key).hex() in removed for key in interactions)


def _read_interaction_ids(file: Path) -> set[str]:
    """Read the interaction ids of a review file; empty if it is no review file any more."""
    try:
        return {row.cells[ID_COLUMN] for row in read_workbook(file)}
    except AbstainError:
        return set()


def _read_example_ids(evaluation: Path) -> set[str]:
    if not evaluation.exists():
        return set()
    examples = json.loads(evaluation.read_text(encoding="utf-8")).get("examples", {})
    return {row["interaction_id"] for rows in examples.values() for row in rows}


def _parse_example_ids(page: Path) -> set[str]:
    """Return the ends of the page's text lines after a dot, which is the place of an example's interaction id."""
    lines = html.unescape(_TAG.sub("\n", page.read_text(encoding="utf-8"))).splitlines()
    return {line.rpartition(" · ")[2].strip() for line in lines if " · " in line}
