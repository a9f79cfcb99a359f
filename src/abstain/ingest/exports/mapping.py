"""The mapping file of an export: it locates the parts of an answer, and names scores that are thumbs or reviews.

Nothing is guessed: a score, a score's value or a reviewer that the mapping does not name gives no row, and is counted.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from abstain.config.yaml_model import FrozenModel, load_yaml_model
from abstain.core.contracts import Criterion
from abstain.ingest.exports.expressions import Expression, ExpressionText
from abstain.ingest.exports.formats import FORMATS

_DECIMAL = re.compile(r"[+-]?\d+\.\d+")
_EMOJI_VARIANTS = dict.fromkeys([0xFE0E, 0xFE0F, *range(0x1F3FB, 0x1F400)])
"""Characters that choose the look of the emoji before them: text or picture, and the tone of the skin."""


def format_value(value: Any) -> str:
    """Return the text that a score's value has in common with all equal values, in whatever file they stand.

    1, 1.0 and "1.0" are `1`; true and "TRUE" are `true`; the case of letters and the variants of an emoji do not count.
    """
    text = str(value).strip()
    if _DECIMAL.fullmatch(text):
        number = float(text)
        return str(int(number)) if number.is_integer() else str(number)
    return unicodedata.normalize("NFC", text).translate(_EMOJI_VARIANTS).casefold()


def _format_names(names: Any) -> Any:
    """Return a mapping with texts as keys. YAML reads yes, no, on and off as true and false, so these need quotes."""
    if not isinstance(names, Mapping):
        return names
    for name in names:
        if isinstance(name, bool) or name is None:
            raise ValueError(
                f"{format_value(name)} without quotes: YAML reads yes and on as true: quote it as it is meant"
            )
    return {str(name).strip(): value for name, value in names.items()}


def _format_values(values: Any) -> Any:
    """Return a mapping with `format_value` of its keys, which are the values of a score."""
    named_values = _format_names(values)
    if not isinstance(named_values, Mapping):
        return named_values
    formatted: dict[str, Any] = {}
    for name, target in named_values.items():
        if formatted.setdefault(format_value(name), target) != target:
            raise ValueError(f"'{name}' is equal to a value before it and means something else: decide for one")
    return formatted


ByName, ByValue = BeforeValidator(_format_names), BeforeValidator(_format_values)


class AnswerPaths(FrozenModel):
    """Expressions that locate the parts of an answered question in a record.

    Attributes:
        where: Selects the records that are answered questions; None selects all.
        asked_at: Time of the question.
        question: Text of the question.
        answer: Text of the answer.
        contexts: A list of texts, or of objects with chunk_id and text.
        model: What wrote the answer, with its version.
        product: Product that the question is about.
        line_of_business: Its line of business.
        group: Group of correlated answers.
        writer_scores: An object of the writer's scores by name.
        token_log_probs: Log probabilities of the answer's tokens.
        display: Whether the answer was shown or withheld.
        propensity: Probability with which the answer was shown.
    """

    where: ExpressionText = Field(None, description="which records are answered questions; all, where it is left out")
    asked_at: ExpressionText
    question: ExpressionText
    answer: ExpressionText
    contexts: ExpressionText = Field(None, description="a list of texts, or of objects with chunk_id and text")
    model: ExpressionText = Field(description="what wrote the answer, with its version")
    product: ExpressionText = None
    line_of_business: ExpressionText = None
    group: ExpressionText = None
    writer_scores: ExpressionText = Field(
        None, description="an object of the writer's scores by name, as in {log_prob: score}"
    )
    token_log_probs: ExpressionText = None
    display: ExpressionText = None
    propensity: ExpressionText = None


class RetrievalPaths(FrozenModel):
    """Expressions for records that hold only the contexts of an answer.

    Attributes:
        where: Selects these records.
        join: A value that is equal in the record of the answer and in the record of its contexts.
        contexts: A list of texts, or of objects with chunk_id and text.
    """

    where: ExpressionText
    join: ExpressionText = Field(description="equal in the record of the answer and in that of its contexts")
    contexts: ExpressionText


class NestedScores(FrozenModel):
    """Expressions that locate the scores of a record in a list of objects.

    Attributes:
        list: The list, in the record.
        name: Name of a score. This expression and the following ones are evaluated on an item of the list, which has
            the whole record as its field `record`.
        value: Value of a score.
        where: Selects the scores that count; None selects all.
        id: Id of a score.
        time: Time of a score.
        user: Person who gave it.
        comment: Comment on it.
    """

    list: ExpressionText
    name: ExpressionText
    value: ExpressionText
    where: ExpressionText = None
    id: ExpressionText = None
    time: ExpressionText = None
    user: ExpressionText = None
    comment: ExpressionText = None


class ThumbScores(FrozenModel):
    """Scores that are thumbs. A path that the format defines may be left out.

    Attributes:
        given_at: Time of the thumb.
        user: User who gave it.
        comment: The user's comment.
        scores: Name of a score -> its value -> up or down.
    """

    given_at: ExpressionText = None
    user: ExpressionText = None
    comment: ExpressionText = None
    scores: Annotated[dict[str, Annotated[dict[str, Literal["up", "down"]], ByValue]], ByName] = Field(min_length=1)


class ReviewScores(FrozenModel):
    """Scores that are fields of a review. A path that the format defines may be left out.

    Attributes:
        reviewed_at: Time of the score.
        reviewer: Person who gave it.
        reviewers: Persons who count as reviewers.
        criteria: Name of a score -> its value -> criteria of the review with their values.
        ideal_answer: Name of the score whose text is the ideal answer.
    """

    reviewed_at: ExpressionText = None
    reviewer: ExpressionText = None
    reviewers: Literal["all"] | tuple[str, ...] = Field(description="who counts as a reviewer")
    criteria: Annotated[dict[str, Annotated[dict[str, dict[Criterion, bool]], ByValue]], ByName] = Field(min_length=1)
    ideal_answer: str | None = Field(None, description="the score whose text is the ideal answer")


class ExportMapping(FrozenModel):
    """The mapping of the exports of one tool.

    Attributes:
        format: Name of the tool's format (`formats.FORMATS`).
        interaction_id: Id of an answer, in its record and in the records of its scores.
        answers: Where answers are; None if the export has none.
        retrievals: Where contexts are that have records of their own.
        scores: Where the scores of a record are; only of the format `nested`.
        thumbs: Which scores are thumbs.
        reviews: Which scores are fields of a review.
    """

    format: Literal["argilla", "label_studio", "langfuse", "mlflow", "nested", "open_webui", "phoenix", "table"]
    interaction_id: ExpressionText = Field(description="of an answer, and of what a score judges")
    answers: AnswerPaths | None = None
    retrievals: RetrievalPaths | None = None
    scores: NestedScores | None = None
    thumbs: ThumbScores | None = None
    reviews: ReviewScores | None = None

    @model_validator(mode="after")
    def _check(self) -> ExportMapping:
        if not (self.answers or self.thumbs or self.reviews):
            raise ValueError("it maps nothing: write answers, thumbs or reviews")
        if self.retrievals and not self.answers:
            raise ValueError("retrievals without answers: write answers, too")
        if (self.format == "nested") != (self.scores is not None):
            raise ValueError("scores says where the format nested has its scores: write both or neither")
        if duplicates := sorted(self.thumb_names & self.review_names):
            raise ValueError(f"the score '{duplicates[0]}' is a thumb and part of a review: decide for one")
        for section, field, path in self._iter_required():
            if path is None:
                raise ValueError(f"{section}.{field} is missing: the format {self.format} does not fix where it stands")
        return self

    def _iter_required(self) -> Iterator[tuple[str, str, Expression | None]]:
        if self.scores:
            scored_at, reviewer = self.scores.time, self.scores.user
        else:
            scored_at, reviewer = FORMATS[self.format].scored_at, FORMATS[self.format].reviewer
        if self.thumbs:
            yield "thumbs", "given_at", self.thumbs.given_at or scored_at
        if self.reviews:
            yield "reviews", "reviewed_at", self.reviews.reviewed_at or scored_at
            yield "reviews", "reviewer", self.reviews.reviewer or reviewer

    @property
    def thumb_names(self) -> frozenset[str]:
        """The names of scores that are thumbs."""
        return frozenset(self.thumbs.scores if self.thumbs else ())

    @property
    def review_names(self) -> frozenset[str]:
        """The names of scores that are fields of a review."""
        if self.reviews is None:
            return frozenset()
        return frozenset(self.reviews.criteria) | ({self.reviews.ideal_answer} if self.reviews.ideal_answer else set())

    @property
    def score_names(self) -> frozenset[str]:
        """The names of all scores that give a row."""
        return self.thumb_names | self.review_names

    def get_expressions(self) -> dict[str, Expression]:
        """Return every expression of the file, by its key."""
        expressions: dict[str, Expression] = {"interaction_id": self.interaction_id}
        for name in ("answers", "retrievals", "scores", "thumbs", "reviews"):
            section = getattr(self, name)
            for key in type(section).model_fields if section else ():
                if isinstance(value := getattr(section, key), Expression):
                    expressions[f"{name}.{key}"] = value
        return expressions


def load_mapping(path: Path) -> ExportMapping:
    """Parse a mapping file.

    Args:
        path: The file.

    Returns:
        The mapping.

    Raises:
        AbstainError: The file has a wrong key or expression; the message names the first one.
    """
    return load_yaml_model(path, ExportMapping, "name a mapping file (docs/howto/exports/index.md)")
