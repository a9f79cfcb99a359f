"""Promotion and rollback: gather the inputs of the promotion checks, carry out the decision, and record it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from abstain.config.params import load_params
from abstain.core import paths
from abstain.core.bundle_format import compute_sha256
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.core.reasons import Reason
from abstain.learning.evaluation.evaluation_result import EvaluationMetrics
from abstain.release.promotion_check import ComparisonRule, PromotionDecision, describe_failure
from abstain.release.promotion_record import DecisionInputs, Erasure, PromotionRecord, RecordedMetrics
from abstain.release.registry import Registry, get_next_version, load_registry, make_version_tag
from abstain.release.shadow import should_shadow_rejected
from abstain_tasks.release.bundles import build_bundle, fetch_bundle, smoke_test
from abstain_tasks.release.promotion_inputs import check_candidate_in_workspace, read_guarantee
from abstain_tasks.release.promotion_params import write_promotion_params, write_rollback_params
from abstain_tasks.release.promotion_records import (
    find_earlier_rejection,
    find_holdout_acceptance,
    find_holdout_refill,
    format_decision_table,
    get_prior_coverage_loss,
    hash_stage_inputs,
    read_comparison_budget,
    read_verified_records,
    write_record,
)
from abstain_tasks.release.shadow import read_shadow, set_shadow
from abstain_tasks.runs.events import REJECTED, post_event
from abstain_tasks.runs.git_commit import commit, push
from abstain_tasks.runs.progress import notify_observers
from abstain_tasks.runs.run_params import discard_commits, restore_params
from abstain_tasks.runs.workspace import Workspace
from abstain_tasks.training.plan import LOCK, REQUIREMENTS

PRODUCTION_FILES = ("release.dvc", paths.REGISTRY)


@dataclass(frozen=True)
class PromotionResult:
    """The result of a promotion.

    Attributes:
        status: What happened to the candidate.
        version: The version in production now; None if there is none.
        reasons: Why the candidate was rejected, with codes, or why the promoted one has no guarantee.
    """

    status: Literal["promoted", "rejected", "unchanged"]
    version: str | None
    reasons: list[str]


def require_candidate(workspace: Workspace) -> None:
    """Check out the candidate that `dvc.lock` records.

    Args:
        workspace: The workspace.

    Raises:
        AbstainError: There is no candidate, or it is out of date.
    """
    if not (workspace.path / LOCK).is_file():
        raise AbstainError(Code.NO_VERSION, "there is no candidate yet: run `abstain retrain` first")
    workspace.dvc("checkout", "--force", "--quiet")
    if workspace.dvc("status", "--json").strip() != "{}" or not (workspace.path / paths.ONNX).is_file():
        raise AbstainError(
            Code.NO_VERSION,
            "data, parameters or code have changed since the candidate was trained: run `abstain retrain`",
        )


@task(cache_policy=NO_CACHE)
def promote_candidate(
    workspace: Workspace,
    new_holdout: str | None,
    recheck: bool = False,
    accept_erasure: str | None = None,
    base_commit: str | None = None,
) -> PromotionResult:
    """Check the candidate in `artifacts/`, promote it if it passes, and push the record in either case.

    If the champion was trained on rows erased or corrected later, the candidate counts as new even with equal bytes,
    and only has to be non-inferior. Otherwise a candidate with the same bytes as production is checked again only while
    its guarantee could not be checked, because the hold-out may have grown.

    Args:
        workspace: Locked workspace at the origin's head.
        new_holdout: Reason for a changed hold-out; recorded, and valid for later candidates on the same hold-out.
        recheck: Check a rejected candidate again even if nothing has changed.
        accept_erasure: Reason why the candidate may be worse than a champion trained on erased or corrected rows.
        base_commit: Commit before a run with its own parameters (tasks/runs/run_params.py). Its commits are pushed only
            with a promotion, which restores params.yaml; otherwise only the record is pushed.

    Returns:
        Status (promoted, rejected or unchanged), the version in production, and the reasons.

    Raises:
        AbstainError: A version trained on erased or corrected rows stays in production without a recorded decision.
    """
    registry = load_registry(workspace.path / paths.REGISTRY)
    candidate = compute_sha256(workspace.path / paths.ONNX)
    taint = registry.taint
    if accept_erasure is not None:
        registry.require_taint()
    same = registry.production is not None and registry.production.candidate_sha256 == candidate and taint is None
    guarantee = read_guarantee(workspace)
    if same and (registry.has_guarantee or guarantee.status == "none"):
        return _finish_unchanged(workspace, registry, base_commit)
    if blocked := next(
        (
            event.version
            for event in registry.history
            if event.candidate_sha256 == candidate and event.version in registry.blocked
        ),
        None,
    ):
        _push_record(workspace, base_commit)
        reason = f"it is {blocked} again, which was blocked: {registry.blocked[blocked]}"
        return _finish_rejected(registry, candidate, [Reason(Code.NO_VERSION, "not blocked", reason)])
    metrics = RecordedMetrics.model_validate_json((workspace.path / paths.METRICS).read_bytes())
    params = load_params(workspace.path / paths.PARAMS)
    limits = params.promotion.model_dump(mode="json") | params.evaluation.model_dump(mode="json")
    limits["threshold"] = params.threshold.model_dump(mode="json")
    inputs = DecisionInputs(
        champion=registry.production_version,
        metrics=metrics,
        limits=limits,
        erasure=Erasure(since=taint.since.isoformat(), cause=taint.cause, accepted=accept_erasure) if taint else None,
        candidate_sha256=candidate,
        inputs_sha256=hash_stage_inputs(workspace.path / LOCK),
    )
    holdout = metrics.holdout.digest
    records = read_verified_records(workspace, registry)
    acceptance = new_holdout
    if acceptance is None and registry.production is not None and registry.production.holdout_sha256 != holdout:
        acceptance = find_holdout_acceptance(records, holdout) or find_holdout_refill(
            records, registry.production.version, params.split
        )
    if not recheck and new_holdout is None and (reasons := find_earlier_rejection(records, inputs)):
        _push_record(workspace, base_commit)
        notify_observers("promote", "cached")
        return _finish_rejected(registry, candidate, reasons)
    rule: ComparisonRule = "superior" if taint is None else "accepted" if accept_erasure else "non_inferior"
    budget = read_comparison_budget(records, holdout, acceptance is not None)
    prior_coverage_loss = get_prior_coverage_loss(records, registry.production_version)
    decision = check_candidate_in_workspace(
        workspace, registry, holdout, new_holdout, rule, budget, prior_coverage_loss, acceptance is not None
    )
    if same and decision.missing_guarantee_reason:  # still
        return _finish_unchanged(workspace, registry, base_commit)
    spent_budget = (budget.spend(params.promotion) if decision.used_comparison else None) or budget
    table = format_decision_table(decision, registry)
    create_markdown_artifact(table, key="promotion", description="may it be promoted?")
    version = get_next_version((event.version for event in registry.history), workspace.git("tag", "--list").split())
    record = PromotionRecord(
        **dict(inputs),
        approved=decision.is_approved,
        version=version if decision.is_approved else None,
        checks=decision.checks,
        champion_comparison=decision.champion_comparison,
        guarantee=decision.conclude(guarantee, EvaluationMetrics.model_validate(metrics.to_dict()).holdout),
        comparison=spent_budget.used or None,  # sums: a later record may take this one's file
        alpha_spent=spent_budget.alpha_spent or None,
        decided_at=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=workspace.git("rev-parse", "HEAD").strip(),
        requirements_sha256=compute_sha256(workspace.path / REQUIREMENTS),
        new_holdout_reason=acceptance,
        params=params.model_dump(mode="json"),
    )
    if decision.is_approved:
        return _approve(workspace, registry, decision, record, base_commit)
    return _reject(workspace, registry, decision, record, base_commit)


def _approve(
    workspace: Workspace,
    registry: Registry,
    decision: PromotionDecision,
    record: PromotionRecord,
    base_commit: str | None,
) -> PromotionResult:
    """Build and publish the approved candidate's bundle."""
    event = build_bundle(workspace.path, record)
    if base_commit:
        restore_params(workspace, base_commit)  # the bundle has the run's own
    _publish_promotion(workspace, registry.promote(event), record)
    notify_observers("promote", "ran")
    reason = decision.missing_guarantee_reason
    return PromotionResult("promoted", event.version, [reason] if reason else [])


