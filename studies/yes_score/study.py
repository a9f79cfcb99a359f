"""The study of the Yes-score: its parts, and the report of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from abstain.config.settings import Settings
from abstain.config.yaml_model import load_yaml_model
from abstain.llm.features.shard_job import ShardRunner
from abstain.llm.signals.extractive_qa import SCORER_VERSION
from studies.model_inputs import describe_base_model
from studies.project_answers import ProjectAnswers, read_project_answers
from studies.study import REMEDY, Outcome, Part, StudyReport, StudySource, select_tables
from studies.yes_score.declared import YesScoreDeclaration
from studies.yes_score.report import write_report
from studies.yes_score.responses import AnsweredQuestions
from studies.yes_score.scores import ResponseScorer
from studies.yes_score.sources import read_questions, sample_project
from studies.yes_score.tables import EXAMPLE_PART, EXTRACTIVE_PART, KINDS_PART, NEEDS, tabulate

RESULT = 1
"""Raised when a part says something else, or says it otherwise."""


@dataclass(frozen=True)
class YesScoreStudy:
    """The study as its file declares it, with its source."""

    declared: YesScoreDeclaration
    source: StudySource
    scorer: ResponseScorer

    @property
    def title(self) -> str:
        """The title of its report."""
        return self.declared.title

    def list_parts(self, tables: Sequence[str]) -> list[Part]:
        """Return the parts that `tables` need, by default all.

        Raises:
            AbstainError: there is no such table, or the source is invalid.
        """
        titles = {title for table in select_tables(tables, NEEDS) for title in NEEDS[table]}
        scorer, data, model = self.scorer, self._data, self._extractive_qa_model
        declared = self.declared
        questions = {"data": data.get_digest(), "answer_tokens": declared.answer_tokens}
        example = {"example": declared.example.model_dump(mode="json")}
        extractive = {"extractive_qa": model, "version": SCORER_VERSION}
        parts = [
            Part(KINDS_PART, self._describe(questions), lambda progress: scorer.score_kinds(data, progress)),
            Part(EXAMPLE_PART, self._describe(example), lambda progress: scorer.score_example(data.llm, progress)),
            Part(
                EXTRACTIVE_PART,
                self._describe(questions | extractive),
                lambda progress: scorer.score_extractive(data, model or "", progress),
            ),
        ]
        return [part for part in parts if part.title in titles and (model or part.title != EXTRACTIVE_PART)]

    def make_report(self, tables: Sequence[str], outcomes: Mapping[str, Outcome]) -> StudyReport:
        """Return the report of `tables`, by default all; `outcomes` are by title of the part."""
        document, figures = tabulate(
            self.declared, self._data, select_tables(tables, NEEDS), outcomes, self._extractive_qa_model, self._setting
        )
        return StudyReport(document, write_report(document), figures)

    def _describe(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        llm, declared = self._data.llm, self.declared
        base = describe_base_model(llm.model, llm.layout, self.scorer.settings)
        return {"result": RESULT, **base, "variants": declared.variants, "seed": declared.seed, **inputs}

    @cached_property
    def _project(self) -> ProjectAnswers | None:
        return None if self.source.data else read_project_answers()

    @cached_property
    def _data(self) -> AnsweredQuestions:
        if self._project is not None:
            return sample_project(self.declared, self._project)
        assert self.source.data is not None
        return read_questions(self.declared, self.source.data)

    @property
    def _extractive_qa_model(self) -> str | None:
        return self._project.params.scorers.extractive_qa_model if self._project else self.declared.extractive_qa_model

    @property
    def _setting(self) -> str:
        """The parameter that names the extractive QA model."""
        return (
            "scorers.extractive_qa_model of params.yaml" if self._project else "extractive_qa_model of the study's file"
        )


def load_study(
    file: Path,
    source: StudySource,
    sizes: Mapping[str, tuple[int, int]],
    settings: Settings,
    runner: ShardRunner | None,
) -> YesScoreStudy:
    """Read the study `file` for a source.

    Args:
        file: The study's file.
        source: Where questions and answers are.
        sizes: Other sizes than the file's.
        settings: Settings of this machine.
        runner: Runs the forward passes; by default this process.

    Returns:
        The study.

    Raises:
        AbstainError: the file is invalid, or there is no such size.
    """
    declared = load_yaml_model(file, YesScoreDeclaration, REMEDY).resize(sizes)
    return YesScoreStudy(declared, source, ResponseScorer(declared, settings, runner))
