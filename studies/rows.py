"""Questions about paragraphs, with the answers that people marked: what a study's base models are asked.

Notes:

* Which rows are drawn depends on the seed and on the files alone: a smaller draw is the beginning of a larger one, so a
  study that is run at one size and then at another computes nothing twice.
* No paragraph is in both parts. Where the files share one, it is for evaluation.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from abstain.core.codes import Code
from abstain.core.contracts import Context, Question
from abstain.core.errors import AbstainError
from abstain.core.json_lines import parse_lines


class QuestionLine(BaseModel):
    """A question as `FILE.jsonl` has it, one a line; other fields are not read."""

    model_config = ConfigDict(extra="ignore")

    id: Annotated[str, Field(min_length=1)]
    question: str
    context: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """Questions in order: `references`, the answers that people marked; `groups`, the paragraph that each is about."""

    questions: tuple[Question, ...]
    references: tuple[tuple[str, ...], ...]
    groups: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.questions)

    def __add__(self, other: Asked) -> Asked:
        return Asked(
            (*self.questions, *other.questions),
            (*self.references, *other.references),
            (*self.groups, *other.groups),
        )


def read_parts(train: Path, evaluation: Path, sizes: tuple[int, int], seed: int) -> tuple[Asked, Asked]:
    """As many questions with an answer as `sizes` says of each file, drawn under `seed`.

    Raises `AbstainError` where there are not so many.
    """
    held = list(_read(evaluation))
    paragraphs = {line.context for line in held}
    others = [line for line in _read(train) if line.context not in paragraphs]
    apart = f" about paragraphs that {evaluation.name} has not"
    return _draw(others, sizes[0], seed, f"{train}{apart}"), _draw(held, sizes[1], seed, str(evaluation))


def _read(file: Path) -> Iterable[QuestionLine]:
    """The questions of `file` that have an answer; blank lines are skipped."""
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


def _draw(lines: Sequence[QuestionLine], count: int, seed: int, source: str) -> Asked:
    if len(lines) < count:
        raise AbstainError(
            Code.NO_ROWS,
            f"{count} questions with an answer are wanted, and there are {len(lines)} in {source}: lower `sizes`, or "
            "give --size",
        )
    chosen = sorted(lines, key=lambda line: hashlib.sha256(f"{seed}\0{line.id}".encode()).digest())[:count]
    names = [hashlib.sha256(line.context.encode()).hexdigest()[:16] for line in chosen]
    return Asked(
        tuple(
            Question(
                interaction_id=line.id,
                question=line.question,
                contexts=(Context(chunk_id=f"paragraph#{name}", text=line.context),),
            )
            for line, name in zip(chosen, names, strict=True)
        ),
        tuple(line.answers for line in chosen),
        tuple(names),
    )
