"""The data contracts: every row that enters or leaves Abstain, typed and versioned.

Notes:

* Each row is a frozen pydantic model with `extra="forbid"`. An unknown field is rejected with its name, because a
  silently dropped field would be lost feedback.
* Rows are stored as JSON Lines in one canonical form (`to_json_line`): equal rows are equal bytes. So a comparison of
  bytes distinguishes a duplicate from a conflict, and DVC sees no change if there is none. A field that was added to a
  contract after rows had been stored is written only if it is given, so that these rows keep their bytes.
* The import format (`ImportedInteraction`) is an interaction with an optional thumb and an optional review inside it.
  `to_rows` splits it, so code after ingest does not depend on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from abstain.core.timestamps import Timestamp

CONTRACT_VERSION = 1

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Id = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]
"""An interaction's id; its length is limited, because a cell of a review file has to hold it with all escapes."""
ScoreName = Annotated[str, StringConstraints(pattern=r"\S")]
Probability = Annotated[float, Field(gt=0, le=1)]
MIN_INCLUSION_PROBABILITY = 1e-6
"""The smallest inclusion probability: a review represents a million answers at most.

Below it, one row would outweigh all others together, and 1 / p could be infinite.
"""
InclusionProbability = Annotated[float, Field(ge=MIN_INCLUSION_PROBABILITY, le=1)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False), AfterValidator(lambda value: value + 0.0)]
"""A finite number; -0 becomes 0, which is the same number in other bytes."""
LogProbability = Annotated[Number, Field(le=0)]
UNNAMED_PREFIX = "unnamed-"
"""Prefix of the document id of an unnamed context; no document has to be ingested for it."""
PATH_SEPARATOR = " > "
"""Between the titles of a document and of its sections, with which each chunk begins."""
Criterion = Literal["complete", "correct", "truthful"]
CRITERIA: tuple[str, ...] = get_args(Criterion)
"""The yes/no criteria of a review."""


def _is_missing(value: Any) -> bool:
    return value is None


def _sort_scores(scores: dict[str, float]) -> dict[str, float] | None:
    return dict(sorted(scores.items())) or None


def _empty_to_none(values: tuple[float, ...]) -> tuple[float, ...] | None:
    return values or None


class Row(BaseModel):
    """Base of all contracts: immutable, strict about unknown fields and about types."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json_line(self) -> str:
        """Return the row as one line of JSON, fields in the contract's order and timestamps in UTC."""
        return self.model_dump_json()


class Context(Row):
    """A retrieved chunk as the base model read it."""

    chunk_id: Text
    text: Text


class Question(Row):
    """A question with its retrieved contexts, to be answered."""

    interaction_id: Id
    question: Text
    contexts: tuple[Context, ...] = Field(description="ranked, best first; may be empty")


class Interaction(Row):
    """An answered question; the same id with the same content is a duplicate, with other content a conflict."""

    interaction_id: Id
    asked_at: Timestamp
    question: Text
    answer: Text
    contexts: tuple[Context, ...] = Field(description="ranked, best first; may be empty")
    model: Text = Field(description="the base model that wrote the answer, id@revision")
    product: Text | None = None
    line_of_business: Text | None = None
    group: Text | None = Field(None, description="what may not straddle train and test")
    writer_scores: Annotated[dict[ScoreName, Number], AfterValidator(_sort_scores)] | None = Field(
        None, description="scores that the assistant gave its answer, by name, on any scale", exclude_if=_is_missing
    )
    token_log_probs: (
        Annotated[tuple[LogProbability, ...], Field(fail_fast=True), AfterValidator(_empty_to_none)] | None
    ) = Field(
        None,
        description="log-probabilities of the answer's tokens, by the model that wrote it",
        exclude_if=_is_missing,
    )
    display: Literal["shown", "withheld"] | None = Field(
        None, description="what the assistant's own gate decided", exclude_if=_is_missing
    )
    propensity: Probability | None = Field(
        None, description="with which probability that gate would have shown the answer", exclude_if=_is_missing
    )

    @property
    def split_group(self) -> str:
        """`group`, else the first chunk's document, else the interaction itself."""
        if self.group:
            return self.group
        return get_document_id(self.contexts[0].chunk_id) if self.contexts else self.interaction_id


class Thumb(Row):
    """A user's thumb: it states usefulness, a noisy proxy of correctness."""

    interaction_id: Id
    given_at: Timestamp
    thumb: Literal["up", "down"]
    user: Text | None = Field(None, description="pseudonymous")
    comment: Text | None = None


class Review(Row):
    """A reviewer's criteria for an answer; a review outranks every thumb."""

    interaction_id: Id
    reviewed_at: Timestamp
    reviewer: Text
    complete: bool
    correct: bool
    truthful: bool
    ideal_answer: Text | None = None
    inclusion_probability: InclusionProbability | None = None


