"""What the tools' schemas define: records, their scores, and the fields that hold a score's time and person.

langfuse       scores, observations and traces: from the blob storage export, the API or the UI
phoenix        annotations, and spans with OpenInference attributes: from the REST API or the UI
label_studio   tasks with their annotations: the JSON export
argilla        records with their responses: `to_json`, the columns of `to_datasets`, and both of Argilla 1.x
open_webui     feedback with a snapshot of its chat: the feedback export
mlflow         traces with their assessments: `to_json`, or the table of `search_traces`
table          any table: each column without another meaning is a score
nested         any records that hold a list of scores: the mapping says where
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from abstain.ingest.exports.expressions import Expression, TrackedExpression, from_json
from abstain.ingest.parsing import JsonObject

AnyExpression = Expression | TrackedExpression
"""An expression that a format defines, or one of the mapping."""


class Score(NamedTuple):
    """A person's or a machine's score of an answer.

    Attributes:
        name: Name of the score.
        value: Its value.
        source_record: The record that has its time and person.
        skip_reason: Why it does not count; None if it counts.
        form: Equal for scores that were given in one form.
    """

    name: str
    value: Any
    source_record: JsonObject
    skip_reason: str | None = None
    form: Any = None


@dataclass(frozen=True)
class ExportFormat:
    """The exports of one tool.

    Attributes:
        title: The tool's name in messages.
        signatures: A record of this tool has all fields of one of these sets; this distinguishes files of other tools.
        iter_records: Yields the parts of a record; raises `ValueError` if the record contradicts itself.
        iter_scores: Yields the scores of a part, given the fields that the mapping uses otherwise.
        is_answer: Whether a part can be an answered question.
        id: Id of a score. This expression and the following ones are evaluated on `Score.source_record`.
        scored_at: Time of a score.
        user: User who gave a thumb.
        reviewer: Reviewer who gave a score.
        comment: Comment on a thumb.
    """

    title: str
    signatures: tuple[frozenset[str], ...]
    iter_records: Callable[[JsonObject], Iterator[JsonObject]]
    iter_scores: Callable[[JsonObject, Collection[str]], Iterator[Score]]
    is_answer: Callable[[JsonObject], bool] = lambda record: True
    id: AnyExpression | None = None
    scored_at: AnyExpression | None = None
    user: AnyExpression | None = None
    reviewer: AnyExpression | None = None
    comment: AnyExpression | None = None

    def recognizes(self, record: JsonObject) -> bool:
        """Whether `record` has all fields of one of the signatures."""
        return any(signature <= record.keys() for signature in self.signatures)


def _iter_single_record(record: JsonObject) -> Iterator[JsonObject]:
    yield record


def _iter_langfuse_records(record: JsonObject) -> Iterator[JsonObject]:
    """Yield the parts of a trace, with keys as in the blob export (`trace_id`), even if the file has `traceId`.

    A score of the API v3 has its ids in a `subject` {kind, id, traceId}.
    """
    fields = {_to_snake_case(key): value for key, value in record.items()}
    if isinstance(subject := fields.get("subject"), dict):
        fields = {"trace_id": subject.get("traceId"), f"{subject.get('kind')}_id": subject.get("id"), **fields}
    for part in ("observations", "scores"):
        items = fields.get(part)
        if isinstance(items, list) and all(isinstance(item, dict) for item in items):
            del fields[part]
            for item in items:
                yield from _iter_langfuse_records(item)
    trace = fields.get("trace")
    if isinstance(trace, dict):
        yield from _iter_langfuse_records(trace)
    else:
        yield fields


def _is_langfuse_score(record: JsonObject) -> bool:
    return "value" in record and "name" in record


def _iter_langfuse_scores(record: JsonObject, used: Collection[str]) -> Iterator[Score]:
    if _is_langfuse_score(record):
        is_text = "string_value" in record and record.get("data_type") not in (None, "NUMERIC", "BOOLEAN")
        value = record["string_value" if is_text else "value"]
        skip_reason = "given by a machine" if record.get("source") == "EVAL" else None
        yield Score(str(record["name"]), int(value) if isinstance(value, bool) else value, record, skip_reason)


_EMPTY_ANNOTATION: JsonObject = dict.fromkeys(
    ("name", "annotator_kind", "label", "score", "explanation", "identifier", "user_id")
)
"""The fields of an annotation of Phoenix: among attributes, only those with a value are there."""


def _iter_phoenix_records(record: JsonObject) -> Iterator[JsonObject]:
    """Yield the record with attributes nested as in OpenInference: `retrieval.documents.0...` is a list.

    Then yield the annotations among its attributes, of the span or its trace, as the API gives them. They have no time,
    so they get the end of the span.
    """
    span = _nest_keys(record)
    yield span
    attributes, context = _to_object(span.get("attributes")), _to_object(span.get("context"))
    target = {**context, "context": context, "updated_at": span.get("end_time")}
    for annotated in (attributes, _to_object(attributes.get("trace"))):
        for item in _to_objects(annotated.get("annotations")):
            annotation = _EMPTY_ANNOTATION | _to_object(_nest_keys(item).get("annotation"))
            yield {**target, **annotation, "result": annotation}


def _iter_phoenix_scores(record: JsonObject, used: Collection[str]) -> Iterator[Score]:
    if "annotator_kind" in record:
        result = _to_object(record.get("result"))
        value = result.get("label") if result.get("label") is not None else result.get("score")
        skip_reason = "given by a machine" if record["annotator_kind"] != "HUMAN" else None
        yield Score(str(record["name"]), value, record, skip_reason)


def _iter_label_studio_scores(record: JsonObject, used: Collection[str]) -> Iterator[Score]:
    for annotation in _to_objects(record["annotations"]):
        skip_reason = "cancelled by the annotator" if annotation.get("was_cancelled") else None
        if _is_rejected(annotation):
            skip_reason = "rejected by a reviewer of the annotation"
        for result in _to_objects(annotation.get("result")):
            kind = str(result.get("type"))
            value = _to_object(result.get("value")).get("text" if kind == "textarea" else kind)
            if isinstance(value, list):
                value = value[0] if len(value) == 1 else "\n".join(map(str, value)) if value else None
            yield Score(str(result.get("from_name")), value, annotation, skip_reason, annotation.get("id"))


def _is_rejected(annotation: JsonObject) -> bool:
    """Whether a reviewer rejected a Label Studio annotation, and nobody has changed it since."""
    if annotation.get("last_action"):
        return bool(annotation["last_action"] == "rejected")
    reviews = _to_objects(annotation.get("reviews"))
    last_review = max(reviews, key=lambda review: str(review.get("created_at")), default={})
    return last_review.get("accepted") is False


_ARGILLA_RESPONSE_FIELDS = frozenset({"value", "user_id", "status"})
"""The fields of a response in the column of its question."""


def _iter_argilla_records(record: JsonObject) -> Iterator[JsonObject]:
    """Yield the record with a list of responses per question.

    In the file they are in such lists; or, of Argilla 1.x, in one list with the `values` of all questions, or in a
    column per question; or in the columns `QUESTION.responses`, `.users` and `.status`.
    """
    responses_by_question = dict(_to_object(record.get("responses")))
    for response in _to_objects(record.get("responses")):
        for question, answer in _to_object(response.get("values")).items():
            value = _to_object(answer).get("value")
            responses_by_question.setdefault(question, []).append({**response, "value": value})
    for key, column in record.items():
        if key.endswith(".responses"):
            columns = {"value": column, "user_id": record.get(f"{key}.users"), "status": record.get(f"{key}.status")}
            responses_by_question[key.removesuffix(".responses")] = _join_columns(key, columns)
        elif isinstance(column, dict) and column.keys() >= _ARGILLA_RESPONSE_FIELDS:
            responses_by_question[key] = _join_columns(key, column)
        elif any(response.keys() >= _ARGILLA_RESPONSE_FIELDS for response in _to_objects(column)):
            responses_by_question[key] = column
    other_fields = {key: value for key, value in record.items() if ".responses" not in key}
    other_fields["metadata"] = _decode(record.get("metadata"))
    yield other_fields | {"responses": dict(sorted(responses_by_question.items()))}


def _join_columns(question: str, columns: JsonObject) -> list[JsonObject]:
    """Return the responses of which each column has one field. Raises `ValueError` if they differ in number."""
    values = columns.get("value")
    n_responses = len(values) if isinstance(values, list) else 0
    lists = {name: columns.get(name) or [None] * n_responses for name in sorted(_ARGILLA_RESPONSE_FIELDS)}
    if not all(isinstance(items, list) and len(items) == n_responses for items in lists.values()):
        raise ValueError(f"{question}, its users and its status are no lists of one length")
    return [dict(zip(lists, items, strict=True)) for items in zip(*lists.values(), strict=True)]


def _iter_argilla_scores(record: JsonObject, used: Collection[str]) -> Iterator[Score]:
    for question, responses in record["responses"].items():
        for response in _to_objects(responses):
            status = response.get("status")
            skip_reason = f"of the status {status}" if status not in (None, "submitted") else None
            yield Score(question, response.get("value"), record | response, skip_reason, response.get("user_id"))


def _iter_open_webui_records(record: JsonObject) -> Iterator[JsonObject]:
    """Yield the record with the rated `message` of the snapshot and the `question` before it, found by their ids."""
    snapshot = _to_object(record.get("snapshot"))
    chat = _to_object(snapshot.get("chat"))
    history = next(
        (
            _to_object(container["history"])
            for container in (_to_object(chat.get("chat")), chat, snapshot)
            if "history" in container
        ),
        {},
    )
    history_messages = history.get("messages")
    messages = {
        str(item.get("id")): item
        for item in _to_objects(
            list(history_messages.values()) if isinstance(history_messages, dict) else history_messages
        )
    }
    message = messages.get(str(_to_object(record.get("meta")).get("message_id")))
    question = messages.get(str(message.get("parentId"))) if message else None
    yield record | {"message": message, "question": question}


def _iter_open_webui_scores(record: JsonObject, used: Collection[str]) -> Iterator[Score]:
    data = _to_object(record.get("data"))
    details = _to_object(data.get("details") or record.get("details"))
    form = record.get("id")
    yield Score("rating", data.get("rating"), record, form=form)
    yield Score("details.rating", details.get("rating"), record, form=form)
    yield Score("reason", data.get("reason"), record, form=form)


def _iter_mlflow_records(record: JsonObject) -> Iterator[JsonObject]:
    """Yield the info of the trace with its `spans`, and with `request` and `response`: the root span's in and output.

    A row of `search_traces` has the trace as JSON in its column `trace`.
    """
    trace = _to_object(from_json(record["trace"])) if "trace" in record else record
    spans = [
        {**span, "attributes": {key: _decode(value) for key, value in _to_object(span.get("attributes")).items()}}
        for span in _to_objects(_to_object(trace.get("data")).get("spans"))
    ]
    root: JsonObject = next((span["attributes"] for span in spans if not span.get("parent_span_id")), {})
    contents = {"request": root.get("mlflow.spanInputs"), "response": root.get("mlflow.spanOutputs"), "spans": spans}
    yield _to_object(trace.get("info")) | contents


def _iter_mlflow_scores(record: JsonObject, used: Collection[str]) -> Iterator[Score]:
    for assessment in _to_objects(record.get("assessments")):
        content = _to_object(assessment.get("feedback") or assessment.get("expectation"))
        value = content.get("value", _decode(_to_object(content.get("serialized_value")).get("value")))
        source = _to_object(assessment.get("source"))
        skip_reason = "given by a machine" if source.get("source_type") != "HUMAN" else None
        if assessment.get("valid") is False:
            skip_reason = "replaced by a later one"
        yield Score(str(assessment.get("assessment_name")), value, assessment, skip_reason)


def _iter_table_scores(record: JsonObject, used: Collection[str]) -> Iterator[Score]:
    for column, cell in record.items():
        if column not in used:
            yield Score(column, cell, record)


FORMATS: dict[str, ExportFormat] = {
    "langfuse": ExportFormat(
        "Langfuse",
        (
            frozenset({"name", "value", "trace_id"}),
            frozenset({"name", "value", "data_type", "source"}),
            frozenset({"type", "start_time", "trace_id"}),
            frozenset({"id", "timestamp", "session_id"}),
        ),
        _iter_langfuse_records,
        _iter_langfuse_scores,
        is_answer=lambda record: not _is_langfuse_score(record),
        id=Expression("id"),
        scored_at=Expression("utc(updated_at || timestamp)"),
        reviewer=Expression("author_user_id"),
        comment=Expression("comment"),
    ),
    "phoenix": ExportFormat(
        "Phoenix",
        (frozenset({"name", "annotator_kind"}), frozenset({"context", "span_kind"})),
        _iter_phoenix_records,
        _iter_phoenix_scores,
        is_answer=lambda record: "annotator_kind" not in record,
        id=Expression("id"),
        scored_at=Expression("updated_at || created_at"),
        reviewer=Expression("user_id"),
        comment=Expression("result.explanation"),
    ),
    "label_studio": ExportFormat(
        "Label Studio",
        (frozenset({"data", "annotations"}),),
        _iter_single_record,
        _iter_label_studio_scores,
        id=Expression("id"),
        scored_at=Expression("updated_at || created_at"),
        reviewer=Expression("completed_by.email || completed_by.id || completed_by"),
    ),
    "argilla": ExportFormat(
        "Argilla",
        (
            frozenset({"responses", "fields"}),
            frozenset({"responses", "_server_id"}),
            frozenset({"responses", "external_id"}),
        ),
        _iter_argilla_records,
        _iter_argilla_scores,
        user=Expression("user_id"),
        reviewer=Expression("user_id"),
    ),
    "open_webui": ExportFormat(
        "Open WebUI",
        (frozenset({"user_id", "data", "meta", "updated_at"}),),
        _iter_open_webui_records,
        _iter_open_webui_scores,
        id=Expression("id"),
        scored_at=Expression("utc(updated_at)"),
        user=Expression("user_id"),
        reviewer=Expression("user_id"),
        comment=Expression("data.comment"),
    ),
    "mlflow": ExportFormat(
        "MLflow",
        (frozenset({"trace_id", "request_time"}),),
        _iter_mlflow_records,
        _iter_mlflow_scores,
        id=Expression("assessment_id"),
        scored_at=Expression("last_update_time || create_time"),
        user=Expression("source.source_id"),
        reviewer=Expression("source.source_id"),
        comment=Expression("rationale"),
    ),
    "table": ExportFormat("table", (frozenset(),), _iter_single_record, _iter_table_scores),
}


def make_nested_format(paths: Mapping[str, TrackedExpression]) -> ExportFormat:
    """Make the format `nested` for the records of any tool that hold a list of their scores.

    Args:
        paths: The keys of `mapping.NestedScores` that are set. `list` is evaluated on a record, the others on a score,
            which has the record as its field `record`.

    Returns:
        The format.
    """

    def iter_scores(record: JsonObject, used: Collection[str]) -> Iterator[Score]:
        for item in _to_objects(paths["list"].evaluate(record)):
            score = item | {"record": record}
            if (name := paths["name"].evaluate(score)) is not None:
                is_skipped = "where" in paths and not paths["where"].evaluate(score)
                skip_reason = "left out by scores.where" if is_skipped else None
                yield Score(str(name), paths["value"].evaluate(score), score, skip_reason)

    user = paths.get("user")
    return ExportFormat(
        "nested",
        (frozenset(),),
        _iter_single_record,
        iter_scores,
        id=paths.get("id"),
        scored_at=paths.get("time"),
        user=user,
        reviewer=user,
        comment=paths.get("comment"),
    )


def detect_format(record: JsonObject) -> str | None:
    """Detect the tool that wrote a record.

    Args:
        record: The record.

    Returns:
        The name of its format; None if no tool writes such records.
    """
    for name, export_format in FORMATS.items():
        with suppress(ValueError):  # of a record that contradicts itself as one of that tool
            if name != "table" and any(map(export_format.recognizes, export_format.iter_records(record))):
                return name
    return None


def _to_object(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _to_objects(value: Any) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _decode(value: Any) -> Any:
    """Return the value of a JSON text; any other value is unchanged."""
    decoded = from_json(value)
    return value if decoded is None else decoded


def _to_snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def _nest_keys(record: JsonObject) -> Any:
    """Return `{"a.0.b": 1}` as `{"a": [{"b": 1}]}`; a key that contradicts another one is unchanged."""
    tree: JsonObject = {}
    for key, value in record.items():
        inner = _nest_keys(value) if isinstance(value, dict) else value
        *path, last = key.split(".")
        node: Any = tree
        for step in path:
            node = node.setdefault(step, {}) if isinstance(node, dict) else None
        if isinstance(node, dict) and isinstance(node.get(last), dict) and isinstance(inner, dict):
            node[last] |= inner
        elif isinstance(node, dict) and last not in node:
            node[last] = inner
        else:
            tree[key] = inner
    return _convert_lists(tree)


def _convert_lists(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    inner = {key: _convert_lists(value) for key, value in tree.items()}
    if inner and all(key.isdecimal() for key in inner):
        return [inner[key] for key in sorted(inner, key=int)]
    return inner
