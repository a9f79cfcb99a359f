"""Erasure of a user in one commit: remove the rows, keep them out, and mark the versions that were trained on them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from abstain.config.params import load_params
from abstain.config.settings import get_decision_log_url, load_settings
from abstain.core import paths
from abstain.core.contracts import Review, Thumb
from abstain.core.files import write_atomically
from abstain.data.decision_log import erasure as decision_log_erasure
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.erasure import find_user_rows
from abstain.data.store.dataset import DataStore
from abstain.data.store.record_keys import make_interaction_identity
from abstain.ingest.erasure import erase_rows
from abstain.ingest.privacy.policy import Privacy
from abstain.ingest.privacy.pseudonyms import normalize_name
from abstain.release.registry import Registry, load_registry
from abstain_tasks.data.erasure_copies import find_copies
from abstain_tasks.release.lineage import find_versions_trained_on
from abstain_tasks.release.shadow import remove_shadow
from abstain_tasks.runs.git_commit import commit_data
from abstain_tasks.runs.workspace import Workspace


@dataclass(frozen=True)
class ErasureResult:
    """The result of an erasure.

    Attributes:
        removed: Table -> number of removed rows.
        versions: Version trained on the rows -> whether that is certain.
        registry: The registry that marks these versions.
        copies: Lines about copies that are left to the operator (`find_copies`).
        shadow_cleared: Whether the shadow was cleared, because it may have been trained on the rows, too.
    """

    removed: dict[str, int]
    versions: dict[str, bool]
    registry: Registry
    copies: tuple[str, ...]
    shadow_cleared: bool = False


def erase_user(workspace: Workspace, user: str, *, with_interactions: bool) -> ErasureResult:
    """Remove a user's rows from the current data, keep them out, and mark the versions that were trained on them.

    Rows and marks go into one commit; after it, the user's rows in the decision log are deleted. A second call has
    nothing to remove. It marks versions that have no mark yet and keeps the decisions about the others.

    Args:
        workspace: The workspace.
        user: The user's id, as the source gives it, or the pseudonym.
        with_interactions: Also remove the interactions that the user rated, with all their thumbs and reviews.

    Returns:
        What was removed and which versions are affected.
    """
    params, settings = load_params(workspace.path / paths.PARAMS), load_settings()
    pseudonym = Privacy.from_params(params.privacy, settings).get_pseudonym(user)
    names, log = {normalize_name(user), pseudonym}, LogDatabase.open_existing(get_decision_log_url(settings))
    logged = find_user_rows(log, names) if log else None
    store, file = DataStore(workspace.path / paths.DATA), workspace.path / paths.REGISTRY
    erased_before = store.read_erased_users()
    removed = erase_rows(store, user, pseudonym, with_interactions=with_interactions, logged=logged)
    erased = set(store.read_erased_users().interactions)
    newly_erased = erased.difference(erased_before.interactions)

    def is_erased(row: Thumb | Review) -> bool:
        is_theirs = isinstance(row, Thumb) and row.user in (user, pseudonym)
        return is_theirs or (bool(newly_erased) and make_interaction_identity(row.interaction_id).hex() in newly_erased)

    tables = ("feedback", "reviews") if newly_erased else ("feedback",)
    versions, registry = find_versions_trained_on(workspace, is_erased, tables), load_registry(file)
    to_mark = versions if any(removed.values()) else {k: v for k, v in versions.items() if k not in registry.tainted}
    if to_mark:
        registry = registry.mark_tainted(to_mark, datetime.now(UTC))
        write_atomically(file, registry.to_json().encode())
    cleared = any(removed.values()) and remove_shadow(workspace)  # it may have been trained on them
    commit_data(workspace, "Erase a user", paths.REGISTRY)
    if log:  # after the commit: where that fails, the log still tells what belongs to the user
        removed["decision log"] = decision_log_erasure.erase_user(
            log, names, {pseudonym}, with_interactions=with_interactions, identities=erased
        )
    copies = tuple(find_copies(workspace, erased)) if with_interactions else ()
    return ErasureResult(removed, versions, registry, copies, cleared)
