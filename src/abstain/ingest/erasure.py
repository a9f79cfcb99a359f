"""Right to erasure: remove one user's rows from the current data, and reject them if they come again.

Notes:

* A user's rows are those that carry the pseudonym: thumbs with their comments, accepted, held or refused. A refused row
  that breaks its contract was not kept. An interaction carries no user; on request, those that the user rated are
  removed too, with all verdicts on them.
* Erased users are stored by pseudonym alone, and removed interactions by their identity: rows re-sent by a source are
  rejected.
* Earlier versions of data/ stay in the DVC cache and remote until `dvc gc`: history is not rewritten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Review, Thumb
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.core.json_lines import read_lines
from abstain.data.decision_log.erasure import UserRows
from abstain.data.store.dataset import DataStore, ErasedUsers
from abstain.data.store.record_keys import interaction_identity
from abstain.ingest.privacy.pseudonyms import normalize_name
from abstain.ingest.quarantine import Quarantine


def erase_rows(
    store: DataStore,
    user: str,
    pseudonym: str,
    *,
    with_interactions: bool = False,
    logged: UserRows | None = None,
) -> dict[str, int]:
    """Remove every row of the user with the id `user` or with `pseudonym`; returns the number of rows removed by table.

    `logged` is what the decision log has of the user: with the interactions, those that they asked or rated there go
    from the data, too. A user may be erased more than once. Raises `AbstainError`, with nothing changed, where no row
    has or had either name, nor the log.
    """
    names, known = {normalize_name(user), normalize_name(pseudonym)}, store.erased_users()
    rated = {row.interaction_id for row in store.iter_rows(Thumb) if row.user and normalize_name(row.user) in names}
    gone = rated | (logged.interactions if logged else set()) if with_interactions else set()
    files = {"feedback": [*store.list_part_files(Thumb), *store.pending_files().values()]}
    if with_interactions:
        files |= {"interactions": store.list_part_files(Interaction), "reviews": store.list_part_files(Review)}
    removed = {table: sum(_rewrite(path, names, gone) for path in paths) for table, paths in files.items()}
    removed["quarantine"] = Quarantine(store.folder).discard_user_rows(names, gone)
    if not (sum(removed.values()) or logged):
        if pseudonym not in known.users:
            raise AbstainError(Code.UNKNOWN_NAME, f"no row carries the user '{user}': nothing was removed")
        return removed
    forgotten = ErasedUsers(
        users=tuple(sorted({*known.users, pseudonym})),
        interactions=tuple(sorted({*known.interactions, *(interaction_identity(key).hex() for key in gone)})),
    )
    write_atomically(store.folder / "forgotten.json", forgotten.to_json_line().encode() + b"\n")
    return removed


def count_erased_answers(before: Mapping[str, bool], now: Mapping[str, bool], erased: ErasedUsers) -> int | None:
    """The number of answers missing from a hold-out; None where it differs in more than erased answers.

    Args:
        before, now: interaction id -> its label, correct or not.
    """
    gone = before.keys() - now.keys()
    kept = {key: label for key, label in before.items() if key not in gone}
    was_erased = set(erased.interactions)
    exact = kept == dict(now) and all(interaction_identity(key).hex() in was_erased for key in gone)
    return len(gone) if exact else None


def _rewrite(path: Path, names: set[str], gone: set[str]) -> int:
    """Write `path` without rows of these users and about these interactions; returns their number."""
    lines = [text for _, text in read_lines(path)]
    kept = []
    for text in lines:
        row = json.loads(text)
        user = row.get("user")
        if not (user and normalize_name(user) in names) and row["interaction_id"] not in gone:
            kept.append(text)
    if len(kept) < len(lines):
        write_atomically(path, b"".join(text + b"\n" for text in kept))
    return len(lines) - len(kept)