def _reject(
    workspace: Workspace,
    registry: Registry,
    decision: PromotionDecision,
    record: PromotionRecord,
    base_commit: str | None,
) -> PromotionResult:
    """Push the record of a rejection; the candidate becomes the shadow if params.yaml says so and there is none."""
    if base_commit:
        discard_commits(workspace, base_commit)
    candidate, holdout = record.candidate_sha256, record.metrics.holdout.digest
    write_record(workspace.path / paths.APPROVALS / f"rejected-{candidate[:12]}-{holdout[:8]}.json", record)
    message = "Record why a candidate was not promoted\n\n" + "\n".join(
        reason.message_with_code for reason in decision.reasons
    )
    commit(workspace, message, paths.APPROVALS)
    push(workspace)
    live, shadow_params = registry.production_version, load_params(workspace.path / paths.PARAMS).shadow
    if (
        base_commit is None
        and live
        and should_shadow_rejected(shadow_params, read_shadow(workspace.path, "HEAD"), live)
    ):
        set_shadow(workspace)
    notify_observers("promote", "ran")
    return _finish_rejected(registry, candidate, decision.reasons)


def _finish_unchanged(workspace: Workspace, registry: Registry, base_commit: str | None) -> PromotionResult:
    _push_record(workspace, base_commit)
    notify_observers("promote", "cached")
    return PromotionResult("unchanged", registry.production_version, ["this candidate is what is in production"])


