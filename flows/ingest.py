"""The flow that lets feedback and documents in.

abstain ingest FILE...     or, from the Prefect UI: deployment ingest/hourly
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow, get_run_logger

from abstain.feedback.report import IngestReport
from abstain.settings import load_settings
from tasks.ingest import ingest_files
from tasks.workspace import open_workspace


@flow(validate_parameters=False)
def ingest(files: list[str] | None = None) -> IngestReport | None:
    """Ingest `files`: JSON Lines of interactions, Markdown documents, or folders of them.

    Without any, the drop folder `$ABSTAIN_HOME/inbox` is read; what lies in it may stay: a row that is already
    there is a duplicate, not an error. Where every folder is empty there is nothing new, and None is returned.
    """
    found = [Path(file).resolve() for file in files or [str(_inbox())]]
    if all(path.is_dir() and _is_empty(path) for path in found):
        get_run_logger().info("nothing to ingest: %s", ", ".join(map(str, found)))
        return None
    with open_workspace() as workspace:
        return ingest_files(workspace, found)


def _inbox() -> Path:
    """The drop folder, made where it is missing so that it can be found."""
    inbox = load_settings().home / "inbox"
    inbox.mkdir(parents=True, exist_ok=True)
    return inbox


def _is_empty(folder: Path) -> bool:
    """Nothing lies in it but folders and hidden files."""
    return all(path.is_dir() or path.name.startswith(".") for path in folder.rglob("*"))
