"""Decisions to log, and logs that change nothing of them."""

from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from abstain.core.contracts import Review
from abstain.core.errors import AbstainError
from abstain.data.decision_log.decisions import LoggedDecision
from abstain.data.decision_log.log import DecisionLog
from abstain.data.decision_log.monitoring_windows import CheckedGuarantee, WindowStatistics
from abstain.ingest.sources.decision_log import DecisionLogSource
from tests.factories import interaction

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


def get_outcome(future: Future[Any]) -> Any:
    """Return the outcome of a row, or the code of its error."""
    error = future.exception(timeout=20)
    if error is None:
        return future.result()
    assert isinstance(error, AbstainError)
    return error.code


def record(log: DecisionLog, *decisions: LoggedDecision) -> list[Any]:
    """Record decisions one after the other, and return their outcomes."""
    return [get_outcome(log.record_decision(row)) for row in decisions]


def read_reviews(folder: Path) -> list[Review]:
    """Read the reviews as ingest does, in the order of the log."""
    return [row.review for row in DecisionLogSource(name="decisions", url=url_of(folder)).read({}) if row.review]


def make_window_statistics(**changes: Any) -> WindowStatistics:
    """Return the statistics of a window without decisions or reviews, except for `changes`."""
    empty: dict[str, Any] = dict.fromkeys(
        ("coverage", "unavailable", "expected", "precision", "reviewed_precision", "guarantee", "calibration")
    )
    empty |= dict.fromkeys(("decisions", "shown", "reviews", "excluded_self_selected", "self_selected"), 0)
    empty |= {"products": {}, "unavailable_codes": {}, "feed": {}, "notes": []}
    empty |= {"confidence": {"deciles": [], "stability_index": None}}
    empty |= {"prediction_errors": {"windows": 0, "mean_error": None}}
    empty |= {"compared": {"writers": {"statistics": {"before": {}, "now": {}, "new": 0.0}}}}
    return WindowStatistics.model_validate(empty | changes)


def make_guarantee(**changes: Any) -> CheckedGuarantee:
    """Return a checked guarantee of a precision of 0.9 that holds."""
    fields = {
        "metric": "precision",
        "target": 0.9,
        "alpha": 0.05,
        "estimate": 0.85,
        "low": 0.8,
        "high": 0.91,
        "e_value": 1.5,
        "max_e_value": 2.5,
        "is_violated": False,
        "violated_on": None,
        "reviews": 90,
        "documents": 40,
        "inputs": "0123456789abcdef",
    }
    return CheckedGuarantee.model_validate(fields | changes)
