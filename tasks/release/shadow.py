"""The shadow in the origin: which candidate decides beside production, and what paired reviews say of it.

Its bundle has a tag of its own, so a gate elsewhere fetches it like a release. A comparison by reviews is a record in
`approvals/`, where it counts as one of the comparisons on the hold-out.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from abstain.config.params import load_params
from abstain.config.settings import decision_log_url, load_settings
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.queries import PairedDecision, list_paired_decisions
from abstain.data.store.dataframes import read_frames
from abstain.data.store.dataset import DataStore
from abstain.release.paired_reviews import join_paired_reviews, make_evaluation_set, read_thresholds, reviews_digest
from abstain.release.registry import RegistryEvent, load_registry
from abstain.release.shadow import Shadow, compare_shadow, parse_shadow, require_enough_reviews
from tasks.release.bundles import build_shadow
from tasks.release.promotion_records import Record, read_comparison_budget, read_verified_records, write_record
from tasks.runs.git_commit import commit, push
from tasks.runs.shell import git, succeeds
from tasks.runs.workspace import Workspace

POINTER = ("shadow.dvc", paths.SHADOW_POINTER)


def list_shadow_pairs(shadow: Shadow) -> list[PairedDecision]:
    """What the log has of answers that both `shadow` and the version beside it have decided about."""
    log = LogDatabase.existing(decision_log_url(load_settings()))
    if log is None:
        return []
    with closing(log):
        return list_paired_decisions(log, shadow.version, shadow.beside)


def read_shadow(repository: Path, revision: str) -> Shadow | None:
    """The shadow at `revision` of `repository`; None where there is none. Raises `AbstainError` for a damaged one."""
    name = f"{revision}:{paths.SHADOW_POINTER}"
    return parse_shadow(git(repository, "show", name)) if succeeds(repository, "git", "cat-file", "-e", name) else None


def set_shadow(workspace: Workspace) -> Shadow:
    """Make the candidate in `artifacts/` the shadow, in place of another, and push it.

    Raises `AbstainError` where nothing is in production, and where the candidate is what is.
    """
    beside = _get_production_event(workspace)
    shadow = build_shadow(workspace.path, beside.version)
    if shadow.candidate == beside.candidate:
        raise AbstainError(Code.NO_VERSION, f"the last candidate is {beside.version}, which is in production")
    write_atomically(workspace.path / paths.SHADOW_POINTER, (shadow.model_dump_json(indent=2) + "\n").encode())
    workspace.dvc("add", "--quiet", str(paths.SHADOW))
    commit(workspace, f"Let {shadow.version} decide beside {shadow.beside}, as its shadow", *POINTER)
    if workspace.git("tag", "--list", shadow.tag).strip():  # with the same files
        push(workspace)
    else:
        workspace.git("tag", "--annotate", shadow.tag, "-m", f"{shadow.version}, beside {shadow.beside}")
        push(workspace, shadow.tag)
    return shadow


def _get_production_event(workspace: Workspace) -> RegistryEvent:
    event = load_registry(workspace.path / paths.REGISTRY).production
    if event is None:
        raise AbstainError(Code.NO_VERSION, "nothing is in production: a shadow decides beside a version")
    return event


def clear_shadow(workspace: Workspace) -> bool:
    """Have no shadow any more; whether there was one."""
    if not remove_shadow(workspace):
        return False
    workspace.git("commit", "-q", "-m", "Have no shadow any more")
    push(workspace)
    return True


def remove_shadow(workspace: Workspace) -> bool:
    """Have no shadow from the next commit on; whether there was one."""
    there = [str(file) for file in POINTER if (workspace.path / file).exists()]
    if there:
        workspace.git("rm", "-q", "--", *there)
    return bool(there)


@dataclass(frozen=True)
class ShadowReview:
    """The record of a comparison, and whether it was there before: nothing was reviewed since."""

    record: Record
    is_repeat: bool


def review_shadow(workspace: Workspace) -> ShadowReview:
    """Compare the shadow with production by the reviews of answers that both have decided about, and push the record.

    It is one of the comparisons on the hold-out: the record has their number and what they have spent. Where nothing
    was reviewed since the last one, that is the answer again.

    Raises `AbstainError` where there is no shadow beside what is in production, where too few of its answers are
    reviewed, and where no further comparison may be made. None of these counts as one.
    """
    shadow = _shadow_beside(workspace)
    event, params = _get_production_event(workspace), load_params(workspace.path / paths.PARAMS)
    registry = load_registry(workspace.path / paths.REGISTRY)
    rows = join_paired_reviews(
        list_shadow_pairs(shadow), read_frames(DataStore(workspace.path / paths.DATA)), params.labels
    )
    records, digest = read_verified_records(workspace, registry), reviews_digest(rows)
    same = {"shadow": shadow.version, "champion": shadow.beside, "reviews_sha256": digest}
    for record in records:
        if all(record.get(key) == value for key, value in same.items()):
            return ShadowReview(record, is_repeat=True)
    window = make_evaluation_set(rows, shadow.beside)
    require_enough_reviews(window, params.gate)
    looks = read_comparison_budget(records, event.holdout, accepting=False)
    found = compare_shadow(window, shadow.beside, read_thresholds(rows, shadow.beside), params.gate, looks)
    taken = looks.spend(params.gate)
    assert taken is not None  # `compare_shadow` has taken it
    record = {
        **found.to_dict(),
        **same,
        "approved": False,
        "version": None,
        "metrics": {"holdout": {"digest": event.holdout}},
        "gate": params.gate.model_dump(mode="json"),
        "erasure": None,
        "candidate_sha256": shadow.candidate,
        "inputs_sha256": None,
        "rows": len(rows),
        "documents": int(rows["group"].nunique()),
        "look": taken.used,
        "spent": taken.spent,
        "decided_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": workspace.git("rev-parse", "HEAD").strip(),
        "new_holdout": None,
    }
    write_record(workspace.path / paths.APPROVALS / f"{shadow.version}-{digest[:8]}.json", record)
    message = f"Compare {shadow.version} with {shadow.beside} by reviews: {found.verdict}\n\n{found.check.message}"
    commit(workspace, message, paths.APPROVALS)
    push(workspace)
    return ShadowReview(record, is_repeat=False)


def _shadow_beside(workspace: Workspace) -> Shadow:
    shadow = read_shadow(workspace.path, "HEAD")
    if shadow is None:
        raise AbstainError(Code.NO_VERSION, "there is no shadow: `abstain shadow set` makes the last candidate one")
    version = _get_production_event(workspace).version
    if shadow.beside != version:
        raise AbstainError(
            Code.NO_VERSION,
            f"{shadow.version} is the shadow of {shadow.beside}, and {version} is in production now: set it again, "
            "`abstain shadow set`",
        )
    return shadow
