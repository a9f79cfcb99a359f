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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.suggest import nearest
from abstain.ingest.exports.expressions import Expression, names_in
from abstain.ingest.exports.formats import FORMATS, Record, Score, tool_of
from abstain.ingest.exports.mapping import ExportMapping, value_text
from abstain.ingest.pipeline.parsing import ParsedRow, parse_object

VERDICTS = ("complete", "correct", "truthful")
_OLDEST = datetime.min.replace(tzinfo=UTC)
_SHOWN = 40
"""The longest value of a score that a note quotes, in characters: a longer one is a text that someone wrote."""


class ExportRecord(NamedTuple):
    """One record of a file, with its number from 1 (of a table, its line)."""

    fields: Record
    source: str
    number: int


class _Said(NamedTuple):
    """What one score says of a review."""

    at: Any
    says: Mapping[str, Any]
    source: str
    number: int


class _TrackedExpression:
    """An expression of the mapping: in how many records it was looked for, and whether it ever had a value."""

    def __init__(self, expression: Expression) -> None:
        self.expression, self.records, self.found = expression, 0, False
        self.unseen, self.names = set(expression.fields), Counter[str]()

    def of(self, record: Record) -> Any:
        value = self.expression.of(record)
        self.records += 1
        self.found = self.found or value not in (None, False)
        if not self.found and self.unseen:
            there = set(names_in(record))
            self.unseen -= there
            self.names.update(there)
        return value


