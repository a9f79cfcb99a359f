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
from abstain.release.registry import Registry, describe_missing_guarantee, make_version_tag
from abstain_tasks.runs.workspace import Workspace

Record = dict[str, Any]
DECISION_KEYS = ("champion", "limits", "erasure")
"""With equal ones, equal candidates are decided on alike."""


def write_record(file: Path, record: Record) -> None:
    """Write a record with its seal.

    Args:
        file: The file to write.
        record: The record.
    """
    write_json(file, {**record, "seal": _seal(record)})


def read_records(folder: Path) -> list[Record]:
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
            record = json.loads(file.read_text(encoding="utf-8"))
            whole = record.pop("seal") == _seal(record) and isinstance(record["decided_at"], str)
        except (ValueError, AttributeError, KeyError, TypeError):
            whole = False
        if not whole:
            raise AbstainError(
                Code.BAD_ARTIFACT,
                f"{folder.name}/{file.name} was edited since it was written, so the comparisons on this hold-out "
                f"cannot be counted: restore it from git (git log -- {folder.name}/{file.name})",
            )
        records.append(record)
    return sorted(records, key=lambda record: str(record["decided_at"]))


def require_records(names: Iterable[str], root: Path) -> None:
    """Require that records exist.

    Args:
        names: Records that git knows of, as paths in `root`.
        root: The folder of the workspace.

    Raises:
        AbstainError: A record is missing; the message names the first one.
    """
    missing = next((name for name in names if not (root / name).is_file()), None)
    if missing is not None:
        raise AbstainError(
            Code.BAD_ARTIFACT,
            f"{missing} was deleted, so the comparisons on this hold-out cannot be counted: restore it (git checkout "
            f'"$(git log -1 --format=%h --diff-filter=D -- {missing})^" -- {missing}), and commit it',
        )


def read_verified_records(workspace: Workspace, registry: Registry) -> list[Record]:
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
        require_records([*of_versions, *workspace.list_added_files(since, paths.APPROVALS)], workspace.path)
    return read_records(workspace.path / paths.APPROVALS)


def read_comparison_budget(records: Iterable[Record], holdout: str, accepting: bool) -> ComparisonBudget:
    """Count the comparisons on a hold-out and the alpha that they spent.

    Args:
        records: Promotion records, oldest first.
        holdout: Digest of the hold-out.
        accepting: Whether a new hold-out is being accepted. If so, only records with exactly this digest count;
            otherwise all records since the last acceptance, also those from before answers were erased.

    Returns:
        The comparison budget that is used so far.
    """
    comparisons: list[Record] = []
    for record in records:
        if accepting:
            if record["metrics"]["holdout"]["digest"] == holdout:
                comparisons.append(record)
            continue
        if record["approved"] and record["new_holdout_reason"] is not None:
            comparisons.clear()
        comparisons.append(record)
    # Each record has the sums up to it.
    return ComparisonBudget(
        *(max((record[key] or 0 for record in comparisons), default=0) for key in ("comparison", "alpha_spent"))
    )


def get_prior_coverage_loss(records: Iterable[Record], champion: str | None) -> float:
    """Get the coverage that the champion lost against the versions in production before it.

    Args:
        records: Promotion records.
        champion: The version in production; None if there is none.

    Returns:
        The loss as a share of all answers; 0 if it was accepted by hand, not significant, or the target was another
        one.
    """
    record = next((record for record in records if champion is not None and record.get("version") == champion), None)
    if record is None or (record["erasure"] or {}).get("accepted"):
        return 0.0
    values = [check["value"] for check in record["checks"] if check["name"] == COVERAGE and check["passed"]]
    return max(0.0, -values[0]) if values else 0.0


def find_holdout_acceptance(records: Iterable[Record], holdout: str) -> str | None:
    """Find the recorded reason for accepting a hold-out, whether that candidate was promoted or not.

    Args:
        records: Promotion records, oldest first.
        holdout: Digest of the hold-out.

    Returns:
        The latest reason; None if it was never accepted.
    """
    reasons = [record["new_holdout_reason"] for record in records if record["metrics"]["holdout"]["digest"] == holdout]
    return next((reason for reason in reversed(reasons) if reason is not None), None)


def find_holdout_refill(records: Iterable[Record], champion: str, split: SplitParams) -> str | None:
    """Find out whether params.yaml has refilled the hold-out since the champion's promotion.

    Args:
        records: Promotion records.
        champion: The version in production.
        split: Current parameters of the split.

    Returns:
        The reason to record; None if it was not refilled.
    """
    promoted = next(
        (record["params"]["split"] for record in records if record.get("version") == champion and "params" in record),
        None,
    )
    current = split.model_dump(mode="json")
    if promoted is None or split.holdout_from is None or promoted["holdout_from"] == current["holdout_from"]:
        return None
    return f"refilled with the answers asked since {current['holdout_from']}"


def find_earlier_rejection(records: Iterable[Record], inputs: Record) -> list[Reason]:
    """Find an earlier rejection of the same candidate with the same limits and champion.

    A candidate is the same if its bytes and metrics are equal, or if data, params and code are equal, so that bytes
    differ only by the processor. A rejection for latency does not count, because the machine may have been busy. The
    comparison of a shadow is no rejection.

    Args:
        records: Promotion records.
        inputs: The keys that a record has before the decision.

    Returns:
        The reasons; empty without such a rejection.
    """
    for record in records:
        if record["approved"] or "shadow" in record or any(record[key] != inputs[key] for key in DECISION_KEYS):
            continue
        same_bytes = all(record[key] == inputs[key] for key in ("candidate_sha256", "metrics"))
        same_inputs = inputs["inputs_sha256"] is not None and record["inputs_sha256"] == inputs["inputs_sha256"]
        slow = any(check["name"] == "latency" and check["passed"] is False for check in record["checks"])
        if (same_bytes or same_inputs) and not slow:
            return [Reason(Code(reason["code"]), reason["check"], reason["message"]) for reason in record["reasons"]]
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


def _seal(record: Record) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
