"""Right to erasure: remove one user's rows from the current data, and reject them if they come again.

Notes:

* A user's rows are the thumbs, with their comments, that carry the user's pseudonym, whether accepted, pending or
  rejected. The text of a rejected row that breaks its contract was never stored. An interaction carries no user; on
  request, the interactions that the user rated are removed too, with all reviews of them.
* Erased users are stored only as pseudonyms, and removed interactions only as hashed identities, so that rows which a
  source sends again are rejected.
* Earlier versions of data/ stay in the DVC cache and remote until `dvc gc`: history is not rewritten.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Review, Thumb
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.data.decision_log.erasure import UserRows
from abstain.data.store.dataset import DataStore, ErasedUsers, rewrite_lines
from abstain.data.store.record_keys import make_interaction_identity
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
    """Remove all rows of one user from the current data, and reject them in later ingests.

    Args:
        store: The data folder.
        user: The user's id as the source has it.
        pseudonym: The user's pseudonym in data/.
        with_interactions: Also remove the interactions that the user rated, and those of `logged`.
        logged: The user's rows in the decision log, with the interactions that the user asked or rated there.

    Returns:
        Table name -> number of removed rows. A user may be erased repeatedly.

    Raises:
        AbstainError: Neither the data nor the log has or had a row of this user. Nothing is changed.
    """
    names, existing = {normalize_name(user), normalize_name(pseudonym)}, store.read_erased_users()
    rated_ids = {row.interaction_id for row in store.iter_rows(Thumb) if row.user and normalize_name(row.user) in names}
    interaction_ids = rated_ids | (logged.interactions if logged else set()) if with_interactions else set()
    files = {"feedback": [*store.list_part_files(Thumb), *store.list_pending_files().values()]}
    if with_interactions:
        files |= {"interactions": store.list_part_files(Interaction), "reviews": store.list_part_files(Review)}
    counts = {
        table: sum(_remove_rows(path, names, interaction_ids) for path in paths) for table, paths in files.items()
    }
    counts["quarantine"] = Quarantine(store.folder).discard_user_rows(names, interaction_ids)
    if not (sum(counts.values()) or logged):
        if pseudonym not in existing.users:
            raise AbstainError(Code.UNKNOWN_NAME, f"no row carries the user '{user}': nothing was removed")
        return counts
    users, identities = {*existing.users, pseudonym}, _compute_identities(interaction_ids).union(existing.interactions)
    erased = ErasedUsers(users=tuple(sorted(users)), interactions=tuple(sorted(identities)))
    write_atomically(store.folder / "erased.json", erased.to_json_line().encode() + b"\n")
    return counts


class HoldoutChanges(NamedTuple):
    """How many answers of a hold-out have changed.

    Attributes:
        erased: Erased answers.
        corrected: Answers whose label was corrected, or that a correction moved into the hold-out or out of it.
    """

    erased: int = 0
    corrected: int = 0


def count_changed_answers(
    previous_labels: Mapping[str, bool],
    current_labels: Mapping[str, bool],
    erased: ErasedUsers,
    corrected: Collection[str],
) -> HoldoutChanges | None:
    """Count the answers of a hold-out that erasures and corrections have changed.

    Args:
        previous_labels: Interaction id -> label, true if correct, of the hold-out before.
        current_labels: The same of the hold-out now.
        erased: Users and interactions that were erased.
        corrected: Identities (hex) of the interactions with a corrected row.

    Returns:
        The changes; None if the hold-outs differ in any other answer.
    """
    changed = {key for key, _ in previous_labels.items() ^ current_labels.items()}
    missing_identities = _compute_identities(changed - current_labels.keys())
    erased_identities = missing_identities.intersection(erased.interactions)
    corrected_identities = _compute_identities(changed) - erased_identities
    if not corrected_identities <= set(corrected):
        return None
    return HoldoutChanges(len(erased_identities), len(corrected_identities))


def _compute_identities(interaction_ids: Iterable[str]) -> set[str]:
    return {make_interaction_identity(interaction_id).hex() for interaction_id in interaction_ids}


def _remove_rows(path: Path, names: set[str], interaction_ids: set[str]) -> int:
    """Rewrite `path` without the rows of these users and interactions; return the number of removed rows."""

    def keep_others(line: bytes) -> bytes | None:
        row = json.loads(line)
        user = row.get("user")
        is_theirs = (user and normalize_name(user) in names) or row["interaction_id"] in interaction_ids
        return None if is_theirs else line

    return rewrite_lines(path, path, keep_others)
