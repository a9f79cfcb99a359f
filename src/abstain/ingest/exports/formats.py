"""What the schemas of the tools fix: what a record is, its scores, and where a score's time and person stand.

langfuse       scores, observations and traces: of the blob storage export, the API or the UI
phoenix        span annotations, and spans with OpenInference attributes: of the REST API
label_studio   tasks with their annotations: the JSON export
argilla        records with their responses: `to_json`, or the columns of `to_datasets`
open_webui     feedback with a snapshot of its chat: the feedback export
table          any table: each column without another meaning is a score
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from abstain.ingest.exports.expressions import Expression

Record = dict[str, Any]


class Score(NamedTuple):
    """What someone said of an answer: `within` is the record that has its time and person, `skip_reason` why it does not
    count. Scores that were given in one form share `form`."""

    name: str
    value: Any
    source_record: Record
    skip_reason: str | None = None
    form: Any = None


@dataclass(frozen=True)
class ExportFormat:
    """One tool's exports. A record has all fields of one of `signatures`, by which files of other tools are told apart.

    `records` gives the parts of a record, and raises `ValueError` for one that contradicts itself; `scores` those of a
    part, given the fields that the mapping uses otherwise; the expressions are read from `Score.within`.
    """

    title: str
    signatures: tuple[frozenset[str], ...]
    records: Callable[[Record], Iterator[Record]]
    scores: Callable[[Record, Collection[str]], Iterator[Score]]
    is_answer: Callable[[Record], bool] = lambda record: True
    id: Expression | None = None
    at: Expression | None = None
    user: Expression | None = None
    reviewer: Expression | None = None
    comment: Expression | None = None

    def recognizes(self, record: Record) -> bool:
        return any(mark <= record.keys() for mark in self.signatures)


def _single_record(record: Record) -> Iterator[Record]:
    yield record


def _langfuse_records(record: Record) -> Iterator[Record]:
    """The parts of a trace, in the blob export's spelling (`trace_id`), whichever the file has (`traceId`)."""
    spelled = {_snake_case(key): value for key, value in record.items()}
    for part in ("observations", "scores"):
        inner = spelled.get(part)
        if isinstance(inner, list) and all(isinstance(one, dict) for one in inner):
            del spelled[part]
            for one in inner:
                yield from _langfuse_records(one)
    trace = spelled.get("trace")
    if isinstance(trace, dict):
        yield from _langfuse_records(trace)
    else:
        yield spelled


def _langfuse_is_score(record: Mapping[str, Any]) -> bool:
    return "value" in record and "name" in record


def _langfuse_scores(record: Record, used: Collection[str]) -> Iterator[Score]:
    if _langfuse_is_score(record):
        in_words = record.get("data_type") in ("CATEGORICAL", "TEXT") and record.get("string_value") is not None
        machine = "given by a machine" if record.get("source") == "EVAL" else None
        yield Score(str(record["name"]), record["string_value" if in_words else "value"], record, machine)


def _phoenix_records(record: Record) -> Iterator[Record]:
    """With attributes nested (`retrieval.documents.0...` is a list), as OpenInference defines them."""
    yield _nested(record)


def _phoenix_scores(record: Record, used: Collection[str]) -> Iterator[Score]:
    if "annotator_kind" in record:
        result = _object(record.get("result"))
        value = result.get("label") if result.get("label") is not None else result.get("score")
        machine = "given by a machine" if record["annotator_kind"] != "HUMAN" else None
        yield Score(str(record["name"]), value, record, machine)


def _label_studio_scores(record: Record, used: Collection[str]) -> Iterator[Score]:
    for annotation in _objects(record["annotations"]):
        cancelled = "cancelled by the annotator" if annotation.get("was_cancelled") else None
        for result in _objects(annotation.get("result")):
            kind = str(result.get("type"))
            value = _object(result.get("value")).get("text" if kind == "textarea" else kind)
            if isinstance(value, list):
                value = value[0] if len(value) == 1 else "\n".join(map(str, value)) if value else None
            yield Score(str(result.get("from_name")), value, annotation, cancelled, annotation.get("id"))


def _argilla_records(record: Record) -> Iterator[Record]:
    """With the columns `QUESTION.responses`, `.users` and `.status` as a list of responses a question."""
    nested = dict(_object(record.get("responses")))
    others = {key: value for key, value in record.items() if ".responses" not in key}
    for key in record.keys() - others.keys():
        if key.endswith(".responses"):
            values = _column(record, key)
            users, status = (_column(record, f"{key}.{part}") or [None] * len(values) for part in ("users", "status"))
            if not len(values) == len(users) == len(status):
                raise ValueError(f"{key}, its users and its status are not of one length")
            responses = [
                {"value": value, "user_id": user, "status": state}
                for value, user, state in zip(values, users, status, strict=True)
            ]
            nested[key.removesuffix(".responses")] = responses
    yield others | {"responses": dict(sorted(nested.items()))}


