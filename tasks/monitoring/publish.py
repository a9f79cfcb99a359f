"""A run's artifacts in the Prefect UI: tables, plots, and links to the data reports."""

from __future__ import annotations

import base64
import json
from typing import Any

import pandas as pd
from prefect import runtime, task
from prefect.artifacts import (
    create_image_artifact,
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.cache_policies import NO_CACHE

from abstain.core import paths
from abstain.core.markdown import bold, paragraph
from abstain.data.store.dataset import read_rows
from abstain.ingest.pipeline.report import IngestReport
from abstain.ingest.quarantine import QuarantinedRow
from abstain.release.registry import load_registry
from abstain.reports.data_reports.ingest import ingest_report
from abstain.reports.data_reports.validation import validation_report
from abstain.reports.evaluation import leaderboard_table
from abstain.reports.page import render_html, without_images
from tasks.runs.workspace import Workspace
from tasks.server import reports


@task(cache_policy=NO_CACHE)
def publish_validation(workspace: Workspace) -> None:
    """Artifacts `validation` and `validation-report`, the link to its page; of a failed run, as far as it came.

    The results of the training table's suites are shown only for valid rows: after invalid ones they are of an earlier
    run.
    """
    found = [_read_json(workspace, paths.VALIDATION)]
    if found[0] and found[0]["success"]:
        found.append(_read_json(workspace, paths.QUALITY))
    results = [result for result in found if result]
    if not results:  # the run failed before anything was validated
        return
    markdown, page = validation_report(results, f"{_run_name()}, data as of {results[0]['as_of']}")
    _publish_page("validation", page, markdown, "Great Expectations")


def publish_ingest(report: IngestReport, workspace: Workspace, refused: str | None = None) -> None:
    """Artifacts `ingest` and `ingest-report`, the link to its page; `refused` is why the batch was refused whole.

    A run that found nothing to read, as most hourly ones do, leaves no artifacts.
    """
    if not report.read:
        return
    data = workspace.path / paths.DATA
    rows = read_rows(data / report.quarantine, QuarantinedRow) if report.quarantine else ()
    markdown, page = ingest_report(report, _run_name(), rows, refused)
    _publish_page("ingest", page, markdown, "what was accepted, and what was not")


@task(cache_policy=NO_CACHE)
def publish_artifacts(workspace: Workspace) -> None:
    """Artifacts `leaderboard`, `thresholds`, one plot each, `evaluation` and the link to its page.

    The last one has a warning where production was trained on rows that were erased since.
    """
    root = workspace.path
    metrics, evaluation = (json.loads((root / file).read_text()) for file in (paths.METRICS, paths.EVALUATION))
    create_markdown_artifact(
        leaderboard_table(metrics, evaluation), key="leaderboard", description="on the frozen hold-out"
    )
    from abstain.reports.plots import PLOTS  # imports matplotlib, which a run does not need before

    table = pd.read_csv(root / paths.PLOTS / "threshold.csv").round(4)
    create_table_artifact(
        [{str(k): v for k, v in row.items()} for row in table.to_dict("records")],
        key="thresholds",
        description="on the frozen hold-out",
    )
    images = {name: (root / paths.REPORT / f"{name}.svg").read_bytes() for name in PLOTS}
    for name, svg in images.items():
        key = f"plot-{name.replace('_', '-')}"
        create_image_artifact(svg_address(svg), key=key, description=name)
    markdown = (root / paths.REPORT / "report.md").read_text(encoding="utf-8")
    if warning := load_registry(root / paths.REGISTRY).warning:
        markdown = f"{paragraph(bold(warning))}\n\n{markdown}"
    _publish_page("evaluation", render_html(markdown, images), markdown, "every scorer on the frozen hold-out")


def svg_address(svg: bytes) -> str:
    """An image as its own address: the UI can load none from elsewhere."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def _publish_page(name: str, page: str, markdown: str, description: str) -> None:
    """Keep the page, and publish the Markdown with its plots in words: a browser opens no file from a server's page."""
    address = reports.keep(str(runtime.flow_run.id), name, page)
    create_link_artifact(address, link_text=f"{name} report", key=f"{name}-report", description=f"the {name} page")
    text = f"[The whole page]({address})\n\n{without_images(markdown)}"
    create_markdown_artifact(text, key=name, description=description)


def _run_name() -> str:
    return f"{runtime.flow_run.flow_name} {runtime.flow_run.name}"


def _read_json(workspace: Workspace, file: Any) -> Any:
    """The parsed file; None where there is none."""
    path = workspace.path / file
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
