"""Which input rows are new, which are known, and which contradict what is known. Pure.

Two decisions:

* The first content of an id wins, in order of arrival; other content is a conflict. Known content with a new
  thumb or review beside it is new feedback.
* Of a document the newest version wins, wherever it stands in the batch: the outcome does not depend on the
  order of files, and settling the same rows again finds only duplicates and the same conflicts.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from abstain.contracts import Chunk, Document, Feedback, Interaction, Review, Row
from abstain.feedback.rows import InputRow
from abstain.feedback.store import Dataset, row_key

Outcome = Literal["accepted", "duplicate", "quarantined"]
Reasons = tuple[str, ...]


@dataclass(frozen=True)
class Settled:
    """What becomes of each input row, in order, and the dataset with the accepted ones.

    `owners` maps the `row_key` of all new content to the content that would have to go if it fails
    validation: itself, or the document of a chunk. `accepted` counts new rows by contract.
    """

    outcomes: tuple[Outcome, ...]
    reasons: tuple[Reasons, ...]
    dataset: Dataset
    owners: Mapping[str, Row]
    accepted: Mapping[str, int]


def settle(rows: Sequence[InputRow], stored: Dataset, refused: Mapping[Row, Reasons]) -> Settled:
    """Decide on `rows` against `stored` and against each other; those with contents in `refused` are out."""
    ledger = _Ledger(rows, stored, refused)
    decisions = [ledger.decide(row) for row in rows]
    return Settled(
        outcomes=tuple(outcome for outcome, _ in decisions),
        reasons=tuple(reasons for _, reasons in decisions),
        dataset=ledger.dataset(),
        owners=ledger.owners(),
        accepted={
            "interactions": len(ledger.new_of(Interaction)),
            "feedback": len(ledger.new_of(Feedback)),
            "reviews": len(ledger.new_of(Review)),
            "documents": len(ledger.new_of(Document)),
        },
    )


class _Ledger:
    """What is known so far; grows with each decision."""

    def __init__(self, rows: Sequence[InputRow], stored: Dataset, refused: Mapping[Row, Reasons]) -> None:
        self._stored = stored
        self._refused = refused
        self._new: list[Row] = []
        self._known: dict[Hashable, Row] = {
            _identity(row): row for table in (stored.interactions, stored.feedback, stored.reviews) for row in table
        }
        self._documents = {document.doc_id: document for document in stored.documents}
        self._sources = dict(stored.sources)
        self._chunks: dict[str, tuple[Chunk, ...]] = _by_document(stored.chunks)
        self._newest = dict(self._documents)
        for row in rows:
            document = row.document
            if document is None or document in refused:
                continue
            best = self._newest.setdefault(document.doc_id, document)
            if document.updated_at > best.updated_at:
                self._newest[document.doc_id] = document

    def decide(self, row: InputRow) -> tuple[Outcome, Reasons]:
        contents = tuple(row.contents())
        reasons = row.reasons or tuple(reason for content in contents for reason in self._refused.get(content, ()))
        reasons = reasons or tuple(reason for content in contents for reason in self._conflict(content))
        if reasons:
            return "quarantined", tuple(dict.fromkeys(reasons))
        is_new = self._take_document(row.document, row) if row.document else self._take_contents(contents)
        return ("accepted" if is_new else "duplicate"), ()

    def _take_contents(self, contents: Sequence[Row]) -> bool:
        new = {_identity(content): content for content in contents if _identity(content) not in self._known}
        self._known.update(new)
        self._new += new.values()
        return bool(new)

    def _take_document(self, document: Document, row: InputRow) -> bool:
        doc_id = document.doc_id
        # The chunks are compared, too: a crash between the two files, or a changed way of cutting, is made good.
        if self._documents.get(doc_id) == document and self._chunks.get(doc_id, ()) == row.chunks:
            return False
        self._documents[doc_id] = document
        self._chunks[doc_id] = row.chunks
        self._sources[doc_id] = row.raw.decode()
        self._new.append(document)
        return True

    def _conflict(self, content: Row) -> Reasons:
        """Why `content` contradicts what is known; nothing where it does not."""
        if isinstance(content, Document):
            winner = self._newest[content.doc_id]
            if content == winner:
                return ()
            if content.updated_at < winner.updated_at:
                return (f"updated_at: a newer version of the document '{content.doc_id}' is known",)
            return (
                f"updated_at: other content of the document '{content.doc_id}' has the same date: write a newer one",
            )
        known = self._known.get(_identity(content))
        if known is None or known == content:
            return ()
        differing = ", ".join(
            name for name in type(content).model_fields if getattr(content, name) != getattr(known, name)
        )
        match content:
            case Interaction():
                one_line = " ".join(content.interaction_id.split())
                return (f"interaction_id: '{one_line}' is known with other content (differs in {differing})",)
            case Feedback():
                return (
                    f"thumb: this user's thumb of the same time is known with other content (differs in {differing})",
                )
            case _:
                return (f"review: this reviewer's verdict of the same time is known (differs in {differing})",)

    def new_of(self, contract: type[Row]) -> list[Row]:
        return [content for content in self._new if type(content) is contract]

    def owners(self) -> dict[str, Row]:
        owners = {row_key(content): content for content in self._new}
        for document in self.new_of(Document):
            assert isinstance(document, Document)
            owners.update((row_key(chunk), document) for chunk in self._chunks[document.doc_id])
        return owners

    def dataset(self) -> Dataset:
        stored = self._stored
        return Dataset(
            documents=tuple(self._documents[doc_id] for doc_id in sorted(self._documents)),
            sources=self._sources,
            chunks=tuple(chunk for doc_id in sorted(self._chunks) for chunk in self._chunks[doc_id]),
            interactions=(*stored.interactions, *(row for row in self._new if isinstance(row, Interaction))),
            feedback=(*stored.feedback, *(row for row in self._new if isinstance(row, Feedback))),
            reviews=(*stored.reviews, *(row for row in self._new if isinstance(row, Review))),
        )


def _identity(row: Row) -> Hashable:
    """What may be known only once. An anonymous thumb is itself: two may be two people's."""
    match row:
        case Interaction():
            return ("interaction", row.interaction_id)
        case Feedback():
            return ("feedback", row.interaction_id, row.given_at, row.user) if row.user else row
        case Review():
            return ("review", row.interaction_id, row.reviewed_at, row.reviewer)
    raise TypeError(f"{type(row).__name__} has no identity of its own")


def _by_document(chunks: Sequence[Chunk]) -> dict[str, tuple[Chunk, ...]]:
    grouped: dict[str, list[Chunk]] = {}
    for chunk in chunks:
        grouped.setdefault(chunk.doc_id, []).append(chunk)
    return {doc_id: tuple(own) for doc_id, own in grouped.items()}