def _argilla_scores(record: Record, used: Collection[str]) -> Iterator[Score]:
    for question, responses in record["responses"].items():
        for response in _objects(responses):
            status = response.get("status")
            unfinished = f"of the status {status}" if status not in (None, "submitted") else None
            within = record | {"user_id": response.get("user_id")}
            yield Score(question, response.get("value"), within, unfinished, response.get("user_id"))


def _open_webui_records(record: Record) -> Iterator[Record]:
    """With the rated `message` of the snapshot and the `question` before it, which are found by their ids alone."""
    snapshot = _object(record.get("snapshot"))
    chat = _object(snapshot.get("chat"))
    history = next(
        (_object(one["history"]) for one in (_object(chat.get("chat")), chat, snapshot) if "history" in one), {}
    )
    found = history.get("messages")
    messages = {str(one.get("id")): one for one in _objects(list(found.values()) if isinstance(found, dict) else found)}
    message = messages.get(str(_object(record.get("meta")).get("message_id")))
    question = messages.get(str(message.get("parentId"))) if message else None
    yield record | {"message": message, "question": question}


def _open_webui_scores(record: Record, used: Collection[str]) -> Iterator[Score]:
    given = _object(record.get("data"))
    details = _object(given.get("details") or record.get("details"))
    form = record.get("id")
    yield Score("rating", given.get("rating"), record, form=form)
    yield Score("details.rating", details.get("rating"), record, form=form)
    yield Score("reason", given.get("reason"), record, form=form)


def _table_scores(record: Record, used: Collection[str]) -> Iterator[Score]:
    for column, cell in record.items():
        if column not in used:
            yield Score(column, cell, record)


FORMATS: dict[str, ExportFormat] = {
    "langfuse": ExportFormat(
        "Langfuse",
        (
            frozenset({"name", "value", "trace_id"}),
            frozenset({"type", "start_time", "trace_id"}),
            frozenset({"id", "timestamp", "session_id"}),
        ),
        _langfuse_records,
        _langfuse_scores,
        is_answer=lambda record: not _langfuse_is_score(record),
        id=Expression("id"),
        at=Expression("utc(updated_at || timestamp)"),
        reviewer=Expression("author_user_id"),
        comment=Expression("comment"),
    ),
    "phoenix": ExportFormat(
        "Phoenix",
        (frozenset({"span_id", "name", "annotator_kind"}), frozenset({"context", "span_kind"})),
        _phoenix_records,
        _phoenix_scores,
        is_answer=lambda record: "context" in record,
        id=Expression("id"),
        at=Expression("updated_at || created_at"),
        reviewer=Expression("user_id"),
        comment=Expression("result.explanation"),
    ),
    "label_studio": ExportFormat(
        "Label Studio",
        (frozenset({"data", "annotations"}),),
        _single_record,
        _label_studio_scores,
        id=Expression("id"),
        at=Expression("updated_at || created_at"),
        reviewer=Expression("completed_by.email || completed_by.id || completed_by"),
    ),
    "argilla": ExportFormat(
        "Argilla",
        (frozenset({"responses", "fields"}), frozenset({"responses", "_server_id"})),
        _argilla_records,
        _argilla_scores,
        user=Expression("user_id"),
        reviewer=Expression("user_id"),
    ),
    "open_webui": ExportFormat(
        "Open WebUI",
        (frozenset({"user_id", "data", "meta", "updated_at"}),),
        _open_webui_records,
        _open_webui_scores,
        id=Expression("id"),
        at=Expression("utc(updated_at)"),
        user=Expression("user_id"),
        reviewer=Expression("user_id"),
        comment=Expression("data.comment"),
    ),
    "table": ExportFormat("table", (frozenset(),), _single_record, _table_scores),
}


def detect_format(record: Record) -> str | None:
    """The format whose tool writes records like this one; None where none of them does."""
    for name, known in FORMATS.items():
        if name != "table" and any(known.recognizes(part) for part in known.records(record)):
            return name
    return None


def _column(record: Record, key: str) -> list[Any]:
    """The list in `key`, empty where there is none. Raises `ValueError` for another value."""
    value = record.get(key)
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{key} is no list")
    return value or []


def _object(value: Any) -> Record:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Record]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def _nested(record: Mapping[str, Any]) -> Any:
    """`{"a.0.b": 1}` as `{"a": [{"b": 1}]}`; a key that contradicts another stays as it is."""
    tree: Record = {}
    for key, value in record.items():
        inner = _nested(value) if isinstance(value, dict) else value
        *path, last = key.split(".")
        at: Any = tree
        for step in path:
            at = at.setdefault(step, {}) if isinstance(at, dict) else None
        if isinstance(at, dict) and isinstance(at.get(last), dict) and isinstance(inner, dict):
            at[last] |= inner
        elif isinstance(at, dict) and last not in at:
            at[last] = inner
        else:
            tree[key] = inner
    return _with_lists(tree)


def _with_lists(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    inner = {key: _with_lists(value) for key, value in tree.items()}
    if inner and all(key.isdecimal() for key in inner):
        return [inner[key] for key in sorted(inner, key=int)]
    return inner
