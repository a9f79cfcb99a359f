"""Contract rows, documents and files with one thing to change; a validator that finds nothing."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from abstain.config.params import ValidationParams
from abstain.core.contracts import Chunk, Context, Document, Interaction, Review, Thumb
from abstain.data.validation.checks import ExistingData, ValidatedRows
from abstain.data.validation.runner import ValidationResult

ASKED = datetime(2026, 9, 1, 12, tzinfo=UTC)
NOW = datetime(2026, 11, 1, tzinfo=UTC)
PARAMS = ValidationParams(
    max_failed_fraction=0.5, min_failed_rows=1, max_feedback_delay_days=90, max_text_chars=200, max_clock_skew_seconds=0
)
DOCUMENT = Document(doc_id="fees", title="Fees", updated_at=ASKED, body="# Card\n\nThere is no fee.")
CHUNK = Chunk(
    chunk_id="fees#0",
    doc_id="fees",
    section_path=("Card",),
    kind="text",
    text="There is no fee.",
    updated_at=ASKED,
    content_hash="0",
)


def accept_all(rows: ValidatedRows, known: ExistingData, params: ValidationParams, now: datetime) -> ValidationResult:
    return ValidationResult(rows={"interactions": len(rows.interactions)})


def later(days: float) -> datetime:
    return ASKED + timedelta(days=days)


def interaction(key: str = "i-1", **changes: Any) -> Interaction:
    fields = {"asked_at": ASKED, "question": "What is the fee?", "answer": "None.", "contexts": (), "model": "m@1"}
    return Interaction(interaction_id=key, **{**fields, **changes})


def cited(*chunk_ids: str) -> tuple[Context, ...]:
    return tuple(Context(chunk_id=chunk_id, text="t") for chunk_id in chunk_ids)


def feedback(key: str = "i-1", thumb: str = "up", days: float = 1, **changes: Any) -> Thumb:
    return Thumb(interaction_id=key, thumb=thumb, given_at=later(days), **changes)


def review(key: str = "i-1", right: bool = True, days: float = 2, **changes: Any) -> Review:
    verdicts = {"complete": True, "correct": right, "truthful": True}
    return Review(interaction_id=key, reviewed_at=later(days), **{"reviewer": "sme-1", **verdicts, **changes})


def row(key: str = "i-1", **changes: Any) -> dict[str, Any]:
    """A row of the import format; `None` as a value leaves the field out."""
    own = {**json.loads(interaction(key).to_json_line()), **changes}
    return {name: value for name, value in own.items() if value is not None}


def thumb(value: str = "up", days: float = 1, **changes: Any) -> dict[str, Any]:
    return {"thumb": value, "given_at": later(days).isoformat(), **changes}


def verdict(right: bool = True, days: float = 2, **changes: Any) -> dict[str, Any]:
    verdicts = {"complete": True, "correct": right, "truthful": True}
    return {"reviewer": "sme-1", "reviewed_at": later(days).isoformat(), **verdicts, **changes}


def markdown(doc_id: str = "fees", updated_at: str = "2026-08-01T00:00:00Z", body: str = "There is no fee.") -> str:
    return f"---\ndoc_id: {doc_id}\ntitle: Fees\nentitlements: []\nupdated_at: {updated_at}\n---\n# Card\n\n{body}\n"


def alone(value: dict[str, Any], key: str = "i-1") -> dict[str, Any]:
    """A `thumb` or a `verdict` as a row of its own."""
    return {"interaction_id": key, **value}


def write_lines(path: Path, *lines: str | bytes | dict[str, Any]) -> Path:
    texts = [json.dumps(line) if isinstance(line, dict) else line for line in lines]
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    path.write_bytes(b"\n".join(encoded) + b"\n")
    return path


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
