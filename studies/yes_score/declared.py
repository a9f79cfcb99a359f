"""Configuration of the study of the Yes-score: data, model, variants, and the figures of the post."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from abstain.config.params import Count
from abstain.config.yaml_model import FrozenModel
from abstain.core.codes import Code
from abstain.core.errors import AbstainError

Share = Annotated[float, Field(ge=0, le=1)]
Variant = Literal["yes_score", "yes_score_tokens", "yes_score_fused", "verbalized"]


class QuestionFiles(FrozenModel):
    """File names in the folder of the data, as those of `studies.rows`."""

    train: str
    evaluation: str


class QuestionCounts(FrozenModel):
    """Number of questions of each file."""

    train: Annotated[int, Field(ge=0)]
    evaluation: Annotated[int, Field(ge=0)]


class PostFigures(FrozenModel):
    """Figures of the post: AUROC of marked answers by the kind that they are compared with, and its precision."""

    auroc: dict[str, Share]
    precision: Share


class ExampleResponse(FrozenModel):
    """A response of the example, `what` it is, and the score of the post's response of that kind."""

    response: str
    what: str
    correct: bool
    post: Share


class ResponseExample(FrozenModel):
    """A passage, a question about it, and several responses."""

    context: str
    question: str
    responses: tuple[ExampleResponse, ...] = Field(min_length=1)


class YesScoreDeclaration(FrozenModel):
    """The file `yes_score.yaml`."""

    kind: Literal["yes_score"]
    title: str
    paper: str
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    files: QuestionFiles
    model: str
    layout: str
    answer_tokens: Count
    draws: Annotated[int, Field(ge=100)]
    sizes: dict[Literal["questions"], QuestionCounts] = Field(min_length=1)
    variants: tuple[Variant, ...] = Field(min_length=1)
    thresholds: tuple[Share, ...] = Field(min_length=1)
    extractive_qa_model: str | None
    post: PostFigures
    example: ResponseExample

    def resize(self, sizes: Mapping[str, tuple[int, int]]) -> YesScoreDeclaration:
        """Return the study with other `sizes`, (train, evaluation) by name.

        Raises:
            AbstainError: there is no such size, or no question is left.
        """
        for name, counts in sizes.items():
            if name != "questions":
                raise AbstainError(Code.UNKNOWN_NAME, f"no size '{name}': there is questions")
            if sum(counts) < 2:
                raise AbstainError(Code.USAGE, f"size {name}={counts[0]},{counts[1]}: at least 2 questions in all")
        return self.model_copy(
            update={
                "sizes": self.sizes
                | {name: QuestionCounts(train=train, evaluation=last) for name, (train, last) in sizes.items()}
            }
        )
