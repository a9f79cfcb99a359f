"""The study of Self-Familiarity: on Concept-7, or on the reviewed answers of a project."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from abstain.config.settings import Settings
from abstain.config.yaml_model import load_yaml_model
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.familiarity.concepts import require_packages
from abstain.llm.features.feature_store import OnProgress
from abstain.llm.features.shard_job import ShardRunner
from studies.model_inputs import describe_base_model
from studies.project_answers import ProjectAnswers, read_project_answers
from studies.self_familiarity.answer_tables import THRESHOLD_PART, get_answer_title, tabulate_answers
from studies.self_familiarity.answers import AnswerBatch, AnswerMeter, cut_answers
from studies.self_familiarity.concept7 import REAL, ConceptInstruction, InstructionBatch, read_batches
from studies.self_familiarity.declared import ConceptSource, FamiliarityDeclaration, JudgeService
from studies.self_familiarity.judge import ExplanationJudge, describe_judge
from studies.self_familiarity.measures import FamiliarityMeter
from studies.self_familiarity.plan import (
    SCORED,
    TABLES,
    WORKSHEET_PART,
    Measure,
    get_judge_title,
    get_measure_title,
    list_sources,
)
from studies.self_familiarity.report import write_answer_report, write_concept_report
from studies.self_familiarity.tables import ConceptTables
from studies.self_familiarity.worksheet import get_worksheet_digest, read_scores, write_worksheet
from studies.study import REMEDY, Outcome, Part, StudyReport, StudySource, select_tables

RESULT = 1
"""Raised when a part says something else, or says it otherwise."""


@dataclass(frozen=True)
class ConceptStudy:
    """The study on Concept-7."""

    declared: FamiliarityDeclaration
    data: Path
    settings: Settings

    @property
    def title(self) -> str:
        """The title of its report."""
        return self.declared.title

    def list_parts(self, tables: Sequence[str]) -> list[Part]:
        """Return the parts that `tables` need, by default all: familiarity, then baselines, then the judge.

        Raises:
            AbstainError: there is no such table, a package is not installed, or the data are invalid.
        """
        require_packages()
        names = select_tables(tables, TABLES)
        with_judge = "judged" in names and (self.declared.judge or self.declared.worksheet) is not None
        scored = [pair for name in names if name != "judged" or with_judge for pair in SCORED[name]]
        ordered = sorted(dict.fromkeys(scored), key=lambda pair: pair[1] == "baselines")
        parts = [part for kind, measure in ordered for part in self._list_measures(kind, measure)]
        return [*parts, *(self._list_judgements() if with_judge else ())]

    def make_report(self, tables: Sequence[str], outcomes: Mapping[str, Outcome]) -> StudyReport:
        """Return the report of `tables`, by default all; `outcomes` are by title of the part."""
        results = ConceptTables(self.declared, self._batches, outcomes)
        document, figures = results.tabulate(select_tables(tables, TABLES)), results.draw_figures()
        return StudyReport(document, write_concept_report(document, figures), figures)

    def _list_measures(self, kind: str, measure: Measure) -> Iterator[Part]:
        for source in list_sources(kind, self.declared.concepts):
            for batch in self._batches[kind]:
                yield self._make_measure(batch, measure, source)

    def _make_measure(self, batch: InstructionBatch, measure: Measure, source: ConceptSource) -> Part:
        meter = FamiliarityMeter(self.declared, self.settings)
        compute = meter.measure_familiarity if measure == "familiarity" else meter.measure_baselines
        inputs = self._describe(batch.instructions) | {"measure": measure, "concepts": source}
        if measure == "baselines":
            inputs["baselines"] = self.declared.baselines.model_dump()
        return Part(
            get_measure_title(measure, batch, source),
            inputs,
            lambda progress: compute(batch.instructions, source, progress),
        )

    def _list_judgements(self) -> Iterator[Part]:
        judge, batches = self.declared.judge, self._batches[REAL]
        if self.declared.worksheet is not None:
            concepts = tuple(concept for batch in batches for concept in batch.instructions)
            file = Path(self.declared.worksheet)
            inputs = self._describe(concepts) | {"worksheet": get_worksheet_digest(file)}
            yield Part(WORKSHEET_PART, inputs, lambda progress: self._read_worksheet(file, concepts, progress))
        elif judge is not None:
            for batch in batches:
                inputs = self._describe(batch.instructions) | describe_judge(judge)
                yield Part(get_judge_title(batch), inputs, self._make_judgement(judge, batch))

    def _make_judgement(self, judge: JudgeService, batch: InstructionBatch) -> Any:
        def compute(progress: OnProgress) -> dict[str, Any]:
            explanations = self._explain(batch.instructions, progress)
            return {"ratings": ExplanationJudge(judge).rate(batch.instructions, explanations, progress)}

        return compute

    def _read_worksheet(
        self, file: Path, concepts: Sequence[ConceptInstruction], progress: OnProgress
    ) -> dict[str, Any]:
        write_worksheet(file, concepts, self._explain(concepts, progress))
        ratings = read_scores(file, concepts)
        if not any(ratings):
            raise AbstainError(
                Code.NO_ROWS, f"{file} has no score yet: write 1 to 9 in its column score, and run the study again"
            )
        return {"ratings": ratings}

    def _explain(self, concepts: Sequence[ConceptInstruction], progress: OnProgress) -> list[str]:
        baselines = FamiliarityMeter(self.declared, self.settings).baselines
        return baselines.explain([concept.concepts[0] for concept in concepts], progress)

    def _describe(self, instructions: Sequence[ConceptInstruction]) -> dict[str, Any]:
        return {
            "result": RESULT,
            **describe_base_model(self.declared.model, self.declared.layout, self.settings),
            "instructions": hashlib.sha256(repr(instructions).encode()).hexdigest(),
            "familiarity": self.declared.familiarity.model_dump(),
        }

    @cached_property
    def _batches(self) -> dict[str, list[InstructionBatch]]:
        return read_batches(self.declared, self.data)


@dataclass(frozen=True)
class AnswerStudy:
    """The study on a project's reviewed answers: its one table is `answers`."""

    declared: FamiliarityDeclaration
    settings: Settings
    runner: ShardRunner | None

    @property
    def title(self) -> str:
        """The title of its report."""
        return self.declared.title

    def list_parts(self, tables: Sequence[str]) -> list[Part]:
        """Return all parts.

        Raises:
            AbstainError: there is no such table, a package is not installed, or the project has no reviewed answers.
        """
        require_packages()
        select_tables(tables, ("answers",))
        meter = AnswerMeter(self._project.params.llm, self.declared, self.settings, self.runner)
        parts = [Part(THRESHOLD_PART, self._describe(()), meter.measure_threshold)]
        for batch in self._batches:
            parts.append(self._make_part(batch, False, meter.measure_familiarity))
        for batch in self._informed_batches:
            parts.append(self._make_part(batch, True, meter.measure_with_chunks))
        return parts

    def make_report(self, tables: Sequence[str], outcomes: Mapping[str, Outcome]) -> StudyReport:
        """Return the report; `outcomes` are by title of the part."""
        model = self._project.params.llm.model
        document = tabulate_answers(self.declared, model, self._batches, self._informed_batches, outcomes)
        return StudyReport(document, write_answer_report(document))

    def _make_part(self, batch: AnswerBatch, with_chunk: bool, compute: Any) -> Part:
        inputs = self._describe(batch.interactions) | {"with_chunk": with_chunk}
        return Part(get_answer_title(batch, with_chunk), inputs, lambda progress: compute(batch.interactions, progress))

    def _describe(self, interactions: Sequence[object]) -> dict[str, Any]:
        llm = self._project.params.llm
        return {
            "result": RESULT,
            **describe_base_model(llm.model, llm.layout, self.settings),
            "too_long": llm.too_long,
            "answers": hashlib.sha256(repr(interactions).encode()).hexdigest(),
            "familiarity": self.declared.familiarity.model_dump(),
        }

    @property
    def _informed_batches(self) -> list[AnswerBatch]:
        """The batches that are also measured with the first chunk: whole ones, as many as the size fills."""
        return [batch for batch in self._batches if batch.first < self.declared.sizes["answers"][1]]

    @cached_property
    def _batches(self) -> list[AnswerBatch]:
        return cut_answers(self._project, self.declared)

    @cached_property
    def _project(self) -> ProjectAnswers:
        return read_project_answers()


def load_study(
    file: Path,
    source: StudySource,
    sizes: Mapping[str, tuple[int, int]],
    settings: Settings,
    runner: ShardRunner | None,
) -> ConceptStudy | AnswerStudy:
    """Read the study `file` for a source.

    Args:
        file: The study's file.
        source: The folder of Concept-7, or a project.
        sizes: Other sizes than the file's.
        settings: Settings of this machine.
        runner: Runs the forward passes of a project's answers; by default this process.

    Returns:
        The study.

    Raises:
        AbstainError: the file is invalid, or there is no such size.
    """
    declared = load_yaml_model(file, FamiliarityDeclaration, REMEDY).resize(sizes)
    if source.data is not None:
        return ConceptStudy(declared, source.data, settings)
    return AnswerStudy(declared, settings, runner)
