"""The shadow in the origin: the candidate that decides alongside production, and its comparison by paired reviews.

Its bundle has its own tag, so a gate elsewhere fetches it like a version. A comparison by reviews is a record in
`approvals/`, where it counts as one of the comparisons on the hold-out.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from abstain.config.params import load_params
from abstain.config.settings import get_decision_log_url, load_settings
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.queries import PairedDecision, list_paired_decisions
from abstain.data.store.dataframes import read_frames
from abstain.data.store.dataset import DataStore
from abstain.release.paired_reviews import hash_reviews, join_paired_reviews, make_evaluation_set, read_thresholds
from abstain.release.promotion_record import RecordedHoldout, RecordedMetrics, ShadowRecord
from abstain.release.registry import RegistryEvent, load_registry
from abstain.release.shadow import Shadow, compare_shadow, parse_shadow, require_enough_reviews
from abstain_tasks.release.bundles import build_shadow
from abstain_tasks.release.promotion_records import read_comparison_budget, read_verified_records, write_record
from abstain_tasks.runs.git_commit import commit, push
from abstain_tasks.runs.shell import git, succeeds
from abstain_tasks.runs.workspace import Workspace

POINTER = ("shadow.dvc", paths.SHADOW_POINTER)


def list_shadow_pairs(shadow: Shadow) -> list[PairedDecision]:
    """List the logged decisions about answers that both the shadow and its version in production decided about.

    Args:
        shadow: The shadow.

    Returns:
        The paired decisions.
    """
    log = LogDatabase.open_existing(get_decision_log_url(load_settings()))
    if log is None:
        return []
    with closing(log):
        return list_paired_decisions(log, shadow.version, shadow.production_version)


def read_shadow(repository: Path, revision: str) -> Shadow | None:
    """Read the shadow from a repository.

    Args:
        repository: The repository.
        revision: The revision to read.

    Returns:
        The shadow; None if there is none.

    Raises:
        AbstainError: The file is damaged.
    """
    name = f"{revision}:{paths.SHADOW_POINTER}"
    return parse_shadow(git(repository, "show", name)) if succeeds(repository, "git", "cat-file", "-e", name) else None


def set_shadow(workspace: Workspace) -> Shadow:
    """Make the candidate in `artifacts/` the shadow, in place of another one, and push it.

    Args:
        workspace: The workspace.

    Returns:
        The shadow.

    Raises:
        AbstainError: Nothing is in production, or the candidate is what is in production.
    """
    event = _get_production_event(workspace)
    shadow = build_shadow(workspace.path, event.version)
    if shadow.candidate_sha256 == event.candidate_sha256:
        raise AbstainError(Code.NO_VERSION, f"the last candidate is {event.version}, which is in production")
    write_atomically(workspace.path / paths.SHADOW_POINTER, (shadow.model_dump_json(indent=2) + "\n").encode())
    workspace.dvc("add", "--quiet", str(paths.SHADOW))
    commit(workspace, f"Make {shadow.version} the shadow of {shadow.production_version}", *POINTER)
    if workspace.git("tag", "--list", shadow.tag).strip():  # with the same files
        push(workspace)
    else:
        workspace.git("tag", "--annotate", shadow.tag, "-m", f"{shadow.version}, shadow of {shadow.production_version}")
        push(workspace, shadow.tag)
    return shadow


def _get_production_event(workspace: Workspace) -> RegistryEvent:
    event = load_registry(workspace.path / paths.REGISTRY).production
    if event is None:
        raise AbstainError(Code.NO_VERSION, "nothing is in production that a shadow could be compared with")
    return event


def clear_shadow(workspace: Workspace) -> bool:
    """Remove the shadow and push.

    Args:
        workspace: The workspace.

    Returns:
        Whether there was one.
    """
    if not remove_shadow(workspace):
        return False
    workspace.git("commit", "-q", "-m", "Have no shadow any more")
    push(workspace)
    return True


def remove_shadow(workspace: Workspace) -> bool:
    """Remove the shadow with the next commit.

    Args:
        workspace: The workspace.

    Returns:
        Whether there was one.
    """
    files = [str(file) for file in POINTER if (workspace.path / file).exists()]
    if files:
        workspace.git("rm", "-q", "--", *files)
    return bool(files)


@dataclass(frozen=True)
class ShadowReview:
    """A comparison of shadow and production.

    Attributes:
        record: The record of the comparison.
        is_repeat: Whether the record existed before, because nothing was reviewed since.
    """

    record: ShadowRecord
    is_repeat: bool


def review_shadow(workspace: Workspace) -> ShadowReview:
    """Compare the shadow with production by reviews of answers that both decided about, and push the record.

    It counts as one of the comparisons on the hold-out: the record has their number and the alpha that they spent. If
    nothing was reviewed since the last comparison, that record is returned.

    Args:
        workspace: The workspace.

    Returns:
        The comparison.

    Raises:
        AbstainError: The version in production has no shadow, too few of its answers are reviewed, or no further
            comparison may be made. None of these counts as a comparison.
    """
    shadow = _require_current_shadow(workspace)
    production = shadow.production_version
    event, params = _get_production_event(workspace), load_params(workspace.path / paths.PARAMS)
    registry = load_registry(workspace.path / paths.REGISTRY)
    rows = join_paired_reviews(
        list_shadow_pairs(shadow), read_frames(DataStore(workspace.path / paths.DATA)), params.labels
    )
    records, digest = read_verified_records(workspace, registry), hash_reviews(rows)
    for earlier in records:
        if isinstance(earlier, ShadowRecord) and (earlier.shadow, earlier.champion, earlier.reviews_sha256) == (
            shadow.version,
            production,
            digest,
        ):
            return ShadowReview(earlier, is_repeat=True)
    evaluation = make_evaluation_set(rows, production)
    require_enough_reviews(evaluation, params.evaluation.min_n_eff)
    budget = read_comparison_budget(records, event.holdout_sha256, accepting=False)
    comparison = compare_shadow(evaluation, production, read_thresholds(rows, production), params.promotion, budget)
    spent_budget = budget.spend(params.promotion)
    assert spent_budget is not None  # `compare_shadow` has taken it
    record = ShadowRecord(
        shadow=shadow.version,
        champion=production,
        reviews_sha256=digest,
        outcome=comparison.outcome,
        checks=(comparison.check,),
        champion_comparison=comparison.metrics,
        shown_counts=comparison.shown_counts,
        approved=False,
        version=None,
        metrics=RecordedMetrics(holdout=RecordedHoldout(digest=event.holdout_sha256)),
        limits=params.promotion.model_dump(mode="json") | params.evaluation.model_dump(mode="json"),
        erasure=None,
        candidate_sha256=shadow.candidate_sha256,
        inputs_sha256=None,
        rows=len(rows),
        documents=int(rows["group"].nunique()),
        comparison=spent_budget.used,
        alpha_spent=spent_budget.alpha_spent,
        decided_at=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=workspace.git("rev-parse", "HEAD").strip(),
        new_holdout_reason=None,
    )
    write_record(workspace.path / paths.APPROVALS / f"{shadow.version}-{digest[:8]}.json", record)
    message = f"Compare {shadow.version} with {production} by reviews: {comparison.outcome}"
    commit(workspace, f"{message}\n\n{comparison.check.message}", paths.APPROVALS)
    push(workspace)
    return ShadowReview(record, is_repeat=False)


def _require_current_shadow(workspace: Workspace) -> Shadow:
    shadow = read_shadow(workspace.path, "HEAD")
    if shadow is None:
        raise AbstainError(Code.NO_VERSION, "there is no shadow: `abstain shadow set` makes the last candidate one")
    version = _get_production_event(workspace).version
    if shadow.production_version != version:
        raise AbstainError(
            Code.NO_VERSION,
            f"{shadow.version} is the shadow of {shadow.production_version}, and {version} is in production now: "
            "set it again, `abstain shadow set`",
        )
    return shadow
