"""The mapping file of an export: where the parts of an answer stand, which score is a thumb, which a verdict.

Nothing is guessed: a score, a value of one, or a reviewer that it does not name gives no row, and is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from abstain.config.yaml_model import FrozenModel, load_yaml_model
from abstain.core.contracts import Verdict
from abstain.ingest.exports.expressions import Expression, ExpressionText
from abstain.ingest.exports.formats import FORMATS


def value_text(value: Any) -> str:
    """A score's value as the mapping writes it: `1` for 1 and 1.0, `true` for true, a text without its margins."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _as_texts(keys: Any) -> Any:
    """The keys of a mapping as texts. YAML reads yes, no, on and off as true and false, so these need quotes."""
    if not isinstance(keys, Mapping):
        return keys
    for key in keys:
        if isinstance(key, bool) or key is None:
            raise ValueError(
                f"{value_text(key)} without quotes: YAML reads yes and on as true: quote it as it is meant"
            )
    return {value_text(key): value for key, value in keys.items()}


ByText = BeforeValidator(_as_texts)


class AnswerPaths(FrozenModel):
    """Where the parts of an answered question stand in a record."""

    where: ExpressionText = Field(None, description="which records are answered questions; all, where it is left out")
    asked_at: ExpressionText
    question: ExpressionText
    answer: ExpressionText
    contexts: ExpressionText = Field(None, description="a list of texts, or of objects with chunk_id and text")
    model: ExpressionText = Field(description="what wrote the answer, with its version")
    product: ExpressionText = None
    line_of_business: ExpressionText = None
    group: ExpressionText = None
    writer: ExpressionText = Field(
        None, description="an object of the writer's scores by name, as in {log_prob: score}"
    )
    token_log_probs: ExpressionText = None
    decision: ExpressionText = None
    propensity: ExpressionText = None


class RetrievalPaths(FrozenModel):
    """Records of their own that hold the contexts of an answer."""

    where: ExpressionText
    join: ExpressionText = Field(description="equal in the record of the answer and in that of its contexts")
    contexts: ExpressionText


class ThumbScores(FrozenModel):
    """Scores that are thumbs. What a format fixes may be left out."""

    given_at: ExpressionText = None
    user: ExpressionText = None
    comment: ExpressionText = None
    scores: Annotated[dict[str, Annotated[dict[str, Literal["up", "down"]], ByText]], ByText] = Field(min_length=1)


class ReviewScores(FrozenModel):
    """Scores that are parts of a review. What a format fixes may be left out."""

    reviewed_at: ExpressionText = None
    reviewer: ExpressionText = None
    reviewers: Literal["all"] | tuple[str, ...] = Field(description="who counts as a reviewer")
    verdicts: Annotated[dict[str, Annotated[dict[str, dict[Verdict, bool]], ByText]], ByText] = Field(min_length=1)
    ideal_answer: str | None = Field(None, description="the score whose text is the ideal answer")


class ExportMapping(FrozenModel):
    """The mapping of the exports of one tool."""

    format: Literal["argilla", "label_studio", "langfuse", "open_webui", "phoenix", "table"]
    interaction_id: ExpressionText = Field(description="of an answer, and of what a score judges")
    answers: AnswerPaths | None = None
    retrievals: RetrievalPaths | None = None
    thumbs: ThumbScores | None = None
    reviews: ReviewScores | None = None

    @model_validator(mode="after")
    def _check(self) -> ExportMapping:
        if not (self.answers or self.thumbs or self.reviews):
            raise ValueError("it maps nothing: write answers, thumbs or reviews")
        if self.retrievals and not self.answers:
            raise ValueError("retrievals without answers: write answers, too")
        if twice := sorted(self.thumb_names & self.review_names):
            raise ValueError(f"the score '{twice[0]}' is a thumb and part of a review: decide for one")
        for section, field, path in self._needed():
            if path is None:
                raise ValueError(f"{section}.{field} is missing: the format {self.format} does not fix where it stands")
        return self

    def _needed(self) -> Iterator[tuple[str, str, Expression | None]]:
        fixed = FORMATS[self.format]
        if self.thumbs:
            yield "thumbs", "given_at", self.thumbs.given_at or fixed.at
        if self.reviews:
            yield "reviews", "reviewed_at", self.reviews.reviewed_at or fixed.at
            yield "reviews", "reviewer", self.reviews.reviewer or fixed.reviewer

    @property
    def thumb_names(self) -> frozenset[str]:
        """The scores that are thumbs."""
        return frozenset(self.thumbs.scores if self.thumbs else ())

    @property
    def review_names(self) -> frozenset[str]:
        """The scores that are parts of a review."""
        if self.reviews is None:
            return frozenset()
        return frozenset(self.reviews.verdicts) | ({self.reviews.ideal_answer} if self.reviews.ideal_answer else set())

    @property
    def score_names(self) -> frozenset[str]:
        """All scores that give a row."""
        return self.thumb_names | self.review_names

    def expressions(self) -> dict[str, Expression]:
        """Every expression of the file, by its key."""
        found: dict[str, Expression] = {"interaction_id": self.interaction_id}
        for name in ("answers", "retrievals", "thumbs", "reviews"):
            section = getattr(self, name)
            for key in type(section).model_fields if section else ():
                if isinstance(value := getattr(section, key), Expression):
                    found[f"{name}.{key}"] = value
        return found


def load_mapping(path: Path) -> ExportMapping:
    """Parse the file `path`. Raises `AbstainError` naming its first wrong key or expression."""
    return load_yaml_model(path, ExportMapping, "name a mapping file (docs/howto/exports/index.md)")