class Document(Row):
    """A document of the knowledge base: Markdown with front matter; headings give the section path."""

    doc_id: Text
    title: Text
    product: Text | None = None
    entitlements: tuple[Text, ...] = ()
    updated_at: Timestamp
    body: Text


NOBODY = "nobody"
"""The entitlement of a document of which nothing says who may read it: no reader can hold it."""


class Chunk(Row):
    """A piece of one subsection: retrievable, or a tombstone once `removed_at` is set.

    `chunk_id` is `doc_id#` and the beginning of `content_hash`, so it always means the same text.
    """

    chunk_id: Text
    doc_id: Text
    section_path: tuple[Text, ...]
    kind: Literal["text", "table", "list"]
    text: Text
    entitlements: tuple[Text, ...] = ()
    updated_at: Timestamp
    content_hash: Text
    removed_at: Timestamp | None = None
    page: int | None = Field(None, ge=1, description="where it begins, in a PDF", exclude_if=_is_missing)


class ImportedThumb(Row):
    """A thumb inside an import row; its interaction is the row that contains it."""

    given_at: Timestamp
    thumb: Literal["up", "down"]
    user: Text | None = None
    comment: Text | None = None


class ImportedReview(Row):
    """A review inside an import row; its interaction is the row that contains it."""

    reviewed_at: Timestamp
    reviewer: Text
    complete: bool
    correct: bool
    truthful: bool
    ideal_answer: Text | None = None
    inclusion_probability: InclusionProbability | None = None


class ImportedInteraction(Interaction):
    """The import format: an interaction with its optional thumb and review."""

    thumb: ImportedThumb | None = None
    review: ImportedReview | None = None

    def to_rows(self) -> tuple[Interaction, Thumb | None, Review | None]:
        """Split the row into the three contracts that it joins.

        Returns:
            The interaction, its thumb or None, and its review or None.
        """
        # Every value was validated when this row was made: doing it again would be half of the time of reading one.
        interaction = Interaction.model_construct(**self.__dict__)
        interaction_id = self.interaction_id
        thumb = Thumb.model_construct(interaction_id=interaction_id, **self.thumb.__dict__) if self.thumb else None
        review = Review.model_construct(interaction_id=interaction_id, **self.review.__dict__) if self.review else None
        return interaction, thumb, review


def make_unnamed_context(text: str) -> Context:
    """Return a context for a retrieved text without a chunk id.

    Args:
        text: The retrieved text. The id is derived from it, so equal texts belong to one document.
    """
    normalized_text = " ".join(text.split())
    digest = hashlib.sha256(normalized_text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return Context(chunk_id=f"{UNNAMED_PREFIX}{digest}#1", text=text)


def format_location(chunk: Chunk) -> str:
    """Return where a chunk is found, in one line: "Gold Card › Fees › Abroad, page 3"."""
    path = " ".join(" › ".join(chunk.section_path).split())
    return path if chunk.page is None else f"{path}, page {chunk.page}"


def locate_contexts(contexts: Iterable[Context], chunks: Mapping[str, Chunk]) -> dict[str, str]:
    """Return the locations of those contexts that are chunks of the knowledge base.

    Args:
        contexts: The contexts.
        chunks: Id -> chunk.

    Returns:
        Chunk id -> location (`format_location`).
    """
    ids = {context.chunk_id for context in contexts}
    return {chunk_id: format_location(chunks[chunk_id]) for chunk_id in ids if chunk_id in chunks}


def list_sources(contexts: Iterable[Context], chunks: Mapping[str, Chunk]) -> tuple[str, ...]:
    """Return what readers know the places of retrieved chunks by, best first.

    Args:
        contexts: The retrieved chunks.
        chunks: Id -> chunk of the knowledge base.

    Returns:
        The location of a chunk of the knowledge base (`format_location`); else the title with which a text begins
        ("Title > Section"), or the id of its document; nothing for a text without either.
    """
    sources: dict[str, None] = {}
    for context in contexts:
        chunk = chunks.get(context.chunk_id)
        if chunk is not None and chunk.text == context.text:  # the id alone gives no right to what a chunk says
            sources[format_location(chunk)] = None
            continue
        title, separator, _ = context.text.partition("\n")[0].partition(PATH_SEPARATOR)
        if separator:
            sources[title.strip()] = None
        elif not context.chunk_id.startswith(UNNAMED_PREFIX):
            sources[get_document_id(context.chunk_id)] = None
    return tuple(filter(None, sources))


def get_document_id(chunk_id: str) -> str:
    """Return the document that a chunk belongs to: the part of `chunk_id` before the last `#`."""
    return chunk_id.rpartition("#")[0] or chunk_id
