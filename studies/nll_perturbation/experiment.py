"""The experiment as a study: each of its cells is a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from abstain.knowledge.retrieval.encoder import SentenceEncoder
from abstain.llm.features.feature_store import OnProgress
from abstain.llm.features.shard_job import ShardRunner
from studies.model_inputs import describe_base_model
from studies.nll_perturbation.cell import ExperimentRunner
from studies.nll_perturbation.declared import Experiment, ExperimentCell, load_experiment
from studies.nll_perturbation.markdown import to_markdown
from studies.nll_perturbation.project import read_reviewed_answers
from studies.nll_perturbation.tables import tabulate
from studies.results import digest_files
from studies.study import Outcome, Part, Study, StudyReport, StudySource

RESULT = 3
"""Raised when `ExperimentRunner.run` says something else, or says it otherwise."""
NEEDS_ENCODER = "cosine"


@dataclass(frozen=True)
class ExperimentStudy:
    """An experiment whose cells are the parts of a study."""

    runner: ExperimentRunner

    @property
    def experiment(self) -> Experiment:
        return self.runner.experiment

    @property
    def title(self) -> str:
        """The title of its report."""
        return self.experiment.title

    def list_parts(self, tables: Sequence[str]) -> list[Part]:
        """Return the cells of `tables`, by default of all.

        Raises:
            AbstainError: there is no such table, a file is missing or invalid, or there are too few questions.
        """
        cells, files = self.experiment.list_cells(tables), self._digest_source()
        if self.runner.project is None:
            for size in dict.fromkeys(cell.size for cell in cells):
                self.runner.read_parts(size)
        return [self._make_part(cell, files) for cell in cells]

    def make_report(self, tables: Sequence[str], outcomes: Mapping[str, Outcome]) -> StudyReport:
        """Return the report of `tables`, by default all; `outcomes` are by title of the cell."""
        remark = self.runner.project.remark if self.runner.project else ""
        report = tabulate(self.experiment, tables, outcomes, self._digest_source(), remark)
        return StudyReport(report, to_markdown(report))

    def _make_part(self, cell: ExperimentCell, files: Mapping[str, str]) -> Part:
        try:
            return Part(cell.title, get_cell_inputs(self.runner, cell, files), partial(self._compute, cell))
        except AbstainError as error:  # a model is not found: a gap, and this is its reason
            return Part(cell.title, {"cell": cell.title}, partial(_fail, error))

    def _compute(self, cell: ExperimentCell, progress: OnProgress) -> Mapping[str, Any]:
        return replace(self.runner, progress=progress).run(cell)

    def _digest_source(self) -> dict[str, str]:
        if self.runner.project:
            return {"reviewed answers": self.runner.project.digest}
        files = self.experiment.files
        return digest_files(self.runner.data, (files.train, files.evaluation))


def load_study(
    file: Path,
    source: StudySource,
    sizes: Mapping[str, tuple[int, int]],
    settings: Settings,
    runner: ShardRunner | None,
) -> Study:
    """Read the experiment of `file`, with other `sizes`.

    Raises:
        AbstainError: the file or a size is invalid, or the project has too few reviewed answers.
    """
    experiment = load_experiment(file).resize(sizes)
    if source.data:
        return ExperimentStudy(ExperimentRunner(experiment, source.data, settings, runner))
    project = read_reviewed_answers(experiment.seed)
    return ExperimentStudy(ExperimentRunner(project.adapt(experiment), Path(), settings, runner, project))


def get_cell_inputs(runner: ExperimentRunner, cell: ExperimentCell, files: Mapping[str, str]) -> dict[str, Any]:
    """Return everything that the result of `cell` depends on, as JSON.

    Args:
        runner: The experiment and its settings.
        cell: The cell.
        files: Digests of the answers' files by name.

    Returns:
        The inputs of the cell.

    Raises:
        AbstainError: one of its models is not found.
    """
    experiment, llm = runner.experiment, runner.make_llm_params(cell)
    return {
        "result": RESULT,
        "cell": cell.model_dump(mode="json"),
        **describe_base_model(llm.model, llm.layout, runner.settings),
        "perturbation": runner.get_perturbation_model(cell),
        "encoder": _encoder() if cell.metric == NEEDS_ENCODER else None,
        "scikit-learn": version("scikit-learn"),
        "answers": list(files.values()),
        "seed": experiment.seed,
        "answer_tokens": experiment.answer_tokens,
        "regressors": experiment.regressors.model_dump(mode="json"),
        "draws": experiment.draws,
        "quantiles": experiment.quantiles,
        "thresholds": experiment.get_thresholds(cell),
        "buffer": experiment.buffer,
        "baselines": experiment.wants_baselines(cell),
    }


def _fail(error: AbstainError, progress: OnProgress) -> NoReturn:
    raise error


@lru_cache(maxsize=1)
def _encoder() -> str:
    return SentenceEncoder().identity
