"""The files of the sample, as `abstain ingest` takes them; `python -m benchmarks.sample` creates them.

`history.jsonl` ends on 2026-11-07; `incoming.jsonl` is the week after it, with rows that ingest has to detect.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

FOLDER = Path(__file__).parent
HANDBOOK, HISTORY, INCOMING = FOLDER / "handbook", FOLDER / "history.jsonl", FOLDER / "incoming.jsonl"
INCOMING_FROM = datetime(2026, 11, 8, tzinfo=UTC)
EXPORTED = (INCOMING_FROM, INCOMING_FROM + timedelta(days=7))
"""When history and incoming were written out."""
