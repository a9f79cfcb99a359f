"""The record of a promotion decision: as JSON in `approvals/`, as a table in the Prefect UI, and earlier records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from abstain.core.markdown import bold, document, heading, paragraph, records_table
from abstain.release.gate import GateDecision
from abstain.release.registry import Registry, without_guarantee


def earlier_rejection(record_file: Path, now: dict[str, Any]) -> list[str]:
    """Why this candidate was rejected before against the same champion, figures, limits and erasure; else empty.

    A rejection for latency does not count: the machine may have been busy.
    """
    if not record_file.is_file():
        return []
    record = json.loads(record_file.read_text())
    if any(check["name"] == "latency" and check["passed"] is False for check in record["checks"]):
        return []
    return list(record["reasons"]) if now == {key: record.get(key) for key in now} else []


def decision_table(decision: GateDecision, registry: Registry) -> str:
    """The gate's checks as Markdown, with the marks of a candidate without a guarantee and of a tainted champion."""
    marks = {True: "passed", False: bold("failed"), None: "not judged"}
    rows = [{"code": c.code, "check": c.name, "result": marks[c.passed], "why": c.message} for c in decision.checks]
    warning = [paragraph(bold(registry.warning))] if registry.warning else []
    mark = f", {without_guarantee(decision.more_reviews)}" if decision.no_guarantee else ""
    title = heading(2, f"{'Approved' if decision.approved else 'Rejected'}{mark}")
    return document([title, *warning, records_table(rows, words=("check", "result", "why"))])
