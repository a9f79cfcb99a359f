"""The flow that reproduces a paper's tables, declared as a grid of cells: one task per cell, a report at the end.

`python -m studies.run nll_perturbation --data FOLDER` runs it.

A finished cell is stored in `$ABSTAIN_HOME/studies/NAME`, and its models' results in the feature cache: run again, a
study continues where it stopped, also within a cell, and computes nothing where no dependency has changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from abstain.config.settings import load_settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain_tasks.runs.failures import coded_failures
from abstain_tasks.runs.progress import notify_observers
from abstain_tasks.training.fan_out import make_runner
from studies.cell import ExperimentRunner
from studies.declared import ExperimentCell, load_experiment
from studies.markdown import to_markdown
from studies.results import ResultStore, file_digests, get_cell_inputs
from studies.tables import CellOutcome, tabulate

ARTIFACT = "study"


@dataclass(frozen=True)
class ExperimentResult:
    """The output of an experiment: `report` is its Markdown, beside the JSON; `computed` counts the new cells."""

    report: Path
    cells: int
    computed: int


@flow(validate_parameters=False)
@coded_failures()
def study(
    file: str,
    data: str,
    tables: Sequence[str] = (),
    sizes: Mapping[str, tuple[int, int]] | None = None,
    out: str | None = None,
) -> ExperimentResult:
    """Compute the missing cells of `tables` (by default all), and write `report.md` and `report.json`.

    A cell that fails does not affect the others and leaves a gap in the report; at the end the flow raises an error.

    Args:
        file: The experiment file.
        data: The folder of its data.
        tables: Names of tables; empty for all.
        sizes: Other sizes than the file's, (train, evaluation) by name.
        out: The folder of the report; by default `report` beside the cells.

    Returns:
        The path of the report and the number of cells.

    Raises:
        AbstainError: a cell failed, or the file or its data are invalid.
    """
    settings, logger = load_settings(), get_run_logger()
    experiment, folder = load_experiment(Path(file)).resize(sizes or {}), Path(data)
    cells, files = experiment.list_cells(tables), file_digests(experiment, folder)
    home = settings.home.resolve() / "studies" / Path(file).stem
    results, outcomes, computed = ResultStore(home), dict[ExperimentCell, CellOutcome](), 0
    runner = ExperimentRunner(experiment, folder, settings, make_runner(settings))
    for cell in cells:
        state = run_cell(runner, cell, cell.title, files, results, return_state=True)
        if state.is_completed():
            computed += state.result() == "ran"
            outcomes[cell] = CellOutcome(results.read(get_cell_inputs(runner, cell, files)))
        else:
            reason = _reason(state.result(raise_on_failure=False))
            outcomes[cell] = CellOutcome(None, reason)
            notify_observers(cell.title, reason)
            logger.error("%s: %s", cell.title, reason)
    report = tabulate(experiment, tables, outcomes, files)
    report_folder, markdown = Path(out) if out else home / "report", to_markdown(report)
    write_atomically(report_folder / "report.json", (json.dumps(report, indent=1) + "\n").encode())
    write_atomically(report_folder / "report.md", markdown.encode())
    create_markdown_artifact(markdown, key=ARTIFACT, description=report["title"])
    if report["missing"]:
        first, reason = next(iter(report["missing"].items()))
        raise AbstainError(
            Code.FAILED_STEP,
            f"{len(report['missing'])} of {len(cells)} cells could not be computed, the first one, {first}: {reason}; "
            f"{report_folder / 'report.md'} has the others",
        )
    return ExperimentResult(report_folder / "report.md", len(cells), computed)


@task(task_run_name="{name}", cache_policy=NO_CACHE)
def run_cell(
    runner: ExperimentRunner, cell: ExperimentCell, name: str, files: Mapping[str, str], results: ResultStore
) -> Literal["ran", "cached"]:
    """Compute the result of `cell` into `results`, unless it is there. `name` is the name of the task run."""
    logger = get_run_logger()

    def progress(done: int, total: int) -> None:
        notify_observers(name, f"progress {done}/{total}")
        logger.info("%s of %s", done, total)

    inputs = get_cell_inputs(runner, cell, files)
    status: Literal["ran", "cached"] = "cached"
    if results.read(inputs) is None:
        results.write(inputs, replace(runner, progress=progress).run(cell))
        status = "ran"
    notify_observers(name, status)
    return status


def _reason(error: object) -> str:
    """Return why a cell has no result, in one line: our own errors as they are, others with their kind."""
    text = " ".join(str(error).split())
    return text if isinstance(error, AbstainError) else f"{type(error).__name__}: {text}"