class ExportRows:
    """The rows of one export. `survey` takes the records of each file, `check` ends it, `rows` takes them again."""

    def __init__(self, mapping: ExportMapping, name: str) -> None:
        self._mapping, self._name = mapping, name
        self._format = FORMATS[mapping.format]
        self._uses = {key: _TrackedExpression(expression) for key, expression in mapping.expressions().items()}
        self._columns = frozenset[str]().union(*(use.expression.fields for use in self._uses.values()))
        self._columns -= mapping.thumb_names | mapping.review_names
        self._contexts: dict[str, list[Any]] = {}
        self._reviews: dict[tuple[str, str, str], list[_Said]] = {}
        self._records = self._answers = 0
        self._scores = Counter[str]()
        self._left_out: dict[str, Counter[str]] = {}

    def parts(self, records: Iterable[ExportRecord], shown: str) -> list[ExportRecord]:
        """The parts of all `records` of the file `shown`. Raises `AbstainError` where one is of another tool."""
        found: list[ExportRecord] = []
        for record in records:
            try:
                parts = list(self._format.records(record.fields))
            except ValueError as error:
                raise AbstainError(
                    Code.WRONG_FORMAT, f"{shown} record {record.number}: {error}: export it again"
                ) from None
            for part in parts:
                if not self._format.recognizes(part):
                    other = tool_of(record.fields)
                    remedy = f"write `format: {other}` in {self._name}" if other else "name an export of that tool"
                    raise AbstainError(
                        Code.WRONG_FORMAT,
                        f"{shown} record {record.number}: is not of {self._format.title} (its fields are "
                        f"{', '.join(sorted(record.fields)[:6])}): {remedy}",
                    )
                found.append(record._replace(fields=part))
        return found

    def survey(self, parts: Iterable[ExportRecord]) -> None:
        """Take the parts of one file, which was read to its end."""
        for part in parts:
            self._records += 1
            retrievals, fields = self._mapping.retrievals, part.fields
            if retrievals and self._format.is_answer(fields) and self._uses["retrievals.where"].of(fields):
                key = str(self._uses["retrievals.join"].of(fields))
                self._contexts.setdefault(key, []).extend(_list(self._uses["retrievals.contexts"].of(fields)))
            if self._is_answer(part, survey=True):
                self._answers += 1
                for key, use in self._uses.items():
                    if key == "interaction_id" or (key.startswith("answers.") and key != "answers.where"):
                        use.of(fields)
            for score in self._format.scores(fields, self._columns):
                self._survey_score(score, part)

    def check(self) -> None:
        """Raise `AbstainError` where the mapping names what no record has, or the export has nothing that it maps."""
        for key, use in self._uses.items():
            if use.records and not use.found and use.unseen:
                missing = min(use.unseen)
                close = nearest(missing, use.names)
                known = ", ".join(name for name, _ in use.names.most_common(8))
                remedy = f"did you mean '{close}'?" if close else f"fields there: {known}"
                raise AbstainError(
                    Code.BAD_SETTING,
                    f"{self._name}: {key}: the field '{missing}' is in none of the {use.records:,} records that it is "
                    f"read from: {remedy}",
                )

    def require_rows(self, shown: str) -> None:
        """Raise `AbstainError` where the export `shown` gives no row at all."""
        mapped = self._mapping.thumb_names | self._mapping.review_names
        if self._answers or any(self._scores[name] for name in mapped):
            return
        names = ", ".join(f"{name} ({count:,})" for name, count in self._scores.most_common(8)) or "none"
        raise AbstainError(
            Code.NO_ROWS,
            f"{shown}: {self._name} maps nothing of its {self._records:,} records; scores in it: {names}: name one in "
            "thumbs or reviews, or export again",
        )

    def rows(self, parts: Iterable[ExportRecord]) -> Iterator[ParsedRow]:
        """The answers and thumbs of one file, after the survey."""
        for part in parts:
            if self._is_answer(part):
                yield parse_object(self._answer(part.fields), part.source, part.number)
            for score in self._format.scores(part.fields, self._columns):
                thumb = self._mapping.thumbs and self._mapping.thumbs.scores.get(score.name, {}).get(
                    value_text(score.value)
                )
                if thumb and score.left_out is None:
                    yield parse_object(self._thumb(score, thumb, part.fields), part.source, part.number)

    def reviews(self) -> Iterator[ParsedRow]:
        """The reviews of all files, once each; those that lack a verdict are counted, and come when they have it."""
        for (interaction_id, reviewer, _), parts in self._reviews.items():
            ordered = sorted(parts, key=lambda part: _moment(part.at))
            says: dict[str, Any] = {}
            for part in ordered:
                says |= part.says
            if missing := [verdict for verdict in VERDICTS if verdict not in says]:
                self._leave_out("reviews that are not complete yet, not taken", f"without {' and '.join(missing)}")
                continue
            last = ordered[-1]
            fields = {"interaction_id": interaction_id, "reviewer": reviewer, "reviewed_at": last.at, **says}
            row = parse_object(_given(fields), last.source, last.number)
            same_time = [part.says for part in ordered if _moment(part.at) == _moment(last.at)]
            contradictory = {
                key for one in same_time for other in same_time for key in one if other.get(key, one[key]) != one[key]
            }
            if contradictory:
                reason = f"review: two scores of the same time contradict each other about {sorted(contradictory)[0]}"
                row = ParsedRow(row.source, row.line, row.raw, (*row.reasons, reason))
            yield row

    def notes(self) -> tuple[str, ...]:
        """What gave no row, with counts, after the last row."""
        mapped = self._mapping.thumb_names | self._mapping.review_names
        if absent := sorted(name for name in mapped if not self._scores[name]):
            self._left_out["scores that the mapping names and no record has"] = Counter(dict.fromkeys(absent, 0))
        notes = []
        where = self._uses.get("answers.where")
        if where is not None and where.records and not self._answers:
            notes.append(f"{self._name}: answers.where selects none of {where.records:,} records")
        for what, counts in sorted(self._left_out.items()):
            each = ", ".join(f"{name} ({count:,})" if count else name for name, count in counts.most_common())
            notes.append(f"{self._name}: {what}: {each}")
        return tuple(notes)

    def _is_answer(self, part: ExportRecord, *, survey: bool = False) -> bool:
        answers = self._mapping.answers
        if answers is None or not self._format.is_answer(part.fields):
            return False
        if answers.where is None:
            return True
        where = self._uses["answers.where"] if survey else answers.where
        return bool(where.of(part.fields))

    def _survey_score(self, score: Score, part: ExportRecord) -> None:
        if score.value is None:
            return
        mapping = self._mapping
        self._scores[score.name] += 1
        is_thumb, is_review = score.name in mapping.thumb_names, score.name in mapping.review_names
        if not is_thumb and not is_review:
            self._leave_out("scores that are not mapped", score.name)
            return
        if score.left_out is not None:
            self._leave_out(f"scores {score.left_out}, not taken", score.name)
            return
        interaction_id = self._uses["interaction_id"].of(part.fields)
        section = "thumbs" if is_thumb else "reviews"
        for key, use in self._uses.items():
            if key.startswith(f"{section}."):
                use.of(score.within)
        if is_review:
            self._survey_verdict(score, part, _text(interaction_id))
        elif mapping.thumbs and value_text(score.value) not in mapping.thumbs.scores[score.name]:
            self._leave_out_value(score)

    def _survey_verdict(self, score: Score, part: ExportRecord, interaction_id: Any) -> None:
        reviews = self._mapping.reviews
        assert reviews is not None
        reviewer = _text(_first(score.within, reviews.reviewer, self._format.reviewer))
        if reviewer is None:
            self._leave_out("scores without a reviewer, not taken", score.name)
            return
        if reviews.reviewers != "all" and reviewer not in reviews.reviewers:
            self._leave_out("scores of people who are not among reviews.reviewers, not taken", score.name)
            return
        says: Mapping[str, Any] | None = {"ideal_answer": score.value}
        if score.name != reviews.ideal_answer:
            says = cast("Mapping[str, Any] | None", reviews.verdicts[score.name].get(value_text(score.value)))
        if says is None:
            self._leave_out_value(score)
            return
        at = _first(score.within, reviews.reviewed_at, self._format.at)
        key = (interaction_id, reviewer, str(score.form))
        self._reviews.setdefault(key, []).append(_Said(at, says, part.source, part.number))

    def _leave_out(self, what: str, name: str) -> None:
        self._left_out.setdefault(what, Counter())[name] += 1

    def _leave_out_value(self, score: Score) -> None:
        value = value_text(score.value)
        quoted = f"= {value}" if len(value) <= _SHOWN and "\n" not in value else "= a longer text"
        self._leave_out("values that are not mapped", f"{score.name} {quoted}")

    def _answer(self, record: Record) -> dict[str, Any]:
        answers, retrievals = self._mapping.answers, self._mapping.retrievals
        assert answers is not None
        names = ("model", "product", "line_of_business", "group")
        contexts = _list(answers.contexts.of(record)) if answers.contexts else []
        if retrievals:
            contexts = [*contexts, *self._contexts.get(str(retrievals.join.of(record)), ())]
        return _given(
            {
                "interaction_id": _text(self._mapping.interaction_id.of(record)),
                "asked_at": answers.asked_at.of(record),
                "question": answers.question.of(record),
                "answer": answers.answer.of(record),
                "contexts": [_context(context) for context in contexts],
                **{name: _text(path.of(record)) for name in names if (path := getattr(answers, name)) is not None},
            }
        )

    def _thumb(self, score: Score, thumb: str, record: Record) -> dict[str, Any]:
        thumbs, fixed = self._mapping.thumbs, self._format
        assert thumbs is not None
        user = _text(_first(score.within, thumbs.user, fixed.user))
        own = _first(score.within, fixed.id)
        comment = _first(score.within, thumbs.comment, fixed.comment)
        return _given(
            {
                "interaction_id": _text(self._mapping.interaction_id.of(record)),
                "given_at": _first(score.within, thumbs.given_at, fixed.at),
                "thumb": thumb,
                "user": user if user is not None or own is None else f"score {own}",
                "comment": None if isinstance(comment, str) and not comment.strip() else comment,
            }
        )


def _first(record: Record, *expressions: Expression | None) -> Any:
    """The value of the first of `expressions` that is given: the mapping's, else the format's."""
    expression = next((one for one in expressions if one is not None), None)
    return None if expression is None else expression.of(record)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` without missing ones, which the contract names then."""
    return {name: value for name, value in fields.items() if value is not None}


def _text(value: Any) -> Any:
    """A number as the text that it is as an id; anything else stays as it is."""
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
    return _given({**fields, "chunk_id": own if own is not None else f"text-{digest}"})


def _moment(at: Any) -> datetime:
    """`at` to compare; what is no time with a zone, which the contract refuses, comes first."""
    try:
        moment = datetime.fromisoformat(at)
    except (TypeError, ValueError):
        return _OLDEST
    return moment if moment.tzinfo else _OLDEST
