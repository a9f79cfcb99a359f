"""Records of promotion decisions: JSON files in `approvals/`, tables in the Prefect UI, and what earlier records say.

Each record carries a seal over its content. It detects an edit, but no forgery: whoever may push may promote anyway.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from abstain.config.params import SplitParams
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_json
from abstain.core.markdown import bold, document, heading, paragraph, records_table
from abstain.core.reasons import Reason
from abstain.release.champion_comparison import ComparisonBudget
from abstain.release.degradation_checks import COVERAGE
from abstain.release.promotion_check import PromotionDecision
from abstain.release.promotion_record import RECORDS, DecisionInputs, DecisionRecord, PromotionRecord, ShadowRecord
from abstain.release.registry import Registry, describe_missing_guarantee, make_version_tag
from abstain_tasks.runs.workspace import Workspace

DECISION_KEYS = ("champion", "limits", "erasure")
"""With equal ones, equal candidates are decided on alike."""


def write_record(file: Path, record: DecisionRecord) -> None:
    """Write a record with its seal.

    Args:
        file: The file to write.
        record: The record.
    """
    content = record.to_dict()
    write_json(file, {**content, "seal": _seal(content)})


def read_records(folder: Path) -> list[PromotionRecord | ShadowRecord]:
    """Read all records.

    Args:
        folder: The folder of the records.

    Returns:
        The records, oldest first.

    Raises:
        AbstainError: A record was edited or cannot be read; the message names it.
    """
    records = []
    for file in sorted(folder.glob("*.json")):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content.pop("seal") != _seal(content):
                raise ValueError
            records.append(RECORDS.validate_python(content))
        except (ValueError, AttributeError, KeyError, TypeError):
            raise AbstainError(
                Code.BAD_ARTIFACT,
                f"{folder.name}/{file.name} was edited since it was written, so the comparisons on this hold-out "
                f"cannot be counted: restore it from git (git log -- {folder.name}/{file.name})",
            ) from None
    return sorted(records, key=lambda record: record.decided_at)


def read_verified_records(workspace: Workspace, registry: Registry) -> list[PromotionRecord | ShadowRecord]:
    """Read all records and require those that git knows of.

    Args:
        workspace: The workspace.
        registry: The current registry.

    Returns:
        The records, oldest first.

    Raises:
        AbstainError: A record was edited or is missing.
    """
    if registry.history:
        since = f"refs/tags/{make_version_tag(registry.history[0].version)}"  # before it nothing was compared
        workspace.require_revision(since)
        of_versions = [str(paths.APPROVALS / f"{event.version}.json") for event in registry.history]
        for name in (*of_versions, *workspace.list_added_files(since, paths.APPROVALS)):
            if not (workspace.path / name).is_file():
                raise AbstainError(
                    Code.BAD_ARTIFACT,
                    f"{name} was deleted, so the comparisons on this hold-out cannot be counted: restore it (git "
                    f'checkout "$(git log -1 --format=%h --diff-filter=D -- {name})^" -- {name}), and commit it',
                )
    return read_records(workspace.path / paths.APPROVALS)


def read_comparison_budget(records: Iterable[DecisionRecord], holdout: str, accepting: bool) -> ComparisonBudget:
    """Count the comparisons on a hold-out and the alpha that they spent.

    Args:
        records: Promotion records, oldest first.
        holdout: Digest of the hold-out.
        accepting: Whether a new hold-out is being accepted. If so, only records with exactly this digest count;
            otherwise all records since the last acceptance, also those from before answers were erased.

    Returns:
        The comparison budget that is used so far.
    """
    comparisons: list[DecisionRecord] = []
    for record in records:
        if not accepting and record.approved and record.new_holdout_reason is not None:
            comparisons.clear()
        if not accepting or record.metrics.holdout.digest == holdout:
            comparisons.append(record)
    # Each record has the sums up to it.
    return ComparisonBudget(
        max((record.comparison or 0 for record in comparisons), default=0),
        max((record.alpha_spent or 0.0 for record in comparisons), default=0.0),
    )


def get_prior_coverage_loss(records: Iterable[DecisionRecord], champion: str | None) -> float:
    """Get the coverage that the champion lost against the versions in production before it.

    Args:
        records: Promotion records.
        champion: The version in production; None if there is none.

    Returns:
        The loss as a share of all answers; 0 if it was accepted by hand, not significant, or the target was another
        one.
    """
    record = next((record for record in records if champion is not None and record.version == champion), None)
    if record is None or (record.erasure and record.erasure.accepted):
        return 0.0
    return max([0.0, *(-check.value for check in record.checks if check.name == COVERAGE and check.passed)])


def find_holdout_acceptance(records: Iterable[DecisionRecord], holdout: str) -> str | None:
    """Find the recorded reason for accepting a hold-out, whether that candidate was promoted or not.

    Args:
        records: Promotion records, oldest first.
        holdout: Digest of the hold-out.

    Returns:
        The latest reason; None if it was never accepted.
    """
    reasons = [record.new_holdout_reason for record in records if record.metrics.holdout.digest == holdout]
    return next((reason for reason in reversed(reasons) if reason is not None), None)


def find_holdout_refill(records: Iterable[DecisionRecord], champion: str, split: SplitParams) -> str | None:
    """Find out whether params.yaml has refilled the hold-out since the champion's promotion.

    Args:
        records: Promotion records.
        champion: The version in production.
        split: Current parameters of the split.

    Returns:
        The reason to record; None if it was not refilled.
    """
    current = split.model_dump(mode="json")["holdout_from"]
    for record in records:
        if isinstance(record, PromotionRecord) and record.version == champion:
            is_refilled = current is not None and record.params["split"]["holdout_from"] != current
            return f"refilled with the answers asked since {current}" if is_refilled else None
    return None


def find_earlier_rejection(records: Iterable[DecisionRecord], inputs: DecisionInputs) -> list[Reason]:
    """Find an earlier rejection of the same candidate with the same limits and champion.

    A candidate is the same if its bytes and metrics are equal, or if data, params and code are equal, so that bytes
    differ only by the processor. A rejection for latency does not count, because the machine may have been busy. The
    comparison of a shadow is no rejection.

    Args:
        records: Promotion records.
        inputs: What the new decision depends on.

    Returns:
        The reasons; empty without such a rejection.
    """
    for record in records:
        if record.approved or isinstance(record, ShadowRecord) or not _are_equal(record, inputs, *DECISION_KEYS):
            continue
        same_bytes = _are_equal(record, inputs, "candidate_sha256", "metrics")
        same_inputs = inputs.inputs_sha256 is not None and _are_equal(record, inputs, "inputs_sha256")
        slow = any(check.name == "latency" for check in record.failed_checks)
        if (same_bytes or same_inputs) and not slow:
            return [check.to_reason() for check in record.failed_checks]
    return []


def hash_stage_inputs(lock_file: Path) -> str | None:
    """Hash what the stages read but no stage writes: data, params and code.

    Args:
        lock_file: dvc.lock.

    Returns:
        sha256 (hex); None if the file does not exist.
    """
    if not lock_file.is_file():
        return None
    stages = yaml.safe_load(lock_file.read_text()).get("stages", {}).values()
    output_paths = {out["path"] for stage in stages for out in stage.get("outs", ())}
    digest_by_path = {
        dep["path"]: dep.get("md5")
        for stage in stages
        for dep in stage.get("deps", ())
        if dep["path"] not in output_paths
    }
    params = [stage.get("params") for stage in stages]
    return hashlib.sha256(json.dumps([digest_by_path, params], sort_keys=True, default=str).encode()).hexdigest()


def format_decision_table(decision: PromotionDecision, registry: Registry) -> str:
    """Format the promotion checks as Markdown, with notices of a missing guarantee and of a tainted champion.

    Args:
        decision: The decision.
        registry: The current registry.

    Returns:
        The Markdown.
    """
    results = {True: "passed", False: bold("failed"), None: "not judged"}
    rows = [
        {"code": c.code, "check": c.name, "result": results[c.passed], "reason": c.message} for c in decision.checks
    ]
    warning = [paragraph(bold(registry.warning))] if registry.warning else []
    notice = f", {describe_missing_guarantee(decision.additional_reviews)}" if decision.missing_guarantee_reason else ""
    title = heading(2, f"{'Approved' if decision.is_approved else 'Rejected'}{notice}")
    comparison_rows = [
        {
            "metric": comparison.metric,
            "candidate": f"{comparison.candidate:.3f}",
            "champion": f"{comparison.champion:.3f}",
            "difference": f"{comparison.difference:+.3f} ({comparison.low:+.3f} to {comparison.high:+.3f})",
        }
        for comparison in decision.champion_comparison
    ]
    comparison_blocks = (
        [heading(2, "Compared with the champion"), records_table(comparison_rows)] if comparison_rows else []
    )
    return document(
        [title, *warning, records_table(rows, text_columns=("check", "result", "reason")), *comparison_blocks]
    )


def _are_equal(record: DecisionRecord, inputs: DecisionInputs, *names: str) -> bool:
    return all(getattr(record, name) == getattr(inputs, name) for name in names)


def _seal(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
