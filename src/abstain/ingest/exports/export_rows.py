"""Turn the records of an export into rows of the import format: survey all records first, then make the rows.

Notes:

* The survey finds what no single record shows: contexts that are in records of their own, scores that together form one
  review, and whether the mapping fits. Rows come after it, so an export that does not fit gives no row.
* A thumb or review has the time at which its scores were last changed. A score that is changed later is a new row of
  the same person, which outranks the earlier one; both are stored.
* A thumb without a user gets the score's id as its user: a changed score replaces it, and scores of other users do not.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, cast

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.message_text import Role, extract_text
from abstain.ingest.exports.expressions import Expression, TrackedExpression, from_json, from_literal
from abstain.ingest.exports.formats import FORMATS, AnyExpression, Score, detect_format, make_nested_format
from abstain.ingest.exports.mapping import AnswerPaths, ExportMapping, ReviewScores, ThumbScores, format_value
from abstain.ingest.exports.reviews import (
    ReviewField,
    ReviewKey,
    drop_ideal_answer,
    find_missing_criteria,
    make_review_row,
)
from abstain.ingest.parsing import JsonObject, ParsedRow, make_reason, parse_object

WRITER_FIELDS = ("writer_scores", "token_log_probs", "display", "propensity")
"""What the assistant knew about its own answer."""
_ROLES: dict[str, Role] = {"question": "user", "answer": "assistant"}
"""Fields that may be a message or its parts, or messages of which the last one of this role is meant."""
_LIST_FIELDS = ("contexts", "token_log_probs")
_ANSWER_FIELDS = tuple(name for name in AnswerPaths.model_fields if name != "where")
_MAX_QUOTED_CHARACTERS = 40
"""The longest value of a score that a note quotes: a longer one is text that a person wrote."""


class ExportRecord(NamedTuple):
    """One record of a file.

    Attributes:
        fields: Field name -> value.
        source: Name of the file.
        number: Number of the record, from 1; in a table, its line.
    """

    fields: JsonObject
    source: str
    number: int


class ExportRows:
    """The rows of one export: `scan` the records of each file, then `check`, then `iter_rows` of each file again.

    Args:
        mapping: The mapping file's content.
        name: The mapping file's name, for messages.
    """

    def __init__(self, mapping: ExportMapping, name: str) -> None:
        self._mapping, self._name = mapping, name
        self._tracked = {key: TrackedExpression(expression) for key, expression in mapping.get_expressions().items()}
        if mapping.scores:
            paths = {key.removeprefix("scores."): tracked for key, tracked in self._tracked.items()}
            self._format = make_nested_format(paths)
        else:
            self._format = FORMATS[mapping.format]
        used_fields = frozenset[str]().union(*(expression.fields for expression in mapping.get_expressions().values()))
        self._used_fields = used_fields - mapping.thumb_names - mapping.review_names
        self._contexts_by_key: dict[str, list[Any]] = {}
        self._loss_by_key: dict[str, str] = {}
        self._reviews_by_key: dict[str, tuple[ReviewKey, list[ReviewField]]] = {}
        self._n_records = self._n_answers = 0
        self._score_counts = Counter[str]()
        self._skip_counts: dict[str, Counter[str]] = {}

    def split_records(self, records: Iterable[ExportRecord], file_name: str) -> list[ExportRecord]:
        """Split the records of one file into their parts.

        Args:
            records: All records of the file.
            file_name: Name of the file in messages.

        Returns:
            The parts of all records, as records of their own.

        Raises:
            AbstainError: A record contradicts itself or is from another tool.
        """
        all_parts: list[ExportRecord] = []
        for record in records:
            where = f"{file_name} record {record.number}"
            try:
                parts = list(self._format.iter_records(record.fields))
            except ValueError as error:
                raise AbstainError(Code.WRONG_FORMAT, f"{where}: {error}: export it again") from None
            for part in parts:
                if not self._format.recognizes(part):
                    other_format = detect_format(record.fields)
                    remedy = (
                        f"write `format: {other_format}` in {self._name}"
                        if other_format
                        else "name an export of that tool"
                    )
                    names = ", ".join(sorted(record.fields)[:6])
                    raise AbstainError(
                        Code.WRONG_FORMAT, f"{where}: is not of {self._format.title} (its fields are {names}): {remedy}"
                    )
                all_parts.append(record._replace(fields=part))
        return all_parts

    # The survey

    def scan(self, parts: Iterable[ExportRecord]) -> None:
        """Survey the parts of one file that was read to its end."""
        for part in parts:
            self._n_records += 1
            if self._format.is_answer(part.fields):
                self._survey_answer(part.fields)
            for score in self._iter_scores(part):
                self._survey_score(score, part)

    def check(self) -> None:
        """Raise `AbstainError` if the mapping names a field that no record has."""
        for key, tracked in self._tracked.items():
            if problem := tracked.find_problem():
                raise AbstainError(Code.BAD_SETTING, f"{self._name}: {key}: {problem}")

    def require_rows(self, display_name: str) -> None:
        """Check that the export gives any row.

        Args:
            display_name: Name of the export in the message.

        Raises:
            AbstainError: The export gives no row at all.
        """
        if self._n_answers or any(self._score_counts[name] for name in self._mapping.score_names):
            return
        names = ", ".join(f"{name} ({count:,})" for name, count in self._score_counts.most_common(8)) or "none"
        raise AbstainError(
            Code.NO_ROWS,
            f"{display_name}: {self._name} maps nothing of its {self._n_records:,} records; "
            f"scores in it: {names}: name one "
            "in thumbs or reviews, or export again",
        )

    def _survey_answer(self, record: JsonObject) -> None:
        mapping, tracked = self._mapping, self._tracked
        if mapping.retrievals and tracked["retrievals.where"].evaluate(record):
            key = tracked["retrievals.join"].evaluate(record)
            contexts = tracked["retrievals.contexts"].evaluate(record, keep_nulls=True)
            if key is not None:
                self._contexts_by_key.setdefault(str(key), []).extend(_to_list(contexts))
                if loss := _explain_loss(mapping.retrievals.contexts, contexts, record):
                    self._loss_by_key[str(key)] = f"in the retrieval that is joined, {loss}"
        if mapping.answers and (mapping.answers.where is None or tracked["answers.where"].evaluate(record)):
            self._n_answers += 1
            tracked["interaction_id"].evaluate(record)
            self._track("answers", record, excluding="answers.where")

    def _survey_score(self, score: Score, part: ExportRecord) -> None:
        self._score_counts[score.name] += 1
        self._track("scores", score.source_record, excluding="scores.list")
        if score.name not in self._mapping.score_names:
            self._count_skipped("scores that are not mapped", score.name)
        elif score.skip_reason is not None:
            self._count_skipped(f"scores {score.skip_reason}, not taken", score.name)
        elif (interaction_id := _to_text(self._tracked["interaction_id"].evaluate(part.fields))) is None:
            self._count_skipped("scores without an interaction_id, not taken", score.name)
        elif score.name in self._mapping.thumb_names:
            self._track("thumbs", score.source_record)
            if self._map_thumb(score) is None:
                self._count_unmapped_value(score)
        else:
            self._track("reviews", score.source_record)
            self._survey_review(score, part, interaction_id)

    def _survey_review(self, score: Score, part: ExportRecord, interaction_id: Any) -> None:
        reviews = cast(ReviewScores, self._mapping.reviews)
        reviewer = _to_text(_evaluate_first(score.source_record, reviews.reviewer, self._format.reviewer))
        values: JsonObject | None = {"ideal_answer": score.value}
        if score.name != reviews.ideal_answer:
            values = cast("JsonObject | None", reviews.criteria[score.name].get(format_value(score.value)))
        if reviewer is None:
            self._count_skipped("scores without a reviewer, not taken", score.name)
        elif reviews.reviewers != "all" and reviewer not in reviews.reviewers:
            self._count_skipped("scores of people who are not among reviews.reviewers, not taken", score.name)
        elif values is None:
            self._count_unmapped_value(score)
        else:
            key = ReviewKey(interaction_id, reviewer, score.form)
            scored_at = _evaluate_first(score.source_record, reviews.reviewed_at, self._format.scored_at)
            _, parts = self._reviews_by_key.setdefault(json.dumps(key), (key, []))
            parts.append(ReviewField(scored_at, values, part.source, part.number))

    def _track(self, section: str, record: JsonObject, excluding: str = "") -> None:
        for key, tracked in self._tracked.items():
            if key.startswith(f"{section}.") and key != excluding:
                tracked.evaluate(record)

    def _count_skipped(self, reason: str, name: str) -> None:
        self._skip_counts.setdefault(reason, Counter())[name] += 1

    def _count_unmapped_value(self, score: Score) -> None:
        value = format_value(score.value)
        quoted = value if len(value) <= _MAX_QUOTED_CHARACTERS and "\n" not in value else "a longer text"
        self._count_skipped("values that are not mapped", f"{score.name} = {quoted}")

    # The rows

    def iter_rows(self, parts: Iterable[ExportRecord]) -> Iterator[ParsedRow]:
        """Make the answers and thumbs of one file, after the survey.

        Args:
            parts: The parts of the file's records.

        Yields:
            The rows.
        """
        for part in parts:
            answers, fields = self._mapping.answers, part.fields
            if answers and self._format.is_answer(fields) and (answers.where is None or answers.where.evaluate(fields)):
                yield self._make_answer_row(answers, part)
            for score in self._iter_scores(part):
                thumb = self._map_thumb(score)
                interaction_id = _to_text(self._mapping.interaction_id.evaluate(fields))
                if thumb is not None and score.skip_reason is None and interaction_id is not None:
                    row = {"interaction_id": interaction_id, **self._build_thumb(score, thumb)}
                    yield parse_object(row, part.source, part.number)

    def iter_reviews(self) -> Iterator[ParsedRow]:
        """Yield the reviews of all files. A review without all criteria is only counted, and comes once it has them.

        So is an ideal answer that makes the row invalid, which does not take the criteria with it.
        """
        for key, parts in self._reviews_by_key.values():
            if missing := find_missing_criteria(parts):
                self._count_skipped("reviews that are not complete yet, not taken", f"without {' and '.join(missing)}")
                continue
            row = make_review_row(key, parts)
            if row.reasons and not (criteria_row := make_review_row(key, drop_ideal_answer(parts))).reasons:
                name = str(cast(ReviewScores, self._mapping.reviews).ideal_answer)
                self._count_skipped("ideal answers that are no text or contradict each other, not taken", name)
                row = criteria_row
            yield row

    def make_notes(self) -> tuple[str, ...]:
        """Return notes, with counts, on what gave no row; call it after the last row."""
        notes = []
        where = self._tracked.get("answers.where")
        if where is not None and where.records and not self._n_answers:
            notes.append(f"{self._name}: answers.where selects none of {where.records:,} records")
        for reason, counts in sorted(self._skip_counts.items()):
            counted_names = ", ".join(f"{name} ({count:,})" for name, count in counts.most_common())
            notes.append(f"{self._name}: {reason}: {counted_names}")
        if absent := sorted(name for name in self._mapping.score_names if not self._score_counts[name]):
            notes.append(f"{self._name}: scores that the mapping names and no record has: {', '.join(absent)}")
        return tuple(notes)

    def _iter_scores(self, part: ExportRecord) -> Iterator[Score]:
        """Yield the scores of a record that have a value."""
        for score in self._format.iter_scores(part.fields, self._used_fields):
            if score.value is not None and not (isinstance(score.value, str) and not score.value.strip()):
                yield score

    def _make_answer_row(self, answers: AnswerPaths, part: ExportRecord) -> ParsedRow:
        """Make the row of an answer; it is rejected if the mapping makes nothing of what stands in the record."""
        record = part.fields
        values: JsonObject = {}
        losses: dict[str, str] = {}
        for name in _ANSWER_FIELDS:
            expression = getattr(answers, name)
            if expression is not None:
                values[name] = expression.evaluate(record, keep_nulls=name in _LIST_FIELDS)
                if loss := _explain_loss(expression, values[name], record):
                    losses[name] = loss
        for name, role in _ROLES.items():
            if isinstance(message := values.get(name), list | dict):
                values[name] = extract_text(message, role) or message
        contexts = _to_list(values.get("contexts"))
        if isinstance(text := values.get("contexts"), str) and _is_list(text):
            losses["contexts"] = "a list is written in a text: read it by from_json(...), or by literal(...)"
        key = self._mapping.retrievals.join.evaluate(record) if self._mapping.retrievals else None
        if (joined_contexts := self._contexts_by_key.get(str(key)) if key is not None else None) is not None:
            contexts = [*contexts, *joined_contexts]
            if loss := self._loss_by_key.get(str(key), "" if contexts else "the retrieval that is joined has none"):
                losses["contexts"] = loss
        if None in contexts:
            losses["contexts"] = "null is among them: each needs its text"
        values |= {name: _to_text(values.get(name)) for name in ("model", "product", "line_of_business", "group")}
        values |= {name: _drop_missing_scores(values.get(name)) for name in WRITER_FIELDS}
        values["interaction_id"] = _to_text(self._mapping.interaction_id.evaluate(record))
        values["contexts"] = list(map(_to_context, contexts))
        row = parse_object(_drop_missing(values), part.source, part.number)
        if not losses:
            return row
        reasons = [make_reason(name, loss) for name, loss in losses.items()]
        reasons += [reason for reason in row.reasons if reason.field.partition(".")[0] not in losses]
        return replace(row, interaction=None, reasons=tuple(reasons), dropped=())

    def _map_thumb(self, score: Score) -> str | None:
        thumbs = self._mapping.thumbs
        return thumbs.scores.get(score.name, {}).get(format_value(score.value)) if thumbs else None

    def _build_thumb(self, score: Score, thumb: str) -> JsonObject:
        thumbs, defaults, record = cast(ThumbScores, self._mapping.thumbs), self._format, score.source_record
        user, score_id = _evaluate_first(record, thumbs.user, defaults.user), _evaluate_first(record, defaults.id)
        user = _to_text(user)
        comment = _evaluate_first(record, thumbs.comment, defaults.comment)
        return _drop_missing(
            {
                "given_at": _evaluate_first(record, thumbs.given_at, defaults.scored_at),
                "thumb": thumb,
                "user": user if user is not None or score_id is None else f"score {score_id}",
                "comment": None if isinstance(comment, str) and not comment.strip() else comment,
            }
        )


def _evaluate_first(record: JsonObject, *expressions: AnyExpression | None) -> Any:
    """Return the value of the first expression that is set: the mapping's, else the format's."""
    expression = next((option for option in expressions if option is not None), None)
    return None if expression is None else expression.evaluate(record)


def _explain_loss(expression: Expression, value: Any, record: JsonObject) -> str | None:
    """Explain that a field of `record` is filled and `expression` made nothing of it; None if nothing is lost."""
    if value is not None and value != [] and not (isinstance(value, dict) and None in value.values()):
        return None
    field = expression.find_lost_field(record)
    if field is None:
        return None
    return f"{field} is filled, but {expression.text} gives nothing: correct the field or the expression"


def _drop_missing_scores(value: Any) -> Any:
    """Return `value`, if an object without its missing scores; None if no score remains."""
    return (_drop_missing(value) or None) if isinstance(value, dict) else value


def _drop_missing(fields: JsonObject) -> JsonObject:
    """Return `fields` without missing values, so that the contract reports the field as missing."""
    return {name: value for name, value in fields.items() if value is not None}


def _to_text(value: Any) -> Any:
    """Return a number as text, for use as an id, and a blank text as None; any other value is unchanged."""
    if isinstance(value, str):
        return value.strip() or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _to_list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _is_list(text: str) -> bool:
    return text.lstrip().startswith("[") and any(isinstance(read(text), list) for read in (from_json, from_literal))


def _to_context(context: Any) -> Any:
    """Return a context as an object. One without an id gets one from its text, so equal contexts have equal ids."""
    is_object = isinstance(context, dict)
    text = context if isinstance(context, str) else extract_text(context)
    if text is None:
        return context
    fields = context if is_object and isinstance(context.get("text"), str) else {"text": text}
    chunk_id = _to_text(context.get("chunk_id")) if is_object else None
    digest = hashlib.sha256(str(fields.get("text")).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return {**fields, "chunk_id": chunk_id if chunk_id is not None else f"text-{digest}"}
