"""The flow that lets feedback and documents in.

abstain ingest FILE...     or, from the Prefect UI: deployment ingest/hourly
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from abstain.feedback.report import IngestReport
from tasks.ingest import ingest_files
from tasks.workspace import open_workspace


@flow(validate_parameters=False)
def ingest(files: list[str]) -> IngestReport | None:
    """Ingest `files`: JSON Lines of interactions, Markdown documents, or folders of them.

    A folder that is empty is no error for a schedule: there is simply nothing new, and None is returned.
    """
    found = [Path(file).resolve() for file in files]
    if all(path.is_dir() and not any(path.rglob("*.*")) for path in found):
        return None
    with open_workspace() as workspace:
        return ingest_files(workspace, found)
