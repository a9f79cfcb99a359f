"""A study's steps in a run: one task per cell, and the run's artifact in the Prefect UI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from abstain.study.cell import ExperimentRunner
from abstain.study.declared import ExperimentCell
from abstain.study.results import Results, decided_by
from tasks.progress import observe

KEY = "study"


@task(task_run_name="{name}", cache_policy=NO_CACHE)
def run_cell(
    laboratory: ExperimentRunner, cell: ExperimentCell, name: str, files: Mapping[str, str], results: Results
) -> Literal["ran", "cached"]:
    """Compute the result of `cell` into `results`, unless it is there. `name` is the name of the task run."""
    logger = get_run_logger()

    def progress(done: int, total: int) -> None:
        observe(name, f"progress {done}/{total}")
        logger.info("%s of %s", done, total)

    decided = decided_by(laboratory, cell, files)
    status: Literal["ran", "cached"] = "cached"
    if results.read(decided) is None:
        results.write(decided, replace(laboratory, progress=progress).run(cell))
        status = "ran"
    observe(name, status)
    return status


def publish_study(report: Mapping[str, Any], markdown: str) -> None:
    """Artifact `study`: the whole report."""
    create_markdown_artifact(markdown, key=KEY, description=report["title"])
