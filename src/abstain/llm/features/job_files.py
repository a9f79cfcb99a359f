"""Files of jobs next to the features: their names, and which of them a killed run left behind.

A job holds texts of users, so it must not stay. A young one may still be running, even in a run of another project.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from abstain.llm.features.file_store import StoredFile

JOBS = "jobs"
ABANDONED_AFTER = timedelta(days=7)
"""Jobs of a killed run count as abandoned if it has not continued after this time."""
_NAME = re.compile(rf"{JOBS}/\.?[0-9a-f]{{32}}\.(job|cost)(\.\w+)?")  # also what a killed writer did not rename


def find_abandoned_jobs(files: Iterable[StoredFile]) -> list[StoredFile]:
    """Return those of `files` that belong to abandoned jobs."""
    cutoff = datetime.now(UTC) - ABANDONED_AFTER
    return [file for file in files if file.written_at < cutoff and _NAME.fullmatch(file.name)]
