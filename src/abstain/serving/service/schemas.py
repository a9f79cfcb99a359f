"""Requests and responses of the server. Unknown fields are rejected with their name."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, StringConstraints, model_validator

from abstain.core.codes import Code
from abstain.core.contracts import Context, Id, LogProbability, Number, Row, ScoreName, Text
from abstain.core.message_text import Role, extract_text
from abstain.learning.thresholds.guarantee import Guarantee, GuaranteeSummary
from abstain.llm.engine.requests import Generate
from abstain.serving.decision import DecisionReason
from abstain.serving.engine_states import StatesInput
from abstain.serving.feature_spec import FeatureSpec

MAX_LIST_ITEMS = 1000
"""Items of a list in a request. Parsing ends at a list's first invalid item: there may be a million of them."""
MAX_SCORES = 100
"""Scores of one answer that the assistant sends."""
MAX_ANSWERS = 64
"""Answers in one request, of a gateway, too."""
ShortText = Annotated[Text, StringConstraints(max_length=200)]
"""A name, not a text: it is stored unchanged, and some of them permanently."""
LimitedScoreName = Annotated[ScoreName, StringConstraints(max_length=200)]


def _read_text(role: Role, value: Any) -> Any:
    """Return the text of a message or of its parts; what has none is left for the contract to reject."""
    return value if isinstance(value, str) else extract_text(value, role) or value


def _read_context(value: Any) -> Any:
    """Return a retrieved chunk, in the form of whatever retrieved it, as a context."""
    if not isinstance(value, dict | list):
        return value
    text = extract_text(value)
    if text is None:
        raise ValueError(f"no text in {'a list' if isinstance(value, list) else 'an object'}")
    ids = (value.get("chunk_id"), value.get("id")) if isinstance(value, dict) else ()
    chunk_id = next(filter(None, map(extract_text, ids)), None)
    return Context(chunk_id=chunk_id, text=text) if chunk_id else text


_MESSAGE = str | list[Any] | dict[str, Any]
QuestionText = Annotated[Text, BeforeValidator(partial(_read_text, "user"), json_schema_input_type=_MESSAGE)]
AnswerText = Annotated[Text, BeforeValidator(partial(_read_text, "assistant"), json_schema_input_type=_MESSAGE)]
Contexts = Annotated[
    tuple[Annotated[Context | Text, BeforeValidator(_read_context, json_schema_input_type=_MESSAGE)], ...],
    Field(max_length=MAX_LIST_ITEMS, fail_fast=True),
]
Entitlements = Annotated[tuple[ShortText, ...], Field(max_length=MAX_LIST_ITEMS, fail_fast=True)]


class RequestMetadata(Row):
    """Metadata of a question. `user` is stored as a pseudonym."""

    interaction_id: Id | None = Field(
        None, description="yours, for feedback and repeats; one is made where it is absent"
    )
    conversation: Id | None = Field(None, description="in which the tries of one question are limited; not stored")
    user: ShortText | None = Field(None, description="who asked; stored as a pseudonym")
    product: ShortText | None = None
    line_of_business: ShortText | None = None
    group: ShortText | None = Field(None, description="what may not straddle train and test, such as a document")


class GateRequest(RequestMetadata):
    """One answer to decide about: its texts, what an engine has computed for it, or both.

    Its contexts are `contexts`, else what `/v1/contexts` registered for `call_id`, else the chunks of the knowledge
    index that a user with `entitlements` may read. With none of these, and without `allow_no_context`, the decision is
    `unavailable`.
    """

    question: QuestionText | None = Field(None, description="a text, or messages of which it is the user's last one")
    contexts: Contexts | None = Field(None, description="ranked, best first: texts, or objects that have one")
    answer: AnswerText | None = Field(None, description="a text, a message or its parts, or messages that end with it")
    allow_no_context: bool = Field(False, description="an answer without any context is meant to be decided on")
    call_id: Id | None = Field(None, description="of contexts that were registered before")
    entitlements: Entitlements | None = Field(None, description="of the asker, to retrieve contexts from the index")
    states: StatesInput | None = Field(None, description="hidden states that the engine has computed of the answer")
    response: dict[str, Any] | None = Field(
        None, description="of an OpenAI-style API, whose log-probabilities are used for scorers that read these alone"
    )
    model: ShortText | None = Field(None, description="the model that wrote the answer, id@revision")
    writer_scores: Annotated[dict[LimitedScoreName, Number], Field(max_length=MAX_SCORES)] | None = Field(
        None, description="scores that the assistant gave its answer"
    )
    token_log_probs: Annotated[tuple[LogProbability, ...], Field(max_length=100_000, fail_fast=True)] | None = None


