"""Decisions to log, and logs that change nothing of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from abstain.data.decision_log.decisions import LoggedDecision
from abstain.data.decision_log.log import DecisionLog
from abstain.data.decision_log.monitoring_windows import WindowStatistics
from tests.data.builders import interaction

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
KEY = b"of the digests"


def decision(key: str = "i-1", shown: bool = True, **changes: Any) -> LoggedDecision:
    """A decision on `interaction(key)`."""
    fields = {
        "decided_at": AT,
        "decision": "show" if shown else "abstain",
        "code": None,
        "reason": None,
        "confidence": 0.75,
        "probability": 0.5,
        "threshold": 0.5,
        "version": "v1.0.0",
        "scorer": "probe",
        "forward_tokens": 12.0,
        "duration_ms": 3.0,
        "source": "api",
        "product": "cards",
        "user": None,
        "interaction": interaction(key),
    }
    return LoggedDecision(interaction_id=key, shown=shown, **{**fields, **changes})


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'decisions.sqlite'}"


def open_log(url: str, **options: Any) -> DecisionLog:
    defaults: dict[str, Any] = {"redact": lambda row: row, "pseudonym": pseudonym, "key": KEY, "keep_days": 36_500}
    return DecisionLog.open(url, **{**defaults, **options})


def pseudonym(name: str) -> str:
    return name if name.startswith("u-") else f"u-{name}"


def bytes_in(folder: Path) -> bytes:
    """Everything that the database has on disk."""
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def window_statistics(**changes: Any) -> WindowStatistics:
    """The statistics of a window without decisions or reviews, but for `changes`."""
    empty: dict[str, Any] = dict.fromkeys(
        ("coverage", "unavailable", "expected", "precision", "guarantee", "calibration")
    )
    empty |= dict.fromkeys(("decisions", "shown", "reviews", "excluded_self_selected", "self_selected"), 0)
    empty |= {"products": {}, "unavailable_codes": {}, "feed": {}, "notes": []}
    empty |= {"confidence": {"deciles": [], "stability_index": None}}
    empty |= {"prediction_errors": {"windows": 0, "mean_error": None}}
    empty |= {"compared": {"writers": {"statistics": {"now": {}}}}}
    return WindowStatistics.model_validate(empty | changes)
