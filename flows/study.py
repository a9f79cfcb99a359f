"""The flow that re-makes a paper's tables, declared as a grid of cells: one task a cell, a report at the end.

abstain experiment studies/nll_perturbation.yaml --data FOLDER

A finished cell lies in `$ABSTAIN_HOME/studies/NAME`, and what its models said in the feature cache: run again, a study
goes on where it was, in the middle of a cell, too, and computes nothing where nothing it depends on has changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from prefect import flow, get_run_logger

from abstain.config.settings import load_settings
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.study.cell import ExperimentRunner
from abstain.study.declared import ExperimentCell, load_study
from abstain.study.markdown import to_markdown
from abstain.study.results import Results, decided_by, file_digests
from abstain.study.tables import CellOutcome, tabulate
from tasks.fan_out import runner_for
from tasks.progress import observe
from tasks.study import publish_study, run_cell


@dataclass(frozen=True)
class Studied:
    """What a study left: `report` is its Markdown, with the JSON beside it; and how many of its cells it `computed`."""

    report: Path
    cells: int
    computed: int


@flow(validate_parameters=False)
def study(
    file: str,
    data: str,
    tables: Sequence[str] = (),
    sizes: Mapping[str, tuple[int, int]] | None = None,
    out: str | None = None,
) -> Studied:
    """Compute what is missing of the cells of `tables` (all where none is named), and write `report.md` and
    `report.json`.

    `sizes`: other sizes than the file's, (train, evaluation) by name. `out`: the folder of the report; default:
    `report` beside the cells. A cell that cannot be computed leaves the others alone and a gap in the report; then, at
    the end, the flow raises `AbstainError`.
    """
    settings, logger = load_settings(), get_run_logger()
    declared, folder = load_study(Path(file)).resized(sizes or {}), Path(data)
    cells, files = declared.cells(tables), file_digests(declared, folder)
    home = settings.home.resolve() / "studies" / Path(file).stem
    results, outcomes, computed = Results(home), dict[ExperimentCell, CellOutcome](), 0
    with closing(runner_for(settings)) as runner:
        laboratory = ExperimentRunner(declared, folder, settings, runner)
        for cell in cells:
            state = run_cell(laboratory, cell, cell.title, files, results, return_state=True)
            if state.is_completed():
                computed += state.result() == "ran"
                outcomes[cell] = CellOutcome(results.read(decided_by(laboratory, cell, files)))
            else:
                reason = _reason(state.result(raise_on_failure=False))
                outcomes[cell] = CellOutcome(None, reason)
                observe(cell.title, reason)
                logger.error("%s: %s", cell.title, reason)
    report = tabulate(declared, tables, outcomes, files)
    written, markdown = Path(out) if out else home / "report", to_markdown(report)
    write_atomically(written / "report.json", (json.dumps(report, indent=1) + "\n").encode())
    write_atomically(written / "report.md", markdown.encode())
    publish_study(report, markdown)
    if report["missing"]:
        first, reason = next(iter(report["missing"].items()))
        raise AbstainError(
            f"{len(report['missing'])} of {len(cells)} cells could not be computed, the first one, {first}: {reason}; "
            f"{written / 'report.md'} has the others"
        )
    return Studied(written / "report.md", len(cells), computed)


def _reason(error: object) -> str:
    """Why a cell has no result, in one line: our own errors as they are, others with their kind."""
    text = " ".join(str(error).split())
    return text if isinstance(error, AbstainError) else f"{type(error).__name__}: {text}"