GateRequests = Annotated[list[GateRequest], Field(max_length=MAX_LIST_ITEMS, fail_fast=True)]


class AnswerRequest(RequestMetadata):
    """A question for the base model, with generation settings."""

    question: QuestionText
    contexts: Contexts = ()
    allow_no_context: bool = False
    entitlements: Entitlements = Field((), description="of the asker, to retrieve background on unfamiliar concepts")
    max_new_tokens: Annotated[int, Field(ge=1, le=1024)] = 48
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    stream: Literal["buffered", "optimistic"] | None = Field(
        None,
        description="server-sent events: text after the decision, or at once, for who has the role `read_withheld`",
    )

    @property
    def operation(self) -> Generate:
        """The generation settings."""
        return Generate(self.max_new_tokens, self.temperature, self.top_p, seed=self.seed)

    @model_validator(mode="after")
    def _check_operation(self) -> AnswerRequest:
        assert self.operation  # raises if the values do not go together
        return self


class DecisionResponse(Row):
    """The decision about one answer: `show` says what to do, `decision` is the result."""

    interaction_id: str
    decision: Literal["show", "abstain", "unavailable"]
    show: bool
    confidence: float | None
    probability: float | None = Field(description="that the answer is correct, calibrated")
    probability_low: float | None
    probability_high: float | None
    threshold: float | None
    guarantee: GuaranteeSummary | None = Field(description="of the version; GET /v1/version has its evidence")
    version: str | None
    components: tuple[str, ...] = Field(description="the scorers that the confidence combines")
    feature_spec: str | None = Field(description="digest of what the scorer reads, of GET /v1/version")
    forward_tokens: float = Field(description="tokens that the base model read for this decision")
    reason: DecisionReason | None = Field(
        description="why there is no confidence, or no guarantee, or what the base model did not know"
    )
    sources: tuple[str, ...] = Field(
        description="where the answer's contexts are found: heading and page, title or id, best first"
    )
    cleaned_answer: str | None = Field(
        description="the answer without the reasoning that was in it, which is what was decided about"
    )


class AnswerResponse(DecisionResponse):
    """An answer with the decision about it.

    `answer` is null if there is none, or if it is withheld and the key may not see withheld answers.
    """

    answer: str | None


class FeedbackRequest(Row):
    """A thumb or a review of an answer, recorded once by `feedback_id`."""

    feedback_id: Id
    interaction_id: Id
    thumb: Literal["up", "down"] | None = None
    user: ShortText | None = Field(None, description="who gave the thumb; stored as a pseudonym")
    comment: Text | None = None
    reviewer: ShortText | None = Field(None, description="on a server without keys; with keys it is the key's name")
    complete: StrictBool | None = None
    correct: StrictBool | None = None
    truthful: StrictBool | None = None
    ideal_answer: Text | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> FeedbackRequest:
        criteria = (self.complete, self.correct, self.truthful)
        if self.thumb is None and None in criteria:
            raise ValueError("give a thumb, or a review: complete, correct and truthful")
        if self.thumb is not None and {*criteria, self.reviewer, self.ideal_answer} != {None}:
            raise ValueError("a thumb and a review are two requests, with an id each")
        if self.thumb is None and (self.user is not None or self.comment is not None):
            raise ValueError("user and comment belong to a thumb")
        return self

    @property
    def is_review(self) -> bool:
        """Whether the feedback is a review."""
        return self.thumb is None


class FeedbackResponse(Row):
    feedback_id: str
    outcome: Literal["recorded", "duplicate"]


class ContextsRequest(Row):
    """Contexts of an answer, under the id of its call; deleted after `ttl_s` seconds."""

    call_id: Id
    question: QuestionText | None = None
    contexts: Contexts
    user: ShortText | None = None
    product: ShortText | None = None
    ttl_s: Annotated[float, Field(gt=0, le=3600)] = 300.0


class ScorerResponse(Row):
    """The live version's scorer; `components` are the scorers that a fusion combines, else the scorer alone."""

    name: str
    components: tuple[str, ...]
    threshold: float
    base_model: str
    forward_tokens: float | None = Field(description="that the base model read for an answer in training, on average")


class ErrorResponse(Row):
    code: Code
    message: str


class VersionResponse(Row):
    """The live version. `error`: why the newest version is not live, or why the registry cannot be read."""

    version: str | None
    live_since: datetime | None
    guarantee: Guarantee | None
    notices: tuple[str, ...] = Field(description="what users should know of it, such as that it guarantees nothing")
    scorer: ScorerResponse | None
    feature_spec: FeatureSpec | None
    error: ErrorResponse | None


class HealthResponse(Row):
    status: str
