"""The flow that ingests feedback and documents.

abstain ingest             what is new in the sources of sources.yaml; or, from the Prefect UI: deployment ingest/hourly
abstain ingest FILE...     these files or folders, whole; with --mapping: the exports of another tool
"""

from __future__ import annotations

from collections.abc import Sequence

from prefect import flow, get_run_logger

from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.ingest.quarantine import Quarantine
from abstain.ingest.report import IngestReport
from abstain.ingest.sources import Source
from abstain.ingest.sources.config import load_sources
from abstain.ingest.sources.export import make_explicit_export
from abstain.ingest.sources.files import make_explicit_sources
from abstain.ingest.sources.quarantine_source import QuarantineSource
from abstain_tasks.data.ingest import ingest_sources
from abstain_tasks.runs.failures import coded_failures
from abstain_tasks.runs.git_commit import OriginMoved
from abstain_tasks.runs.workspace import open_workspace

ATTEMPTS = 3


@flow(validate_parameters=False)
@coded_failures()
def ingest(
    files: list[str] | None = None, mapping: str | None = None, replace_reason: str | None = None
) -> IngestReport:
    """Ingest files, or the new rows of the configured sources.

    A row that is already there is a duplicate, not an error. If another run pushed first, the batch is ingested again
    on top of that run's data.

    Args:
        files: JSON Lines, CSV, Parquet, Markdown, HTML, or folders or URLs of them; exports of another tool with
            `mapping`.
        mapping: File that explains the exports.
        replace_reason: Why the rows of the files replace stored ones with other content; None makes them conflicts.

    Returns:
        The report.
    """
    selected: Sequence[Source] = ()
    if mapping is not None:
        selected = (make_explicit_export(files or (), mapping),)
    elif files:
        selected = make_explicit_sources(files)
    for attempt in range(ATTEMPTS):
        with open_workspace() as workspace:
            sources = selected or load_sources(workspace.path / paths.SOURCES, load_settings().home)
            try:
                return ingest_sources(workspace, sources, remember=not selected, replace_reason=replace_reason)
            except OriginMoved:
                if attempt + 1 == ATTEMPTS:
                    raise
                get_run_logger().warning("another run was faster: taking the batch again")
    raise AssertionError("unreachable")


@flow(validate_parameters=False)
@coded_failures()
def retry(name: str) -> IngestReport:
    """Validate the rows of a quarantine file again, by the current rules and data; valid rows are accepted.

    Args:
        name: Id of the file, or its beginning.

    Returns:
        The report.
    """
    with open_workspace() as workspace:
        quarantine = Quarantine(workspace.path / paths.DATA)
        path = quarantine.get_file(name)
        source = QuarantineSource(path.stem, tuple(quarantine.iter_rows(path)))
        return ingest_sources(workspace, [source], limited=False)
