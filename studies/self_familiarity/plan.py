"""Which parts the tables of Concept-7 need, and the results of those that were computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from studies.self_familiarity.concept7 import (
    ABOUT_FICTIONAL,
    ABOUT_REAL,
    COMMON,
    FICTIONAL,
    REAL,
    ConceptInstruction,
    InstructionBatch,
)
from studies.self_familiarity.declared import ConceptSource
from studies.study import Outcome

Measure = Literal["familiarity", "baselines"]
TABLES = ("5", "2", "4", "judged")
CONCEPTS, QUESTIONS = (FICTIONAL, REAL), (ABOUT_FICTIONAL, ABOUT_REAL)
SCORED: Mapping[str, tuple[tuple[str, Measure], ...]] = {
    "5": tuple((kind, measure) for measure in ("familiarity", "baselines") for kind in (COMMON, *CONCEPTS)),
    "2": tuple((kind, measure) for measure in ("familiarity", "baselines") for kind in (COMMON, *QUESTIONS)),
    "4": tuple((kind, "familiarity") for kind in (COMMON, *QUESTIONS)),
    "judged": tuple(
        (kind, measure) for measure in ("familiarity", "baselines") for kind in (COMMON, *CONCEPTS, *QUESTIONS)
    ),
}
"""The kinds of instructions of a table, and what is measured of them."""
WORKSHEET_PART = "scores of the worksheet"


def get_measure_title(measure: Measure, batch: InstructionBatch, source: ConceptSource) -> str:
    """Return the title of the part that measures `batch`."""
    return f"{measure} of {batch.title}{_describe_source(batch.kind, source)}"


def get_judge_title(batch: InstructionBatch) -> str:
    """Return the title of the part in which a judge rates `batch`."""
    return f"judgement of {batch.title}"


def list_sources(kind: str, sources: Sequence[ConceptSource]) -> Sequence[ConceptSource]:
    """Return where the concepts of a kind of instruction come from: a concept by itself needs no extraction."""
    return sources if kind in QUESTIONS else ("data",)


def _describe_source(kind: str, source: ConceptSource) -> str:
    return f", concepts {source}" if kind in QUESTIONS and source == "extracted" else ""


@dataclass(frozen=True)
class MeasuredInstructions:
    """Instructions with results.

    Attributes:
        instructions: Those of which everything was computed.
        fictional: Whether each is about a fictional concept, (rows,).
        scores: Scores by method, (rows,); nan without a score.
        total: Number of instructions, with those that lack a result.
        reason: Why the first of these has none; empty if there is none.
    """

    instructions: tuple[ConceptInstruction, ...]
    fictional: np.ndarray
    scores: Mapping[str, np.ndarray]
    total: int
    reason: str

    def select(self, rows: np.ndarray) -> MeasuredInstructions:
        """Return the instructions of `rows`, a mask."""
        instructions = tuple(self.instructions[row] for row in np.flatnonzero(rows))
        scores = {name: values[rows] for name, values in self.scores.items()}
        return MeasuredInstructions(instructions, self.fictional[rows], scores, self.total, self.reason)


def collect_results(
    batches: Mapping[str, Sequence[InstructionBatch]],
    outcomes: Mapping[str, Outcome],
    kinds: Sequence[str],
    measures: Sequence[Measure],
    source: ConceptSource = "data",
) -> MeasuredInstructions:
    """Return the instructions of `kinds` of which all `measures` were computed, with their scores."""
    instructions: list[ConceptInstruction] = []
    fictional: list[bool] = []
    scores: dict[str, list[float]] = {}
    reasons: list[str] = []
    for batch in (batch for kind in kinds for batch in batches[kind]):
        results = [outcomes.get(get_measure_title(measure, batch, source), Outcome()) for measure in measures]
        missing = [outcome.reason for outcome in results if outcome.result is None]
        if missing:
            reasons.append(missing[0])
            continue
        instructions += batch.instructions
        fictional += [batch.kind in (FICTIONAL, ABOUT_FICTIONAL)] * len(batch.instructions)
        for name, values in _iter_scores(results):
            scores.setdefault(name, []).extend(values)
    return MeasuredInstructions(
        tuple(instructions),
        np.array(fictional, bool),
        {name: np.array(values, float) for name, values in scores.items()},
        sum(len(batch.instructions) for kind in kinds for batch in batches[kind]),
        reasons[0] if reasons else "",
    )


def _iter_scores(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, Sequence[float]]]:
    for outcome in outcomes:
        yield from (outcome.result or {})["scores"].items()
