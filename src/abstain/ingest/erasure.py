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
from collections.abc import Mapping
from pathlib import Path

from abstain.core.contracts import Feedback, Interaction, Review
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.core.json_lines import read_lines
from abstain.data.store.dataset import DataStore, ErasedUsers
from abstain.data.store.record_keys import interaction_identity
from abstain.ingest.quarantine import Quarantine


def forget(store: DataStore, user: str, pseudonym: str, *, with_interactions: bool = False) -> dict[str, int]:
    """Remove every row of the user who goes by the id `user` or by `pseudonym`; rows removed by table.

    Whoever was forgotten before may be asked for again. Raises `AbstainError`, with nothing changed, where no row
    carries either name, and none ever did.
    """
    names, known = {user, pseudonym}, store.forgotten()
    rated = {row.interaction_id for row in store.rows(Feedback) if row.user in names}
    gone = rated if with_interactions else set()
    files = {"feedback": [*store.parts(Feedback), *store.held().values()]}
    if with_interactions:
        files |= {"interactions": store.parts(Interaction), "reviews": store.parts(Review)}
    removed = {table: sum(_rewrite(path, names, gone) for path in paths) for table, paths in files.items()}
    removed["quarantine"] = Quarantine(store.folder).drop_of(names)
    if not sum(removed.values()):
        if pseudonym not in known.users:
            raise AbstainError(f"no row carries the user '{user}': nothing was removed")
        return removed
    forgotten = ErasedUsers(
        users=tuple(sorted({*known.users, pseudonym})),
        interactions=tuple(sorted({*known.interactions, *(interaction_identity(key).hex() for key in gone)})),
    )
    write_atomically(store.folder / "forgotten.json", forgotten.canonical().encode() + b"\n")
    return removed


def erased_answers(before: Mapping[str, bool], now: Mapping[str, bool], forgotten: ErasedUsers) -> int | None:
    """How many answers of a hold-out are gone; None where it differs in anything but that erased ones are gone.

    Args:
        before, now: interaction id -> its label, right or wrong.
    """
    gone = before.keys() - now.keys()
    kept = {key: label for key, label in before.items() if key not in gone}
    was_erased = set(forgotten.interactions)
    exact = kept == dict(now) and all(interaction_identity(key).hex() in was_erased for key in gone)
    return len(gone) if exact else None


def _rewrite(path: Path, names: set[str], gone: set[str]) -> int:
    """Write `path` without rows of these users and about these interactions; how many there were."""
    lines = [text for _, text in read_lines(path)]
    kept = []
    for text in lines:
        row = json.loads(text)
        if row.get("user") not in names and row["interaction_id"] not in gone:
            kept.append(text)
    if len(kept) < len(lines):
        write_atomically(path, b"".join(text + b"\n" for text in kept))
    return len(lines) - len(kept)
