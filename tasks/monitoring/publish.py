"""Artifacts of a run in the Prefect UI: tables, plots, and links to the data reports."""

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
from abstain.data.validation.results import ValidationResult
from abstain.ingest.quarantine import QuarantinedRow
from abstain.ingest.report import IngestReport
from abstain.learning.evaluation.evaluation_result import EvaluationResult
from abstain.release.registry import load_registry
from abstain.reports.data_reports.ingest import ingest_report
from abstain.reports.data_reports.validation import validation_report
from abstain.reports.evaluation import render_leaderboard
from abstain.reports.page import render_html, replace_images
from abstain_tasks.runs.workspace import Workspace
from abstain_tasks.server import reports


@task(cache_policy=NO_CACHE)
def publish_validation(workspace: Workspace) -> None:
    """Publish the artifacts `validation` and `validation-report`, the link to its page.

    For a failed run they show what was validated until then. The results of the training table's suites are shown only
    for valid rows: after invalid ones they are those of an earlier run.

    Args:
        workspace: The workspace of the run.
    """
    content = _read_json(workspace, paths.VALIDATION)
    if not content:  # the run failed before anything was validated
        return
    result = ValidationResult.from_dict(content)
    if result.success and (quality := _read_json(workspace, paths.QUALITY)):
        result = ValidationResult.merge([result, ValidationResult.from_dict(quality)])
    markdown, page = validation_report(result, f"{_run_name()}, data as of {result.as_of}")
    _publish_page("validation", page, markdown, "Great Expectations")


def publish_ingest(report: IngestReport, workspace: Workspace, rejection: str | None = None) -> None:
    """Publish the artifacts `ingest` and `ingest-report`, the link to its page.

    A run that found nothing to read, such as most hourly ones, leaves no artifacts.

    Args:
        report: The report of the ingest.
        workspace: The workspace of the run.
        rejection: Why the batch was rejected as a whole; None if it was not.
    """
    if not report.read:
        return
    data = workspace.path / paths.DATA
    rows = read_rows(data / report.quarantine, QuarantinedRow) if report.quarantine else ()
    markdown, page = ingest_report(report, _run_name(), rows, rejection)
    _publish_page("ingest", page, markdown, "what was accepted, and what was not")


@task(cache_policy=NO_CACHE)
def publish_artifacts(workspace: Workspace) -> None:
    """Publish the artifacts `leaderboard`, `thresholds`, one plot each, `evaluation` and the link to its page.

    `evaluation` has a warning if production was trained on rows that were erased or corrected later.

    Args:
        workspace: The workspace of the run.
    """
    root = workspace.path
    result = EvaluationResult.from_files(*(_read_json(workspace, file) for file in (paths.METRICS, paths.EVALUATION)))
    create_markdown_artifact(render_leaderboard(result), key="leaderboard", description="on the frozen hold-out")
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
        create_image_artifact(make_svg_url(svg), key=key, description=name)
    markdown = (root / paths.REPORT / "report.md").read_text(encoding="utf-8")
    if warning := load_registry(root / paths.REGISTRY).warning:
        markdown = f"{paragraph(bold(warning))}\n\n{markdown}"
    _publish_page("evaluation", render_html(markdown, images), markdown, "every scorer on the frozen hold-out")


def make_svg_url(svg: bytes) -> str:
    """Encode an image as a data URL, because the UI loads no images from elsewhere.

    Args:
        svg: The image.

    Returns:
        The URL.
    """
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def _publish_page(name: str, page: str, markdown: str, description: str) -> None:
    """Store the page, and publish its text as Markdown: a browser opens no file from a server's page."""
    address = reports.write_page(str(runtime.flow_run.id), name, page)
    create_link_artifact(address, link_text=f"{name} report", key=f"{name}-report", description=f"the {name} page")
    text = f"[The whole page]({address})\n\n{replace_images(markdown)}"
    create_markdown_artifact(text, key=name, description=description)


def _run_name() -> str:
    return f"{runtime.flow_run.flow_name} {runtime.flow_run.name}"


def _read_json(workspace: Workspace, file: Any) -> Any:
    """Read a JSON file; None if there is none."""
    path = workspace.path / file
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
