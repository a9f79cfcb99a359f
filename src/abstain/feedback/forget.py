"""Remove what one user gave from the current data, and keep it out.

Three decisions:

* A user's rows are those that carry the pseudonym: thumbs with their comments, accepted, held or refused. An
  interaction carries no user; those that the user rated go too, with everybody's verdicts on them, if that is wanted.
* Whoever asked to be forgotten is remembered by pseudonym alone, and so are removed interactions by their identity:
  a source that gives the rows again gives them in vain.
* Earlier versions of data/ stay in the DVC cache and remote until `dvc gc`: history is not rewritten here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from abstain.contracts import Feedback, Interaction, Review
from abstain.errors import AbstainError
from abstain.feedback.index import read_lines
from abstain.feedback.lines import interaction_identity
from abstain.feedback.quarantine import Quarantine
from abstain.feedback.store import Forgotten, Store
from abstain.files import write_atomically


def forget(store: Store, names: set[str], *, with_interactions: bool = False) -> dict[str, int]:
    """Remove every row of the user who goes by one of `names` (the id, its pseudonym); rows removed by table.

    Raises `AbstainError`, with nothing changed, where no row carries any of them.
    """
    rated = {row.interaction_id for row in store.rows(Feedback) if row.user in names}
    gone = rated if with_interactions else set()

    def is_theirs(row: dict[str, Any]) -> bool:
        return row.get("user") in names or row["interaction_id"] in gone

    removed: Counter[str] = Counter()
    files = {"feedback": [*store.parts(Feedback), *store.held().values()]}
    if with_interactions:
        files |= {"interactions": store.parts(Interaction), "reviews": store.parts(Review)}
    keep = {path: _split(path, is_theirs) for paths in files.values() for path in paths}
    for table, paths in files.items():
        removed[table] += sum(keep[path][1] for path in paths)
    removed["quarantine"] = Quarantine(store.folder).drop_mentioning(names)
    if not removed.total():
        raise AbstainError(f"no row carries the user '{sorted(names)[0]}': nothing was removed")
    for path, (lines, count) in keep.items():
        if count:
            write_atomically(path, lines)
    known = store.forgotten()
    forgotten = Forgotten(
        users=tuple(sorted({*known.users, *names})),
        interactions=tuple(sorted({*known.interactions, *(interaction_identity(key).hex() for key in gone)})),
    )
    write_atomically(store.folder / "forgotten.json", forgotten.canonical().encode() + b"\n")
    return dict(removed)


def _split(path: Path, is_theirs: Callable[[dict[str, Any]], bool]) -> tuple[bytes, int]:
    """The lines of a file that stay, and how many go."""
    lines = [text for _, text in read_lines(path)]
    kept = [text for text in lines if not is_theirs(json.loads(text))]
    return b"".join(text + b"\n" for text in kept), len(lines) - len(kept)
