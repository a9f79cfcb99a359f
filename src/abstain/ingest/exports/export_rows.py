"""The records of an export as rows of the import format: a survey of all of them, then row after row.

Notes:

* The survey finds what no record shows alone: the contexts that stand in records of their own, the scores that are one
  review together, and whether the mapping fits. Rows come after it, so an export that does not fit gives none.
* A thumb or review has the time at which its scores were last changed. A score that is changed later is a new row of
  the same person, which outranks the earlier one; both are kept.
* A thumb without a user gets the score's id as its user: a changed one replaces it, and those of others do not.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.ingest.exports.expressions import Expression, TrackedExpression
from abstain.ingest.exports.formats import FORMATS, Record, Score, detect_format
from abstain.ingest.exports.mapping import AnswerPaths, ExportMapping, ReviewScores, ThumbScores, value_text
from abstain.ingest.exports.reviews import ReviewField, ReviewKey, make_review_row, missing_verdicts
from abstain.ingest.parsing import ParsedRow, parse_object

WRITER_FIELDS = ("writer", "token_log_probs", "decision", "propensity")
"""What the assistant knew of its own answer."""
_SHOWN = 40
"""The longest value of a score that a note quotes, in characters: a longer one is a text that someone wrote."""


class ExportRecord(NamedTuple):
    """One record of a file, with its number from 1 (of a table, its line)."""

    fields: Record
    source: str
    number: int


class ExportRows:
    """The rows of one export. `scan` takes the records of each file, `check` ends it, `rows` takes them again."""

    def __init__(self, mapping: ExportMapping, name: str) -> None:
        self._mapping, self._name = mapping, name
        self._format = FORMATS[mapping.format]
        self._tracked = {key: TrackedExpression(one) for key, one in mapping.expressions().items()}
        used = frozenset[str]().union(*(one.fields for one in mapping.expressions().values()))
        self._used = used - mapping.thumb_names - mapping.review_names
        self._contexts: dict[str, list[Any]] = {}
        self._reviews: dict[str, tuple[ReviewKey, list[ReviewField]]] = {}
        self._records = self._answers = 0
        self._scores = Counter[str]()
        self._left_out: dict[str, Counter[str]] = {}

    def parts(self, records: Iterable[ExportRecord], file_name: str) -> list[ExportRecord]:
        """The parts of all `records` of the file `file_name`. Raises `AbstainError` where one is of another tool."""
        found: list[ExportRecord] = []
        for record in records:
            where = f"{file_name} record {record.number}"
            try:
                parts = list(self._format.records(record.fields))
            except ValueError as error:
                raise AbstainError(Code.WRONG_FORMAT, f"{where}: {error}: export it again") from None
            for part in parts:
                if not self._format.recognizes(part):
                    other = detect_format(record.fields)
                    remedy = f"write `format: {other}` in {self._name}" if other else "name an export of that tool"
                    names = ", ".join(sorted(record.fields)[:6])
                    raise AbstainError(
                        Code.WRONG_FORMAT, f"{where}: is not of {self._format.title} (its fields are {names}): {remedy}"
                    )
                found.append(record._replace(fields=part))
        return found

    # The survey

    def scan(self, parts: Iterable[ExportRecord]) -> None:
        """Take the parts of one file, which was read to its end."""
        for part in parts:
            self._records += 1
            if self._format.is_answer(part.fields):
                self._survey_answer(part.fields)
            for score in self._scores_of(part):
                self._survey_score(score, part)

    def check(self) -> None:
        """Raise `AbstainError` where the mapping names a field that no record has."""
        for key, tracked in self._tracked.items():
            if problem := tracked.problem():
                raise AbstainError(Code.BAD_SETTING, f"{self._name}: {key}: {problem}")

    def require_rows(self, shown: str) -> None:
        """Raise `AbstainError` where the export `file_name` gives no row at all."""
        if self._answers or any(self._scores[name] for name in self._mapping.score_names):
            return
        names = ", ".join(f"{name} ({count:,})" for name, count in self._scores.most_common(8)) or "none"
        raise AbstainError(
            Code.NO_ROWS,
            f"{shown}: {self._name} maps nothing of its {self._records:,} records; scores in it: {names}: name one in "
            "thumbs or reviews, or export again",
        )

    def _survey_answer(self, record: Record) -> None:
        mapping, tracked = self._mapping, self._tracked
        if mapping.retrievals and tracked["retrievals.where"].evaluate(record):
            key, found = (tracked[f"retrievals.{name}"].evaluate(record) for name in ("join", "contexts"))
            if key is not None:
                self._contexts.setdefault(str(key), []).extend(_list(found))
        if mapping.answers and (mapping.answers.where is None or tracked["answers.where"].evaluate(record)):
            self._answers += 1
            tracked["interaction_id"].evaluate(record)
            self._track("answers", record, but="answers.where")

    def _survey_score(self, score: Score, part: ExportRecord) -> None:
        self._scores[score.name] += 1
        if score.name not in self._mapping.score_names:
            self._count_skipped("scores that are not mapped", score.name)
        elif score.skip_reason is not None:
            self._count_skipped(f"scores {score.skip_reason}, not taken", score.name)
        elif (interaction_id := _text(self._tracked["interaction_id"].evaluate(part.fields))) is None:
            self._count_skipped("scores without an interaction_id, not taken", score.name)
        elif score.name in self._mapping.thumb_names:
            self._track("thumbs", score.source_record)
            if self._thumb_of(score) is None:
                self._leave_out_value(score)
        else:
            self._track("reviews", score.source_record)
            self._survey_review(score, part, interaction_id)

    def _survey_review(self, score: Score, part: ExportRecord, interaction_id: Any) -> None:
        reviews = cast(ReviewScores, self._mapping.reviews)
        reviewer = _text(_first(score.source_record, reviews.reviewer, self._format.reviewer))
        says: Mapping[str, Any] | None = {"ideal_answer": score.value}
        if score.name != reviews.ideal_answer:
            says = cast("Mapping[str, Any] | None", reviews.verdicts[score.name].get(value_text(score.value)))
        if reviewer is None:
            self._count_skipped("scores without a reviewer, not taken", score.name)
        elif reviews.reviewers != "all" and reviewer not in reviews.reviewers:
            self._count_skipped("scores of people who are not among reviews.reviewers, not taken", score.name)
        elif says is None:
            self._leave_out_value(score)
        else:
            key = ReviewKey(interaction_id, reviewer, score.form)
            at = _first(score.source_record, reviews.reviewed_at, self._format.at)
            _, parts = self._reviews.setdefault(json.dumps(key), (key, []))
            parts.append(ReviewField(at, says, part.source, part.number))

    def _track(self, section: str, record: Record, but: str = "") -> None:
        for key, tracked in self._tracked.items():
            if key.startswith(f"{section}.") and key != but:
                tracked.evaluate(record)

    def _count_skipped(self, what: str, name: str) -> None:
        self._left_out.setdefault(what, Counter())[name] += 1

    def _leave_out_value(self, score: Score) -> None:
        value = value_text(score.value)
        quoted = value if len(value) <= _SHOWN and "\n" not in value else "a longer text"
        self._count_skipped("values that are not mapped", f"{score.name} = {quoted}")

    # The rows

    def rows(self, parts: Iterable[ExportRecord]) -> Iterator[ParsedRow]:
        """The answers and thumbs of one file, after the survey."""
        for part in parts:
            answers, fields = self._mapping.answers, part.fields
            if answers and self._format.is_answer(fields) and (answers.where is None or answers.where.of(fields)):
                yield parse_object(self._answer(answers, fields), part.source, part.number)
            for score in self._scores_of(part):
                thumb = self._thumb_of(score)
                interaction_id = _text(self._mapping.interaction_id.of(fields))
                if thumb is not None and score.skip_reason is None and interaction_id is not None:
                    row = {"interaction_id": interaction_id, **self._thumb(score, thumb)}
                    yield parse_object(row, part.source, part.number)

    def reviews(self) -> Iterator[ParsedRow]:
        """The reviews of all files; those that lack a verdict are counted, and come when they have it."""
        for key, parts in self._reviews.values():
            if missing := missing_verdicts(parts):
                self._count_skipped("reviews that are not complete yet, not taken", f"without {' and '.join(missing)}")
            else:
                yield make_review_row(key, parts)

    def notes(self) -> tuple[str, ...]:
        """What gave no row, with counts, after the last row."""
        notes = []
        where = self._tracked.get("answers.where")
        if where is not None and where.records and not self._answers:
            notes.append(f"{self._name}: answers.where selects none of {where.records:,} records")
        for what, counts in sorted(self._left_out.items()):
            each = ", ".join(f"{name} ({count:,})" for name, count in counts.most_common())
            notes.append(f"{self._name}: {what}: {each}")
        if absent := sorted(name for name in self._mapping.score_names if not self._scores[name]):
            notes.append(f"{self._name}: scores that the mapping names and no record has: {', '.join(absent)}")
        return tuple(notes)

    def _scores_of(self, part: ExportRecord) -> Iterator[Score]:
        """The scores of a record that have a value."""
        for score in self._format.scores(part.fields, self._used):
            if score.value is not None and not (isinstance(score.value, str) and not score.value.strip()):
                yield score

    def _answer(self, answers: AnswerPaths, record: Record) -> dict[str, Any]:
        retrievals = self._mapping.retrievals
        contexts = _list(answers.contexts.of(record)) if answers.contexts else []
        key = retrievals.join.of(record) if retrievals else None
        if key is not None:
            contexts = [*contexts, *self._contexts.get(str(key), ())]
        names = ("model", "product", "line_of_business", "group")
        return _given(
            {
                "interaction_id": _text(self._mapping.interaction_id.of(record)),
                "asked_at": answers.asked_at.of(record),
                "question": answers.question.of(record),
                "answer": answers.answer.of(record),
                "contexts": [_context(context) for context in contexts],
                **{name: _text(path.of(record)) for name in names if (path := getattr(answers, name)) is not None},
                **{
                    name: _known(path.of(record))
                    for name in WRITER_FIELDS
                    if (path := getattr(answers, name)) is not None
                },
            }
        )

    def _thumb_of(self, score: Score) -> str | None:
        thumbs = self._mapping.thumbs
        return thumbs.scores.get(score.name, {}).get(value_text(score.value)) if thumbs else None

    def _thumb(self, score: Score, thumb: str) -> dict[str, Any]:
        thumbs, fixed, within = cast(ThumbScores, self._mapping.thumbs), self._format, score.source_record
        user, own = _text(_first(within, thumbs.user, fixed.user)), _first(within, fixed.id)
        comment = _first(within, thumbs.comment, fixed.comment)
        return _given(
            {
                "given_at": _first(within, thumbs.given_at, fixed.at),
                "thumb": thumb,
                "user": user if user is not None or own is None else f"score {own}",
                "comment": None if isinstance(comment, str) and not comment.strip() else comment,
            }
        )


def _first(record: Record, *expressions: Expression | None) -> Any:
    """The value of the first of `expressions` that is given: the mapping's, else the format's."""
    expression = next((one for one in expressions if one is not None), None)
    return None if expression is None else expression.evaluate(record)


def _known(value: Any) -> Any:
    """`value` without the missing scores of an object; None where none is left."""
    return (_given(value) or None) if isinstance(value, dict) else value


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` without missing ones, which the contract names then."""
    return {name: value for name, value in fields.items() if value is not None}


def _text(value: Any) -> Any:
    """A number as the text that it is as an id, an empty text as None; anything else stays as it is."""
    if isinstance(value, str):
        return value.strip() or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _context(context: Any) -> Any:
    """A context; one without an id is identified by its text, so that equal ones are equal."""
    fields = {"text": context} if isinstance(context, str) else context
    if not isinstance(fields, dict):
        return fields
    own = _text(fields.get("chunk_id"))
    digest = hashlib.sha256(str(fields.get("text")).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return {**fields, "chunk_id": own if own is not None else f"text-{digest}"}
