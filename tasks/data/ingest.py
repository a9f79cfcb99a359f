"""Atomic changes of data/: change, `dvc add`, commit, push. A killed run leaves no partial change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pandas as pd
from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from abstain.config.params import Params, load_params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.contracts import Interaction
from abstain.core.files import write_atomically
from abstain.data.store.dataset import DataStore
from abstain.data.store.record_keys import TABLES, make_interaction_identity, make_record
from abstain.ingest.corrections import describe_touched_labels, read_labels
from abstain.ingest.pipeline.run import BatchRejected, ingest
from abstain.ingest.privacy.policy import Privacy
from abstain.ingest.quarantine import Quarantine
from abstain.ingest.report import IngestReport
from abstain.ingest.sources import Source
from abstain.knowledge.documents.reader import read_documents
from abstain.knowledge.retrieval.retriever import sync_index
from abstain.release.registry import load_registry
from abstain_tasks.data.new_reviews import emit_ingest_events
from abstain_tasks.monitoring.publish import publish_ingest
from abstain_tasks.release.lineage import find_versions_trained_on
from abstain_tasks.runs.git_commit import commit_data
from abstain_tasks.runs.progress import notify_observers
from abstain_tasks.runs.workspace import Workspace


@task(cache_policy=NO_CACHE)
def ingest_sources(
    workspace: Workspace,
    sources: Sequence[Source],
    *,
    remember: bool = False,
    limited: bool = True,
    replace_reason: str | None = None,
) -> IngestReport:
    """Validate the rows of sources and append the accepted ones; rejected rows go to quarantine with their reasons.

    Args:
        workspace: The workspace.
        sources: The sources to read.
        remember: Whether the sources continue from where the last run stopped.
        limited: Whether a batch with too large a share of rejected rows is rejected as a whole.
        replace_reason: Why rows replace stored ones with other content, which marks the versions trained on these;
            None makes them conflicts.

    Returns:
        The report.

    Raises:
        BatchRejected: The batch was rejected as a whole; its invalid rows are in quarantine.
    """
    params = load_params(workspace.path / paths.PARAMS)
    validation = params.validation if limited else params.validation.model_copy(update={"max_failed_fraction": 1.0})
    privacy = Privacy.from_params(params.privacy, load_settings())
    data = workspace.path / paths.DATA
    former_labels = read_labels(DataStore(data), params) if replace_reason is not None else None
    try:
        report = ingest(
            sources,
            data,
            validation,
            datetime.now(UTC),
            privacy=privacy,
            incremental=remember,
            quality=params.quality,
            reasoning=params.labels.reasoning,
            replace_reason=replace_reason,
        )
    except BatchRejected as rejection:  # its bad rows are in quarantine now, and nothing else has changed
        publish_ingest(rejection.report, workspace, str(rejection))
        commit_data(workspace, "Quarantine a rejected batch")
        raise
    message = f"Ingest {', '.join(sorted(source.name for source in sources))}"
    if former_labels is not None and report.replaced:
        report = _record_correction(workspace, report, former_labels, params)
        message = f"{message}\n\nReplaced {len(report.replaced)} rows: {replace_reason}"
    publish_ingest(report, workspace)
    get_run_logger().info(report.to_markdown())
    changed = commit_data(workspace, message, paths.REGISTRY)
    if load_settings().index is not None:  # a tightened entitlement must not wait for the next search
        store = DataStore(data)
        sync_index(
            store.iter_chunks(),
            {document.doc_id: document.product for document in read_documents(store.list_document_files())},
            load_settings(),
        )
    emit_ingest_events(workspace, report)
    notify_observers("ingest", "ran" if changed else "cached")
    return report


def _record_correction(
    workspace: Workspace, report: IngestReport, former_labels: pd.DataFrame, params: Params
) -> IngestReport:
    """Mark the versions that were trained on replaced rows, and add to the report what these touch."""
    identities = {row.identity for row in report.replaced}
    versions = find_versions_trained_on(
        workspace,
        lambda row: (
            not identities.isdisjoint((make_record(row).identity, make_interaction_identity(row.interaction_id)))
        ),
    )
    if versions:
        file = workspace.path / paths.REGISTRY
        registry = load_registry(file).mark_tainted(versions, datetime.now(UTC), "corrected")
        write_atomically(file, registry.to_json().encode())
    names = ", ".join(version if is_certain else f"{version} (?)" for version, is_certain in versions.items())
    labels = describe_touched_labels(
        former_labels,
        read_labels(DataStore(workspace.path / paths.DATA), params),
        {row.interaction_id for row in report.replaced},
        {row.interaction_id for row in report.replaced if row.table == TABLES[Interaction]},
    )
    return replace(report, effects=(*labels, f"versions trained on the former rows, now marked: {names or 'none'}"))


def discard_quarantined(workspace: Workspace, name: str) -> int:
    """Delete the rows of a quarantine file; the sources that they blocked may continue.

    Args:
        workspace: The workspace.
        name: Id of the file, or its beginning.

    Returns:
        The number of deleted rows.
    """
    quarantine = Quarantine(workspace.path / paths.DATA)
    path = quarantine.get_file(name)
    count = quarantine.discard(path)
    commit_data(workspace, f"Discard {count} quarantined rows ({path.stem})")
    return count