def _push_record(workspace: Workspace, base_commit: str | None) -> None:
    """Push what the run has committed; nothing of a run with its own parameters."""
    if base_commit:
        discard_commits(workspace, base_commit)
    push(workspace)


def keep_tainted(workspace: Workspace, reason: str) -> Registry:
    """Record why a version that was trained on erased or corrected rows stays in production.

    Args:
        workspace: The workspace.
        reason: The reason.

    Returns:
        The new registry.

    Raises:
        AbstainError: No tainted version is in production.
    """
    registry = load_registry(workspace.path / paths.REGISTRY).keep_tainted(reason)
    write_atomically(workspace.path / paths.REGISTRY, registry.to_json().encode())
    commit(workspace, f"Keep probe {registry.production_version}, {registry.taint}", paths.REGISTRY)
    push(workspace)
    return registry


def roll_back(workspace: Workspace, version: str | None, reason: str) -> Registry:
    """Move production to an earlier version, and block the one that is left.

    The bundle is fetched, verified and smoke-tested first.

    Args:
        workspace: The workspace.
        version: The wanted version; None selects the highest unblocked one below production.
        reason: The recorded reason.

    Returns:
        The new registry.
    """
    registry = load_registry(workspace.path / paths.REGISTRY)
    target = registry.find_rollback_target(version)
    smoke_test(fetch_bundle(workspace.path, target), target)
    event = target.model_copy(update={"action": "rollback", "occurred_at": datetime.now(UTC), "reason": reason})
    rolled_back = registry.roll_back(event)
    workspace.git("checkout", "-q", f"refs/tags/{make_version_tag(target.version)}", "--", "release.dvc")
    write_atomically(workspace.path / paths.REGISTRY, rolled_back.to_json().encode())
    assert registry.production is not None
    message = f"Roll back from {registry.production.version} to {target.version}\n\n{reason}"
    write_rollback_params(workspace, event)
    commit(workspace, message, *PRODUCTION_FILES, paths.PARAMS)
    push(workspace)
    return rolled_back


def _finish_rejected(registry: Registry, candidate: str, reasons: list[Reason]) -> PromotionResult:
    """Emit the event of a rejected candidate; raise `AbstainError` if the user must decide about a tainted version."""
    failures = [f"{reason.code} {describe_failure(reason)}" for reason in reasons]
    if registry.taint is None or registry.taint.keep_reason:
        first = reasons[0]
        text = "; ".join([f"rejected: {describe_failure(first)}", *failures[1:]])
        post_event(REJECTED, f"{REJECTED}.{candidate[:12]}", code=first.code, text=text, remedy=first.code.remedy)
        return PromotionResult("rejected", registry.production_version, failures)
    failure_text = "; ".join(failures)
    raise AbstainError(
        Code.ERASED_IN_PRODUCTION,
        f"probe {registry.production_version} stays in production, {registry.taint}, because the candidate without "
        "them is "
        f"rejected ({failure_text}): bring more reviews and retrain, take it although it is worse (`abstain "
        "promote --accept-erasure REASON`), keep what is there (`abstain promote --keep-tainted REASON`), or "
        "`abstain rollback` to a version without that mark",
    )


def _publish_promotion(workspace: Workspace, registry: Registry, record: PromotionRecord) -> None:
    """Commit the bundle with its record, the moved pointer and the changed parameters; then tag and push."""
    assert registry.production is not None
    version = registry.production.version
    changed = [LOCK] if write_promotion_params(workspace, registry.production) else []
    workspace.dvc("add", "--quiet", str(paths.RELEASE))
    write_record(workspace.path / paths.APPROVALS / f"{version}.json", record)
    write_atomically(workspace.path / paths.REGISTRY, registry.to_json().encode())
    notice = f"\n\nIt is {registry.production.notice}." if registry.production.notice else ""
    commit(workspace, f"Promote probe {version}{notice}", *PRODUCTION_FILES, paths.APPROVALS, paths.PARAMS, *changed)
    workspace.git(
        "tag",
        "--annotate",
        "--force",
        make_version_tag(version),
        "-m",
        f"probe {version}, approved by the promotion checks",
    )
    push(workspace, make_version_tag(version))
