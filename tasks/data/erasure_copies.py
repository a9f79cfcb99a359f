"""Copies of removed interactions outside of data/: an erasure lists them by place and leaves them to the operator.

Notes:

* A copy is recognised by the interaction's identity, so asking again lists what is still there.
* Nothing is deleted: a review file may hold verdicts on other answers, a release may be in production.
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
from abstain.data.store.record_keys import interaction_identity
from abstain.review.workbook import KEY, read_workbook
from tasks.runs.workspace import Workspace

_TAG = re.compile(r"<[^>]*>")


def record_export(file: Path) -> None:
    """Note that `file` is a review file of this home, so that `find_copies` finds it."""
    found = {*(str(known) for known in _exports() if known.exists()), str(file.resolve())}
    write_atomically(_list_of_exports(), "".join(f"{name}\n" for name in sorted(found)).encode())


def find_copies(workspace: Workspace, removed: Collection[str]) -> Iterator[str]:
    """A line for each place with a copy of the `removed` interactions (identities, hex): where it is, what to do."""
    if not removed:
        return
    from tasks.server import reports  # needs psutil, which `record_export` does not

    for file in _exports():
        if file.exists() and _is_among(_sampled(file), removed):
            yield f"{file}: a review file with removed answers: import its verdicts, then delete it"
    for page in sorted(reports.folder().glob("*/evaluation.html")):
        if _is_among(_examples_of(page), removed):
            yield f"{page}: a report that shows removed answers: delete it"
    if _is_among(_examples_in(workspace.path / paths.EVALUATION), removed):
        yield f"{workspace.path / paths.REPORT}: shows removed answers: `abstain retrain` writes it anew"
    for evaluation in sorted((load_settings().home.resolve() / "releases").glob(f"*/{paths.EVALUATION.name}")):
        if _is_among(_examples_in(evaluation), removed):
            version = evaluation.parent.name
            yield f"{evaluation.parent}: the report of {version} shows removed answers: promote another, then delete it"
    yield (
        f"{load_settings().features}: may hold features of removed answers: `abstain cache prune --older-than-days 0` "
        "after the next retrain; jobs/ there, where a distributed run was killed, the texts: delete it while none runs"
    )


def _list_of_exports() -> Path:
    return load_settings().home.resolve() / "review-files.txt"


def _exports() -> list[Path]:
    file = _list_of_exports()
    return [Path(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def _is_among(interactions: Collection[str], removed: Collection[str]) -> bool:
    return any(interaction_identity(key).hex() in removed for key in interactions)


def _sampled(file: Path) -> set[str]:
    """The interactions of a review file; none where it is no review file any more."""
    try:
        return {row.cells[KEY] for row in read_workbook(file)}
    except AbstainError:
        return set()


def _examples_in(evaluation: Path) -> set[str]:
    if not evaluation.exists():
        return set()
    shown = json.loads(evaluation.read_text(encoding="utf-8")).get("examples", {})
    return {row["interaction_id"] for rows in shown.values() for row in rows}


def _examples_of(page: Path) -> set[str]:
    """What ends a line of the page's text behind a dot: there an example has its interaction's id."""
    lines = html.unescape(_TAG.sub("\n", page.read_text(encoding="utf-8"))).splitlines()
    return {line.rpartition(" · ")[2].strip() for line in lines if " · " in line}
