"""The files of jobs beside the features: their names, and which of them a killed run left behind.

A job holds users' texts, so it must not stay; but one that is young may be at work, even in another project's run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from abstain.llm.features.file_store import StoredFile

JOBS = "jobs"
LEFT_BEHIND = timedelta(days=7)
"""A run that was killed, and has not gone on after that time, left its jobs behind."""
_NAME = re.compile(rf"{JOBS}/\.?[0-9a-f]{{32}}\.(job|cost)(\.\w+)?")  # also what a killed writer did not rename


def left_jobs(files: Iterable[StoredFile]) -> list[StoredFile]:
    """Those of `files` that are of jobs which were left behind."""
    before = datetime.now(UTC) - LEFT_BEHIND
    return [file for file in files if file.written < before and _NAME.fullmatch(file.name)]
