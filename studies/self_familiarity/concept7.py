"""The data of Concept-7 as instructions, in batches.

The order is random under the seed: a smaller sample is the beginning of a larger one, so that a study that is run at
one size and then at another computes nothing twice.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.json_lines import parse_lines
from studies.rows import hash_order
from studies.self_familiarity.declared import FamiliarityDeclaration

COMMON, FICTIONAL, REAL = "common concepts", "fictional concepts", "real concepts"
ABOUT_FICTIONAL, ABOUT_REAL = "questions about fictional concepts", "questions about real concepts"


class ConceptLine(BaseModel):
    """A concept as a line of the file; other fields are not read."""

    model_config = ConfigDict(extra="ignore")

    concept_id: str
    concept: str
    domain: str
    real: bool
    background: str = ""


class ConceptQuestionLine(BaseModel):
    """A question about a concept as a line of the file."""

    model_config = ConfigDict(extra="ignore")

    question_id: str
    concept_id: str
    question: str
    entities: tuple[str, ...] = ()


class CommonConceptLine(BaseModel):
    """A common concept as a line of the file."""

    model_config = ConfigDict(extra="ignore")

    concept: str


Line = TypeVar("Line", bound=BaseModel)


@dataclass(frozen=True)
class ConceptInstruction:
    """An instruction about a concept.

    Attributes:
        key: Its id.
        text: The instruction.
        concept_id: The concept that it is about; questions about one concept are a group.
        concepts: Its concepts as the data have them: of a concept, itself.
        domain: The concept's domain, in lower case; empty for a concept by itself.
        background: What is known about the concept; empty for a question.
    """

    key: str
    text: str
    concept_id: str
    concepts: tuple[str, ...]
    domain: str = ""
    background: str = ""


@dataclass(frozen=True)
class InstructionBatch:
    """Instructions of a kind whose results are kept together; `first` is the number of those before them."""

    kind: str
    first: int
    instructions: tuple[ConceptInstruction, ...]

    @property
    def title(self) -> str:
        """The batch in words."""
        return f"{self.kind} {self.first + 1} to {self.first + len(self.instructions)}"


def read_batches(declared: FamiliarityDeclaration, folder: Path) -> dict[str, list[InstructionBatch]]:
    """Read the instructions of the files in `folder`, as many as the study's sizes say, by kind.

    Raises:
        AbstainError: a file is missing or invalid.
    """
    files, sizes = declared.files, declared.sizes
    concepts = {line.concept_id: line for line in _read(folder / files.concepts, ConceptLine)}
    rows: dict[str, list[ConceptInstruction]] = {kind: [] for kind in (COMMON, FICTIONAL, REAL)}
    for common in _read(folder / files.common, CommonConceptLine):
        rows[COMMON].append(_make_concept(common.concept, common.concept))
    for line in concepts.values():
        rows[REAL if line.real else FICTIONAL].append(_make_concept(line.concept_id, line.concept, line.background))
    rows |= {ABOUT_FICTIONAL: [], ABOUT_REAL: []}
    for question in _read(folder / files.questions, ConceptQuestionLine):
        concept = concepts.get(question.concept_id)
        if concept is None:
            raise AbstainError(
                Code.WRONG_FORMAT, f"{files.questions}: {question.question_id} is about no concept of {files.concepts}"
            )
        rows[ABOUT_REAL if concept.real else ABOUT_FICTIONAL].append(
            ConceptInstruction(
                question.question_id,
                question.question,
                concept.concept_id,
                question.entities,
                concept.domain.lower(),
            )
        )
    limits = {
        COMMON: sizes["concepts"][1],
        FICTIONAL: sizes["concepts"][0],
        REAL: sizes["concepts"][0],
        ABOUT_FICTIONAL: sizes["questions"][0],
        ABOUT_REAL: sizes["questions"][1],
    }
    return {kind: _cut(kind, rows[kind], limits[kind], declared) for kind in rows}


def _make_concept(key: str, concept: str, background: str = "") -> ConceptInstruction:
    text = f'Explain the "{concept}" within one short paragraph.'
    return ConceptInstruction(key, text, key, (concept,), background=background)


def _cut(
    kind: str, rows: Sequence[ConceptInstruction], limit: int, declared: FamiliarityDeclaration
) -> list[InstructionBatch]:
    ordered = hash_order(rows, [row.key for row in rows], declared.seed)[:limit]
    size = declared.part
    return [
        InstructionBatch(kind, first, tuple(ordered[first : first + size])) for first in range(0, len(ordered), size)
    ]


def _read(file: Path, model: type[Line]) -> list[Line]:
    try:
        opener: Any = gzip.open if file.suffix == ".gz" else open
        with opener(file, "rb") as lines:
            return list(parse_lines(lines, model, str(file), strict=False, untrusted=False))
    except FileNotFoundError:
        raise AbstainError(
            Code.NOT_READABLE, f"{file} is missing: say with --data where the files of Concept-7 are"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise AbstainError(Code.WRONG_FORMAT, f"{file} cannot be read: {error}") from None
