"""Questions about paragraphs, with the answers that people marked: the input of an experiment's base models.

Notes:

* The sampled rows depend only on the seed and on the files: a smaller sample is the beginning of a larger one, so an
  experiment that is run at one size and then at another computes nothing twice.
* No paragraph is in both parts. If the files share one, it is for evaluation.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from abstain.core.codes import Code
from abstain.core.contracts import Context, Question
from abstain.core.errors import AbstainError
from abstain.core.json_lines import parse_lines

Row = TypeVar("Row")


class QuestionLine(BaseModel):
    """A question as a line of `FILE.jsonl`; other fields are not read."""

    model_config = ConfigDict(extra="ignore")

    id: Annotated[str, Field(min_length=1)]
    question: str
    context: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class QuestionSet:
    """Questions in order.

    Attributes:
        questions: The questions with their contexts.
        references: The first answer that people marked, of each question. SQuAD's training file has one, its evaluation
            file several: if the best of them counted, the target would be higher in the evaluation than in training.
        groups: The paragraph of each question.
    """

    questions: tuple[Question, ...]
    references: tuple[tuple[str, ...], ...]
    groups: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.questions)

    def __add__(self, other: QuestionSet) -> QuestionSet:
        return QuestionSet(
            (*self.questions, *other.questions),
            (*self.references, *other.references),
            (*self.groups, *other.groups),
        )


def read_parts(train: Path, evaluation: Path, sizes: tuple[int, int], seed: int) -> tuple[QuestionSet, QuestionSet]:
    """Sample the questions of both files under `seed`, as many with an answer as `sizes` says.

    Raises:
        AbstainError: there are too few questions.
    """
    evaluation_lines = list(_read(evaluation))
    paragraphs = {line.context for line in evaluation_lines}
    train_lines = [line for line in _read(train) if line.context not in paragraphs]
    exclusion_note = f" about paragraphs that {evaluation.name} has not"
    return _draw(train_lines, sizes[0], seed, f"{train}{exclusion_note}"), _draw(
        evaluation_lines, sizes[1], seed, str(evaluation)
    )


def hash_order(rows: Sequence[Row], names: Sequence[str], seed: int) -> list[Row]:
    """Return `rows` in a random order that depends only on `seed` and on the name of each."""
    digests = [hashlib.sha256(f"{seed}\0{name}".encode()).digest() for name in names]
    return [row for _, row in sorted(zip(digests, rows, strict=True), key=lambda pair: pair[0])]


def _read(file: Path) -> Iterable[QuestionLine]:
    """Yield the questions of `file` that have an answer; blank lines are skipped."""
    opener = gzip.open if file.suffix == ".gz" else open
    count = 0
    try:
        with opener(file, "rb") as lines:
            for row in parse_lines(lines, QuestionLine, str(file), strict=False, untrusted=False):
                count += 1
                if row.question.strip() and row.context.strip() and any(map(str.strip, row.answers)):
                    yield row
    except FileNotFoundError:
        raise AbstainError(
            Code.NOT_READABLE, f"{file} is missing: say with --data where the study's files are"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise AbstainError(Code.WRONG_FORMAT, f"{file} cannot be read after row {count}: {error}") from None


def _draw(lines: Sequence[QuestionLine], count: int, seed: int, source: str) -> QuestionSet:
    if len(lines) < count:
        raise AbstainError(
            Code.NO_ROWS,
            f"{count} questions with an answer are wanted, and there are {len(lines)} in {source}: lower `sizes`, or "
            "give --size",
        )
    sampled = hash_order(lines, [line.id for line in lines], seed)[:count]
    names = [hashlib.sha256(line.context.encode()).hexdigest()[:16] for line in sampled]
    return QuestionSet(
        tuple(
            Question(
                interaction_id=line.id,
                question=line.question,
                contexts=(Context(chunk_id=f"paragraph#{name}", text=line.context),),
            )
            for line, name in zip(sampled, names, strict=True)
        ),
        tuple(line.answers[:1] for line in sampled),
        tuple(names),
    )
