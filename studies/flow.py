"""The flows of studies: one task per part of a study and a report at the end; and all studies, one after the other.

A finished part is stored in `$ABSTAIN_HOME/studies/NAME`, and its models' results in the feature cache: run again, a
study continues where it stopped, also within a part, and computes nothing where no dependency has changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from pydantic_core import to_json

from abstain.config.settings import load_settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.core.formatting import format_count
from abstain.core.markdown import MarkdownText, bullet_list, document, escape, heading, join_texts
from abstain_tasks.runs.failures import CodedFailure, coded_failures
from abstain_tasks.runs.progress import notify_observers
from studies.results import ResultStore
from studies.study import Outcome, Part, StudySource, load_study

ARTIFACT = "study"


@dataclass(frozen=True)
class StudyResult:
    """The output of a study.

    Attributes:
        title: Title of the report.
        report: The report in Markdown; the JSON is beside it.
        parts: Number of parts.
        computed: How many of them are new.
        missing: The reason of each part that could not be computed, by title.
    """

    title: str
    report: Path
    parts: int
    computed: int
    missing: Mapping[str, str]


class PartsMissing(CodedFailure):
    """A study whose report has gaps."""

    def __init__(self, result: StudyResult) -> None:
        title, reason = next(iter(result.missing.items()))
        super().__init__(
            Code.FAILED_STEP,
            f"{len(result.missing)} of {format_count(result.parts, 'part')} could not be computed, the first one, "
            f"{title}: {reason}; {result.report} has the others",
        )
        self.result = result


@flow(validate_parameters=False)
def study(
    file: str,
    source: StudySource,
    tables: Sequence[str] = (),
    sizes: Mapping[str, tuple[int, int]] | None = None,
    out: str | None = None,
) -> StudyResult:
    """Compute the missing parts of `tables` (by default all), and write `report.md`, `report.json` and the figures.

    A part that fails does not affect the others and leaves a gap in the report; at the end the flow raises an error.

    Args:
        file: The study's file.
        source: Its answers; those of a project are in the working directory.
        tables: Names of tables; empty for all.
        sizes: Other sizes than the file's, (train, evaluation) by name.
        out: The folder of the report; by default `report` beside the parts.

    Returns:
        The output.

    Raises:
        PartsMissing: a part failed.
        CodedFailure: the file or its data are invalid.
    """
    with coded_failures():
        result = _compute_study(Path(file), source, tables, sizes or {}, Path(out) if out else None)
    if result.missing:
        raise PartsMissing(result)
    return result


@flow(validate_parameters=False)
def all_studies(files: Sequence[str], source: StudySource, out: str | None = None) -> Path:
    """Run the studies of `files` in order, each as a subflow, and write `index.md`: their reports, and what is missing.

    Args:
        files: The studies' files.
        source: Their answers.
        out: The folder of the index, with the report of each study in a folder of its name; by default that of the
            studies in the home.

    Returns:
        The path of the index.

    Raises:
        CodedFailure: a study has gaps, or could not be run.
    """
    folder = Path(out) if out else load_settings().home.resolve() / "studies"
    lines, failed = list[str](), 0
    for file in files:
        name = Path(file).stem
        state = study(file, source, out=str(folder / name) if out else None, return_state=True)
        outcome = state.result(raise_on_failure=False)
        failed += not state.is_completed()
        lines += _index_lines(name, outcome, folder)
    index = document([heading(1, "Studies"), bullet_list(lines)])
    write_atomically(folder / "index.md", index.encode())
    create_markdown_artifact(index, key=ARTIFACT, description="Studies")
    if failed:
        raise CodedFailure(
            Code.FAILED_STEP, f"{failed} of {len(files)} studies have gaps: {folder / 'index.md'} says why"
        )
    return folder / "index.md"


@task(task_run_name="{name}", cache_policy=NO_CACHE)
def run_part(part: Part, name: str, results: ResultStore) -> Literal["ran", "cached"]:
    """Compute the result of `part` into `results`, unless it is there. `name` is the name of the task run."""
    logger = get_run_logger()

    def progress(done: int, total: int) -> None:
        notify_observers(name, f"progress {done}/{total}")
        logger.info("%s of %s", done, total)

    status: Literal["ran", "cached"] = "cached"
    if results.read(part.inputs) is None:
        results.write(part.inputs, part.compute(progress))
        status = "ran"
    notify_observers(name, status)
    return status


def _compute_study(
    file: Path,
    source: StudySource,
    tables: Sequence[str],
    sizes: Mapping[str, tuple[int, int]],
    out: Path | None,
) -> StudyResult:
    settings, logger = load_settings(), get_run_logger()
    loaded_study = load_study(file, source, sizes)
    home = settings.home.resolve() / "studies" / file.stem
    results, outcomes, computed = ResultStore(home), dict[str, Outcome](), 0
    for part in loaded_study.list_parts(tables):
        state = run_part(part, part.title, results, return_state=True)
        if state.is_completed():
            computed += state.result() == "ran"
            outcomes[part.title] = Outcome(results.read(part.inputs))
        else:
            reason = _format_reason(state.result(raise_on_failure=False))
            outcomes[part.title] = Outcome(None, reason)
            notify_observers(part.title, reason)
            logger.error("%s: %s", part.title, reason)
    report, folder = loaded_study.make_report(tables, outcomes), out or home / "report"
    write_atomically(folder / "report.json", to_json(report.document, indent=1, inf_nan_mode="null") + b"\n")
    write_atomically(folder / "report.md", report.markdown.encode())
    for name, figure in report.figures.items():
        write_atomically(folder / name, figure.encode())
    create_markdown_artifact(report.markdown, key=ARTIFACT, description=loaded_study.title)
    missing = {title: outcome.reason for title, outcome in outcomes.items() if outcome.result is None}
    return StudyResult(loaded_study.title, folder / "report.md", len(outcomes), computed, missing)


def _index_lines(name: str, outcome: object, folder: Path) -> Iterator[str]:
    """Yield the lines of a study in the index: its report, and each missing part; or why there is no report."""
    result = outcome.result if isinstance(outcome, PartsMissing) else outcome
    if not isinstance(result, StudyResult):
        yield f"{name}: no report: {_format_reason(result)}"
        return
    link = MarkdownText(f"[{escape(result.title)}]({os.path.relpath(result.report, folder)})")
    yield join_texts(link, f": {format_count(result.parts, 'part')}, {len(result.missing)} missing")
    yield from (f"{name}: missing: {title}: {reason}" for title, reason in result.missing.items())


def _format_reason(error: object) -> str:
    """Return why there is no result, in one line: our own errors as they are, others with their kind."""
    text = error.message if isinstance(error, AbstainError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())
