"""The records of promotion decisions: as JSON in `approvals/`, as a table in the Prefect UI, and what earlier ones say.

Each record carries a seal over its content. It tells an edit, not a forger: who may push may promote, anyway.
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
from tasks.runs.workspace import Workspace

Record = dict[str, Any]
SAME_DECISION = ("champion", "gate", "erasure")
"""With equal ones, equal candidates are decided on alike."""


def write_record(file: Path, record: Record) -> None:
    """Write `record` with its seal."""
    write_json(file, {**record, "seal": _seal(record)})


def read_records(folder: Path) -> list[Record]:
    """All records, oldest first. Raises `AbstainError` naming the one that was edited or cannot be read."""
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
                f"{folder.name}/{file.name} was edited since the gate wrote it, so the comparisons on this hold-out "
                f"cannot be counted: restore it from git (git log -- {folder.name}/{file.name})",
            )
        records.append(record)
    return sorted(records, key=lambda record: str(record["decided_at"]))


def require_records(names: Iterable[str], root: Path) -> None:
    """Raises `AbstainError` for the first of `names`, records that git knows of in `root`, that is not there."""
    missing = next((name for name in names if not (root / name).is_file()), None)
    if missing is not None:
        raise AbstainError(
            Code.BAD_ARTIFACT,
            f"{missing} was deleted, so the comparisons on this hold-out cannot be counted: restore it (git checkout "
            f'"$(git log -1 --format=%h --diff-filter=D -- {missing})^" -- {missing}), and commit it',
        )


def read_verified_records(workspace: Workspace, registry: Registry) -> list[Record]:
    """All records, oldest first. Raises `AbstainError` where one was edited, or one that git knows of is gone."""
    if registry.history:
        since = f"refs/tags/{make_version_tag(registry.history[0].version)}"  # before it nothing was compared
        workspace.require_revision(since)
        of_versions = [str(paths.APPROVALS / f"{event.version}.json") for event in registry.history]
        require_records([*of_versions, *workspace.list_added_files(since, paths.APPROVALS)], workspace.path)
    return read_records(workspace.path / paths.APPROVALS)


def read_comparison_budget(records: Iterable[Record], holdout: str, accepting: bool) -> ComparisonBudget:
    """The comparisons on the hold-out with this digest, and what they have spent.

    All comparisons since the hold-out was accepted count, also those from before some of its answers were erased. While
    another one is `accepting`, those on that one do.
    """
    taken: list[Record] = []
    for record in records:
        if accepting:
            if record["metrics"]["holdout"]["digest"] == holdout:
                taken.append(record)
            continue
        if record["approved"] and record["new_holdout"] is not None:
            taken.clear()
        taken.append(record)
    # Each record has the sums up to it.
    return ComparisonBudget(*(max((record[key] or 0 for record in taken), default=0) for key in ("look", "spent")))


def get_prior_coverage_loss(records: Iterable[Record], champion: str | None) -> float:
    """What `champion` shows less, as a share of all answers, than the versions that were in production before it.

    0 where its loss was accepted by hand, was not told from chance, or another target was asked for.
    """
    record = next((one for one in records if champion is not None and one.get("version") == champion), None)
    if record is None or (record["erasure"] or {}).get("accepted"):
        return 0.0
    values = [check["value"] for check in record["checks"] if check["name"] == COVERAGE and check["passed"]]
    return max(0.0, -values[0]) if values else 0.0


def find_holdout_acceptance(records: Iterable[Record], holdout: str) -> str | None:
    """The reason for which the hold-out with this digest was accepted, whatever became of the candidate then."""
    reasons = [one["new_holdout"] for one in records if one["metrics"]["holdout"]["digest"] == holdout]
    return next((reason for reason in reversed(reasons) if reason is not None), None)


def find_holdout_refill(records: Iterable[Record], champion: str, split: SplitParams) -> str | None:
    """The reason for another hold-out than the champion's where params.yaml says that it was refilled since."""
    before = next(
        (one["params"]["split"] for one in records if one.get("version") == champion and "params" in one), None
    )
    now = split.model_dump(mode="json")
    if before is None or split.holdout_from is None or before["holdout_from"] == now["holdout_from"]:
        return None
    return f"refilled with the answers asked since {now['holdout_from']}"


def find_earlier_rejection(records: Iterable[Record], now: Record) -> list[Reason]:
    """Why this candidate was rejected before, by the same limits and beside the same champion; else empty.

    `now` has what a record has before the decision. A candidate is the same with equal bytes and figures, and with
    equal data, params and code, whose bytes differ only by the processor. A rejection for latency does not count: the
    machine may have been busy. What reviews said of it as a shadow is none.
    """
    for record in records:
        if record["approved"] or "shadow" in record or any(record[key] != now[key] for key in SAME_DECISION):
            continue
        same_bytes = all(record[key] == now[key] for key in ("candidate_sha256", "metrics"))
        same_inputs = now["inputs_sha256"] is not None and record["inputs_sha256"] == now["inputs_sha256"]
        slow = any(check["name"] == "latency" and check["passed"] is False for check in record["checks"])
        if (same_bytes or same_inputs) and not slow:
            return [Reason(Code(one["code"]), one["field"], one["message"]) for one in record["reasons"]]
    return []


def hash_stage_inputs(lock_file: Path) -> str | None:
    """sha256 (hex) over what the stages read that no stage makes: data, params and code; None without a lock."""
    if not lock_file.is_file():
        return None
    stages = yaml.safe_load(lock_file.read_text()).get("stages", {}).values()
    made = {out["path"] for stage in stages for out in stage.get("outs", ())}
    read = {dep["path"]: dep.get("md5") for stage in stages for dep in stage.get("deps", ()) if dep["path"] not in made}
    params = [stage.get("params") for stage in stages]
    return hashlib.sha256(json.dumps([read, params], sort_keys=True, default=str).encode()).hexdigest()


def format_decision_table(decision: PromotionDecision, registry: Registry) -> str:
    """The gate's checks as Markdown, with the marks of a candidate without a guarantee and of a tainted champion."""
    marks = {True: "passed", False: bold("failed"), None: "not judged"}
    rows = [{"code": c.code, "check": c.name, "result": marks[c.passed], "why": c.message} for c in decision.checks]
    warning = [paragraph(bold(registry.warning))] if registry.warning else []
    mark = f", {describe_missing_guarantee(decision.more_reviews)}" if decision.no_guarantee else ""
    title = heading(2, f"{'Approved' if decision.approved else 'Rejected'}{mark}")
    compared = [
        {
            "figure": one.figure,
            "challenger": f"{one.challenger:.3f}",
            "champion": f"{one.champion:.3f}",
            "difference": f"{one.difference:+.3f} ({one.low:+.3f} to {one.high:+.3f})",
        }
        for one in decision.comparison
    ]
    beside = [heading(2, "Beside the champion"), records_table(compared)] if compared else []
    return document([title, *warning, records_table(rows, words=("check", "result", "why")), *beside])


def _seal(record: Record) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
