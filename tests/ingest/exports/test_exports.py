import json
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Review, Thumb
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import DataStore
from abstain.ingest.exports.expressions import Expression, to_utc
from abstain.ingest.exports.mapping import format_value, load_mapping
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.report import IngestReport
from abstain.ingest.sources import Source, SourceReader
from abstain.ingest.sources.config import load_sources
from abstain.ingest.sources.export import ExportSource, make_explicit_export
from tests.checkout import ROOT
from tests.factories import NOW, PARAMS, accept_all, write_lines

PAGES = ROOT / "docs" / "howto" / "exports"
FIXTURES = Path(__file__).parent / "fixtures"
EXPECTED = Path(__file__).parent / "expected"
SCORED_AT = "2026-10-05T10:00:00Z"

ANSWER = """
answers:
  asked_at: asked_at
  question: question
  answer: answer
  model: model
"""
FEEDBACK = """
thumbs:
  scores:
    user-feedback: {1: up, 0: down}
reviews:
  reviewers: [ann, bob]
  criteria:
    correctness:
      right: {complete: true, correct: true, truthful: true}
      wrong: {correct: false, truthful: false}
    completeness: {1: {complete: true}, 0: {complete: false}}
"""
LANGFUSE = "format: langfuse\ninteraction_id: trace_id\n"


def score(key: str, name: str, value: Any, *, at: str = SCORED_AT, **changes: Any) -> dict[str, Any]:
    """A score as Langfuse's API gives it."""
    kind = "CATEGORICAL" if isinstance(value, str) else "NUMERIC"
    own = {"stringValue": value, "value": 0} if isinstance(value, str) else {"value": value}
    more = {"source": "ANNOTATION", "authorUserId": "ann", "updatedAt": at, "dataType": kind}
    return {"id": key, "traceId": "t-1", "name": name, **own, **more, **changes}


def observation(**changes: Any) -> dict[str, Any]:
    own = {"id": "o", "traceId": "t-1", "type": "GENERATION", "startTime": "2026-10-05T09:00:00Z"}
    parts = {"asked_at": "2026-10-05T09:00:00Z", "question": "What?", "answer": "That.", "model": "m@1"}
    return {**own, **parts, **changes}


def write_mapping(folder: Path, text: str) -> str:
    (folder / "mapping.yaml").write_text(text)
    return str(folder / "mapping.yaml")


def export(folder: Path, *records: Any, mapping: str = LANGFUSE + ANSWER + FEEDBACK) -> Source:
    folder.mkdir(exist_ok=True)
    (folder / "export.json").write_text(json.dumps(records))
    return make_explicit_export([str(folder / "export.json")], write_mapping(folder, mapping))


def take(data: Path, source: Source, *, remember: bool = False) -> IngestReport:
    return ingest([source], data, PARAMS, NOW, validate=accept_all, incremental=remember)


def read_stored(data: Path, contract: type[Any]) -> list[Any]:
    return list(DataStore(data).iter_rows(contract))


def assert_refused(source: Source, *words: str, code: Code = Code.WRONG_FORMAT) -> None:
    with pytest.raises(AbstainError) as refused:
        list(source.read({}))
    assert refused.value.code is code
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_export_changed_score_is_a_newer_row_of_its_person(tmp_path: Path) -> None:
    data, later = tmp_path / "data", "2026-10-06T10:00:00Z"
    before = [score("s-1", "user-feedback", 1), score("s-2", "correctness", "right")]
    take(data, export(tmp_path / "in", observation(), *before))
    after = [score("s-1", "user-feedback", 0, at=later), score("s-2", "correctness", "wrong", at=later)]
    take(data, export(tmp_path / "in", observation(), *after, score("s-3", "completeness", 0)))
    thumbs, reviews = read_stored(data, Thumb), read_stored(data, Review)
    assert [(row.user, row.thumb) for row in thumbs] == [("score s-1", "up"), ("score s-1", "down")]
    criteria = [(row.reviewer, row.correct, row.complete, row.reviewed_at.day) for row in reviews]
    assert criteria == [("ann", True, True, 5), ("ann", False, False, 6)]


def test_export_review_comes_with_all_criteria_uncontradicted(tmp_path: Path) -> None:
    data, part = tmp_path / "data", [observation(), score("s-2", "correctness", "wrong")]
    report = take(data, export(tmp_path / "in", *part))
    assert read_stored(data, Review) == [] and any("without complete (1)" in note for note in report.source_notes)
    take(data, export(tmp_path / "in", *part, score("s-3", "completeness", 0, at="2026-10-07T10:00:00Z")))
    (review,) = read_stored(data, Review)
    assert (review.correct, review.complete, review.reviewed_at.day) == (False, False, 7)
    scores = [score("s-1", "correctness", "right"), score("s-2", "completeness", 0)]
    rows = list(export(tmp_path / "in", *scores).read({}))
    assert ["complete" in reason.message for row in rows for reason in row.reasons] == [True], "of the same time"


def test_export_notes_count_unmapped_scores(tmp_path: Path) -> None:
    records = [
        observation(),
        score("s-1", "toxicity", 0.1),
        score("s-2", "toxicity", 0.2),
        score("s-3", "user-feedback", 3),
        score("s-4", "correctness", "right", authorUserId="eve"),
        score("s-5", "correctness", "right", authorUserId=None),
        score("s-6", "correctness", "right", source="EVAL"),
        score("s-7", "correctness", "x" * 50),
    ]
    report = take(tmp_path / "data", export(tmp_path / "in", *records))
    assert report.accepted == 1 and len(report.source_notes) == 6
    parts = [f"{why}, not taken: correctness (1)" for why in ("reviewers", "without a reviewer", "by a machine")]
    parts += ["not mapped: toxicity (2)", "user-feedback = 3 (1), correctness = a longer text (1)", "completeness"]
    for part in parts:
        assert any(part in note for note in report.source_notes), part
        assert part in report.to_markdown() or "=" in part


IDEAL = LANGFUSE + FEEDBACK + "  ideal_answer: output\n"


@pytest.mark.parametrize("kind", ["CORRECTION", "TEXT", "CATEGORICAL"])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_langfuse_text_is_read_of_every_type_of_text(tmp_path: Path, kind: str, suffix: str) -> None:
    records = [score("s-1", "correctness", "right"), score("s-2", "output", "Twelve euros.", dataType=kind)]
    file = write_table(tmp_path / f"scores{suffix}", *records)
    (row,) = make_explicit_export([file], write_mapping(tmp_path, IDEAL)).read({})
    assert row.review is not None and (row.review.correct, row.review.ideal_answer) == (True, "Twelve euros.")


@pytest.mark.parametrize("answers", [[12], ["half of \ud83d"], ["Twelve.", "Ten."]])
def test_ideal_answer_that_is_unreadable_leaves_the_criteria(tmp_path: Path, answers: list[Any]) -> None:
    scores = [score("s-1", "correctness", "wrong"), score("s-2", "completeness", 0)]
    scores += [score(f"i-{number}", "output", answer) for number, answer in enumerate(answers)]
    reading = export(tmp_path / "in", *scores, mapping=IDEAL).read({})
    (row,) = reading
    assert row.review is not None and (row.review.correct, row.review.ideal_answer) == (False, None)
    assert any("ideal answers" in note and "not taken: output (1)" in note for note in reading.outcome.notes)


REVIEWED = """
reviews:
  reviewed_at: "'2026-10-07T00:00:00Z'"
  reviewers: all
  criteria: {verdict: {good: {complete: true, correct: true, truthful: true}}}
"""


def task(**changes: Any) -> dict[str, Any]:
    """A task of Label Studio with an annotation that has `changes`."""
    result = [{"from_name": "verdict", "type": "choices", "value": {"choices": ["good"]}}]
    return {"data": {"id": "q-1"}, "annotations": [{"id": 1, "completed_by": "ann", "result": result, **changes}]}


def trace(**assessment: Any) -> dict[str, Any]:
    """A trace of MLflow without spans."""
    whole = {"assessment_name": "verdict", "source": {"source_type": "HUMAN", "source_id": "ann"}, **assessment}
    return {"info": {"trace_id": "q-1", "request_time": SCORED_AT, "assessments": [whole]}, "data": {"spans": []}}


REJECTION = {"accepted": False, "created_at": "2026-10-06T08:00:00Z"}
RESPONSES = {"user_id": ["ann", "bob"], "value": ["good", "good"], "status": ["submitted", "discarded"]}
ANNOTATION = {"trace_id": "q-1", "name": "verdict", "annotator_kind": "HUMAN", "result": {"label": "good"}}


@pytest.mark.parametrize(
    ("mapping", "record", "is_read"),
    [
        ("phoenix trace_id || context.trace_id", {**ANNOTATION, "user_id": "ann"}, True),
        ("argilla external_id", {"verdict": RESPONSES, "external_id": "q-1"}, True),
        ("label_studio data.id", task(reviews=[REJECTION]), False),
        ("label_studio data.id", task(reviews=[{"accepted": True, "created_at": "2026-10-07"}, REJECTION]), True),
        ("label_studio data.id", task(reviews=[REJECTION], last_action="updated"), True),
        ("label_studio data.id", task(last_action="rejected"), False),
        ("mlflow trace_id", {"trace_id": "q-1", "trace": json.dumps(trace(feedback={"value": "good"}))}, True),
        ("mlflow trace_id", trace(expectation={"serialized_value": {"value": '"good"'}}), True),
    ],
)
def test_export_forms_of_a_tool_are_read(tmp_path: Path, mapping: str, record: dict[str, Any], is_read: bool) -> None:
    name, path = mapping.split(" ", 1)
    reading = export(tmp_path / "in", record, mapping=f"format: {name}\ninteraction_id: {path}{REVIEWED}").read({})
    reviews = [(row.review.interaction_id, row.review.reviewer) for row in reading if row.review is not None]
    assert reviews == [("q-1", "ann")] * is_read
    assert is_read or any("not taken: verdict (1)" in note for note in reading.outcome.notes)


def test_argilla_columns_of_different_length_raise(tmp_path: Path) -> None:
    record = {"verdict": {**RESPONSES, "status": ["submitted"]}, "external_id": "q-1"}
    mapping = f"format: argilla\ninteraction_id: external_id{REVIEWED}"
    assert_refused(export(tmp_path / "in", record, mapping=mapping), "verdict", "one length")


def test_phoenix_download_needs_no_identifier_or_user(tmp_path: Path) -> None:
    names = {"name": "user_feedback", "label": "thumbs-up", "annotator_kind": "HUMAN"}
    attributes = {f"annotations.0.annotation.{name}": value for name, value in names.items()}
    span = {"context": {"span_id": "s-1"}, "span_kind": "LLM", "end_time": SCORED_AT, "attributes": attributes}
    thumbs = "thumbs: {user: identifier || user_id, scores: {user_feedback: {thumbs-up: up}}}"
    (row,) = export(tmp_path / "in", span, mapping=f"format: phoenix\ninteraction_id: span_id\n{thumbs}").read({})
    assert row.thumb is not None and (row.thumb.interaction_id, row.thumb.user) == ("s-1", None)


@pytest.mark.parametrize("key", ["name", "user"])
def test_nested_path_that_no_record_has_is_named(tmp_path: Path, key: str) -> None:
    paths = {"list": "feedback", "name": "name", "value": "value", "user": "who"}
    record = {"id": "q-1", "feedback": [{"name": "verdict", "value": "good", "who": "ann"}]}
    mapping = f"format: nested\ninteraction_id: id\nscores: {json.dumps(paths | {key: 'nme'})}{REVIEWED}"
    assert_refused(export(tmp_path / "in", record, mapping=mapping), f"scores.{key}", "'nme'", code=Code.BAD_SETTING)


def write_table(file: Path, *records: dict[str, Any]) -> str:
    table = pd.DataFrame(records)
    if file.suffix == ".csv":
        table.to_csv(file, index=False)
    elif file.suffix == ".parquet":
        table.assign(updatedAt=pd.to_datetime(table["updatedAt"])).to_parquet(file)
    else:
        table.to_json(file, orient="records", lines=".jsonl" in file.name)
    return str(file)


@pytest.mark.heavy
def test_export_of_each_file_format_gives_the_same_rows(tmp_path: Path) -> None:
    records = [score("s-1", "user-feedback", 1), score("s-2", "user-feedback", 0, traceId="t-2")]
    files = [[write_table(tmp_path / name, *records)] for name in ("a.csv", "b.parquet", "c.json")]
    files.append([write_table(tmp_path / f"{n}.jsonl.gz", record) for n, record in enumerate(records)])
    mapping = write_mapping(tmp_path, LANGFUSE + FEEDBACK)
    thumbs = [[row.thumb for row in make_explicit_export(names, mapping).read({})] for names in files]
    assert len(thumbs[0]) == 2 and None not in thumbs[0] and thumbs == [thumbs[0]] * 4


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.csv", "a.jsonl.gz", "a.parquet"])
@pytest.mark.parametrize("scheduled", [False, True])
def test_export_cut_in_the_middle_gives_nothing(tmp_path: Path, name: str, scheduled: bool) -> None:
    file, mapping = tmp_path / "in" / name, write_mapping(tmp_path, LANGFUSE + FEEDBACK)
    file.parent.mkdir()
    write_table(file, *(score(f"s-{number}", "user-feedback", 1, comment="fine, really") for number in range(9)))
    file.write_bytes(file.read_bytes()[:-30])
    if scheduled:
        rows = list(ExportSource(name="a", url=str(file.parent), mapping=mapping).read({}))
        assert [reason.code for row in rows for reason in row.reasons] == [Code.WRONG_FORMAT]
    else:
        assert_refused(make_explicit_export([str(file)], mapping), name)


TOOLS = ("langfuse", "phoenix", "mlflow", "label_studio", "argilla", "open_webui")


@pytest.mark.parametrize("page", TOOLS)
def test_export_of_another_tool_raises_with_its_name(tmp_path: Path, page: str) -> None:
    needed = "reviews: {reviewed_at: at, reviewers: all, criteria: {a: {b: {correct: true}}}}"
    mapping = write_mapping(tmp_path, f"format: {page}\ninteraction_id: id\n{needed}\n")
    for other in {*TOOLS} - {page}:
        assert_refused(make_explicit_export([str(FIXTURES / other)], mapping), f"format: {other}", "mapping.yaml")
    unknown = write_lines(tmp_path / "own.jsonl", {"a": 1})
    assert_refused(make_explicit_export([str(unknown)], mapping), "own.jsonl record 1", "its fields are a")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("question: question", "question: questoin", ["answers.question", "'questoin'", "'question'"]),
        ("trace_id", "span_id", ["interaction_id", "'span_id'", "2 records"]),
        ("  scores:", "  user: from_json(metadata).customer\n  scores:", ["thumbs.user", "'customer'", "'custmer'"]),
        ("  scores:", "  user: from_json(metadata).none\n  scores:", None),
    ],
)
def test_mapping_of_a_missing_field_gives_nothing(tmp_path: Path, old: str, new: str, words: list[str] | None) -> None:
    mapping = (LANGFUSE + ANSWER + FEEDBACK).replace(old, new)
    more = {"metadata": json.dumps({"custmer": "u", "none": None})}
    source = export(tmp_path / "in", observation(), score("s-1", "user-feedback", 1, **more), mapping=mapping)
    if words is None:
        assert take(tmp_path / "data", source).accepted == 2
        return
    assert_refused(source, "mapping.yaml", *words, code=Code.BAD_SETTING)
    with pytest.raises(AbstainError):
        take(tmp_path / "data", source)
    assert list((tmp_path / "data").rglob("*.jsonl")) == []


THUMBS, REVIEWS = "thumbs: {scores: {a: {1: up}}}", "reviews: {reviewers: all, criteria: {a: {1: {correct: true}}}}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("format: langfuse\ninteraction_id: a\nthumb: {}", ["unknown key 'thumb'", "'thumbs'"]),
        ("format: langfus\ninteraction_id: a", ["format", "langfuse"]),
        ("format: table\ninteraction_id: a", ["it maps nothing"]),
        (f"format: table\ninteraction_id: a b\n{THUMBS}", ["interaction_id", "double quotes"]),
        (f"format: table\ninteraction_id: a\n{THUMBS}", ["thumbs.given_at is missing"]),
        ("format: langfuse\ninteraction_id: a\nthumbs: {scores: {a: {yes: up}}}", ["quote"]),
        ("format: langfuse\ninteraction_id: a\nthumbs: {scores: {a: {1: good}}}", ["thumbs.scores", "'up' or 'down'"]),
        ("format: langfuse\ninteraction_id: a\nthumbs: {scores: {a: {1: up, '1.0': down}}}", ["'1.0' is equal"]),
        (f"format: langfuse\ninteraction_id: a\n{THUMBS}\n{REVIEWS}", ["the score 'a'"]),
        (f"format: nested\ninteraction_id: a\n{THUMBS}", ["scores", "nested"]),
        (
            f"format: nested\ninteraction_id: a\nscores: {{list: a, name: b, value: c}}\n{THUMBS}",
            ["thumbs.given_at is missing"],
        ),
        (f"format: langfuse\ninteraction_id: a\nscores: {{list: a, name: b, value: c}}\n{THUMBS}", ["nested"]),
        (f"format: table\ninteraction_id: a\n{REVIEWS}".replace("correct", "corect"), ["reviews.criteria", "corect"]),
    ],
)
def test_mapping_that_is_wrong_is_one_line(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(AbstainError) as refused:
        load_mapping(Path(write_mapping(tmp_path, text)))
    assert refused.value.code is Code.BAD_SETTING
    assert all(word in str(refused.value) for word in ("mapping.yaml", *words)), str(refused.value)


def test_export_in_which_nothing_is_mapped_raises(tmp_path: Path) -> None:
    source = export(tmp_path / "in", score("s-1", "toxicity", 0.1), mapping=LANGFUSE + FEEDBACK)
    assert_refused(source, "toxicity (1)", "mapping.yaml", code=Code.NO_ROWS)
    assert_refused(export(tmp_path / "in", mapping=LANGFUSE + FEEDBACK), "0 records", code=Code.NO_ROWS)


def test_export_scheduled_skips_bad_and_unchanged_files(tmp_path: Path) -> None:
    folder, data = tmp_path / "in", tmp_path / "data"
    folder.mkdir()
    write_mapping(tmp_path, LANGFUSE + ANSWER + FEEDBACK)
    (tmp_path / "sources.yaml").write_text("sources: [{name: langfuse, kind: export, url: in, mapping: mapping.yaml}]")
    (source,) = load_sources(tmp_path / "sources.yaml", tmp_path)
    write_lines(folder / "a.jsonl", observation())
    write_lines(folder / "b.jsonl", score("s-1", "user-feedback", 1), '{"id": "s-2", "na')
    first = take(data, source, remember=True)
    assert (first.accepted, first.quarantined) == (1, 1)
    write_lines(folder / "b.jsonl", score("s-1", "user-feedback", 1), score("s-2", "correctness", "right"))
    assert take(data, source, remember=True).accepted == 2
    assert take(data, source, remember=True).read == 0
    write_mapping(tmp_path, LANGFUSE + ANSWER + FEEDBACK.replace("[ann, bob]", "all"))
    assert take(data, source, remember=True).duplicate == 3


@pytest.mark.heavy
@given(data=st.data())
@settings(max_examples=12)
def test_export_in_any_order_is_taken_once(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("once")
    records = [observation(traceId=f"t-{number}") for number in range(3)]
    records += [score(f"s-{number}", "user-feedback", number % 2, traceId=f"t-{number}") for number in range(4)]
    records += [score(f"v-{number}", "correctness", "right", traceId=f"t-{number}") for number in range(4)]
    for _ in range(3):
        part = data.draw(st.lists(st.sampled_from(records), min_size=1, unique_by=id))
        stop = data.draw(st.none() | st.integers(0, len(part)))
        with suppress(KeyboardInterrupt):
            take(folder / "data", interrupt(export(folder / "in", *part), stop))
    take(folder / "data", export(folder / "in", *data.draw(st.permutations(records))))
    store = folder / "data"
    assert sorted(row.interaction_id for row in read_stored(store, Interaction)) == ["t-0", "t-1", "t-2"]
    assert sorted(row.user for row in read_stored(store, Thumb)) == ["score s-0", "score s-1", "score s-2"]
    assert sorted(row.interaction_id for row in read_stored(store, Review)) == ["t-0", "t-1", "t-2"]
    assert sum(1 for path in DataStore(store).list_pending_files().values() for _ in path.open()) == 2


def interrupt(source: Source, stop: int | None) -> Any:
    """`source`, of which the reading is interrupted before row `stop`, if at all."""

    def iter_rows(state: Any) -> Any:
        reading = source.read(state)
        yield from islice(reading, stop)
        if stop is not None:
            raise KeyboardInterrupt
        return reading.outcome

    return SimpleNamespace(name=source.name, read=lambda state: SourceReader(iter_rows(state)))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-10-05 09:30:00.5", "2026-10-05T09:30:00.500000+00:00"),
        (1791192600, "2026-10-05T09:30:00+00:00"),
        *((value, value) for value in ("2026-10-05T09:30:00+02:00", "soon", None, True, 1e20)),
    ],
)
def test_to_utc_converts_numbers_and_times_without_a_zone(value: Any, expected: Any) -> None:
    assert to_utc(value) == expected


@pytest.mark.parametrize(
    ("expression", "value", "expected"),
    [
        ("number(a, ',')", "\u22121.234,5", -1234.5),
        ("number(a, ',')", "41 %", 0.41),
        ("number(a, '.')", "12\u202f345.5", 12345.5),
        ("number(a, ',')", 0.5, 0.5),
        ("number(a, ',')", "0.41", None),
        ("number(a, ',')", ",", None),
        ("time(a, '%d.%m.%Y %H:%M', 'Europe/Berlin')", "05.10.2026 09:30", "2026-10-05T09:30:00+02:00"),
        ("time(a, 'excel', 'Europe/Berlin')", "46300,375", "2026-10-05T09:00:00+02:00"),
        ("time(a, 'excel', 'UTC')", 46300.375, "2026-10-05T09:00:00+00:00"),
        ("time(a, '%Y%m%d', 'UTC')", 20261005.0, "2026-10-05T00:00:00+00:00"),
        ("time(a, '%d.%m.%Y', 'UTC')", "31.09.2026", None),
        ("split(a, ';')", "a; b;", ["a", "b"]),
        ("replace(a, '.', '')", "1.2", "12"),
        ("literal(a)", "['it''s', None, nan, (1, 2)]".replace("''", "\\'"), ["it's", None, None, [1, 2]]),
        ("literal(a)", "['a'\n 'b']", None),
        ("literal(a)", "[open('a')]", None),
        ("literal(a)", "[" * 400, None),
        ("literal(a)", f"'{'a' * 500_000}'", None),
        (
            "from_json(a)[?role=='user'].text | [-1]",
            '[{"role": "user", "text": "a"}, {"role": "user", "text": "b"}]',
            "b",
        ),
        ("from_json(a)", "text", None),
        ("from_json(none).a", "text", None),
        *((f"{name}(a, 'x'{more})", None, None) for name, more in (("split", ""), ("replace", ", ''"))),
        *((f"{name})", None, None) for name in ("number(a, ','", "time(a, 'excel', 'UTC'", "literal(a")),
    ],
)
def test_expression_functions_read_tables_of_people(expression: str, value: Any, expected: Any) -> None:
    assert Expression(expression).evaluate({"a": value}) == expected


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("join('', none)", "'join"),
        ("number(a, ';')", "',' or '.', not ';'"),
        ("number(b, ',')", "takes string, number, null, not array"),
        ("time(a, '%Q', 'UTC')", "'%d.%m.%Y', not '%Q'"),
        ("time(a, '%d', 'Europe/Nowhere')", "'Europe/Berlin', not 'Europe/Nowhere'"),
        ("split(a, '')", "a separator"),
        ("replace(a, '', 'b')", "a text to be replaced"),
    ],
)
def test_expression_argument_that_is_wrong_is_one_line(expression: str, words: str) -> None:
    with pytest.raises(AbstainError) as refused:
        Expression(expression).evaluate({"a": "1", "b": ["1"]})
    assert words in str(refused.value) and expression in str(refused.value)


@pytest.mark.parametrize(
    ("expression", "record", "lost"),
    [
        ("to_number(a)", {"a": "0,41"}, "a"),
        ("from_json(a)[].text", {"a": '[{"text": "cut'}, "a"),
        ("from_json(a)", {"a": "null"}, None),
        ("from_json(a)[].text", {"a": "[]"}, None),
        ("literal(a)", {"a": "None"}, None),
        ("a.b", {"a": '{"b": 1}'}, "a"),
        ("a.b.c", {"a": {"b": {"d": 1}}}, None),
        ("a.{x: to_number(b), y: c}", {"a": {"b": "?"}}, "a.b"),
        ("{x: to_number(a), y: b}", {"a": "1", "b": None}, None),
        ("to_number(a) || b", {"a": "?", "b": None}, "a"),
        ("to_number(a) || b", {"a": " ", "b": None}, None),
        ("a && to_number(b)", {"a": None, "b": "?"}, None),
        ("a && to_number(b)", {"a": 1, "b": "?"}, "b"),
        ("a[?role=='user'].text | [-1]", {"a": [{"role": "system"}]}, None),
        ("a[?role=='user'].text | [-1]", {"a": "[]"}, "a"),
        ("a[0]", {"a": "text"}, "a"),
        ("a[].text", {"a": [{"content": "b"}]}, "a"),
        ("a[].b[]", {"a": [{"b": []}]}, None),
        ("a.*.b", {"a": ["b"]}, "a"),
    ],
)
def test_expression_names_the_filled_field_it_loses(expression: str, record: dict[str, Any], lost: str | None) -> None:
    assert Expression(expression).find_lost_field(record) == lost


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        ("  writer_scores: '{p: to_number(a)}'", "writer_scores: a is filled, but {p: to_number(a)} gives nothing"),
        ("  propensity: to_number(a)", "propensity: a is filled"),
        ("  contexts: from_json(a)", "contexts: a is filled"),
        ("  contexts: '[b, c]'", "contexts: null is among them"),
        ("  contexts: d[].text", "contexts: null is among them"),
        ("  contexts: e", "contexts: a list is written in a text"),
        ("  contexts: literal(e)", None),
        ("  contexts: b\n  product: c\n  token_log_probs: from_json(c)", None),
    ],
)
def test_export_row_of_which_a_part_is_lost_is_refused(tmp_path: Path, paths: str, reason: str | None) -> None:
    record = observation(a="0,41", b="text", c=None, d=[{"text": "t"}, {}], e="['x', 'y']")
    rows = list(export(tmp_path / "in", record, mapping=LANGFUSE + ANSWER + paths).read({}))
    reasons = [str(row_reason) for row in rows for row_reason in row.reasons]
    assert [text.startswith(str(reason)) for text in reasons] == ([] if reason is None else [True])
    assert [row.interaction is None for row in rows] == [reason is not None]


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        (['[{"text": "a"}]', '[{"text": "b'], "in the retrieval that is joined, output is filled"),
        ([None], "the retrieval that is joined has none"),
        (['[{"text": "a"}]', "[]"], None),
        ([], None),
    ],
)
def test_export_joined_retrieval_needs_context(tmp_path: Path, outputs: list[str | None], reason: str | None) -> None:
    retrievals = "retrievals: {where: type == 'RETRIEVER', join: trace_id, contexts: 'from_json(output)[].text'}\n"
    mapping = LANGFUSE + ANSWER.replace("answers:", "answers:\n  where: type == 'GENERATION'") + retrievals
    other = observation(traceId="t-2", type="RETRIEVER", output='[{"text": "c"}]')
    retrieved = [observation(type="RETRIEVER", output=output) for output in outputs]
    (row,) = export(tmp_path / "in", observation(), other, *retrieved, mapping=mapping).read({})
    assert [str(reason) in str(row_reason) for row_reason in row.reasons] == ([] if reason is None else [True])


def test_export_messages_and_their_parts_are_texts(tmp_path: Path) -> None:
    parts = [{"type": "thinking", "thinking": "That?"}, {"type": "text", "text": "That"}, {"type": "text", "text": "."}]
    messages = [{"role": "user", "content": "Hello."}, {"role": "user", "content": [{"text": "What?"}]}]
    chunks = [{"page_content": "a", "metadata": {}}, [{"text": "b"}], {"chunk_id": "c#1", "content": "c"}]
    record = observation(question=messages, answer={"role": "assistant", "content": parts}, chunks=chunks)
    source = export(tmp_path / "in", record, mapping=LANGFUSE + ANSWER + "  contexts: chunks\n")
    (row,) = (row.interaction for row in source.read({}))
    assert row and (row.question, row.answer) == ("What?", "That.")
    assert [context.text for context in row.contexts] == ["a", "b", "c"] and row.contexts[2].chunk_id == "c#1"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '[{"id": "q", "parent": NaN, "text": "a"}]'),
        ("a.jsonl", '{"id": "q", "parent": NaN, "text": "a"}'),
        ("a.csv", "id,parent,text\nq,NaN,a\n"),
    ],
)
def test_export_nan_is_null_in_every_file_format(tmp_path: Path, name: str, text: str) -> None:
    paths = "{where: '!parent', asked_at: \"'2026-10-05T09:00:00Z'\", question: text, answer: text, model: text}"
    mapping = write_mapping(tmp_path, f"format: table\ninteraction_id: id\nanswers: {paths}")
    (tmp_path / name).write_text(text)
    (row,) = make_explicit_export([str(tmp_path / name)], mapping).read({})
    assert row.interaction is not None and row.interaction.answer == "a"


@pytest.mark.parametrize(
    "values", [(1, 1.0, "1", "1.0"), (True, "TRUE", "true "), ("yes", "Yes"), ("👍", "👍🏽", "👍\ufe0f"), (0.5, "0.50")]
)
def test_format_value_equal_values_are_equal(values: tuple[Any, ...]) -> None:
    assert len(set(map(format_value, values))) == 1


def test_make_explicit_export_without_files_or_mapping_raises(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match="--mapping"):
        make_explicit_export([], "mapping.yaml")
    assert_refused(make_explicit_export([str(tmp_path)], str(tmp_path / "no.yaml")), "no.yaml", code=Code.NOT_READABLE)
    assert_refused(make_explicit_export([str(tmp_path)], write_mapping(tmp_path, LANGFUSE + FEEDBACK)))


def test_export_null_among_log_probs_drops_them_with_a_note(tmp_path: Path) -> None:
    paths = "  token_log_probs: tokens[].logprob\n"
    tokens = [observation(tokens=[{"logprob": -0.1}, {"logprob": last}], traceId=f"t{last}") for last in (-0.2, None)]
    report = take(tmp_path / "data", export(tmp_path / "in", *tokens, mapping=LANGFUSE + ANSWER + paths))
    log_probs = [answer.token_log_probs for answer in read_stored(tmp_path / "data", Interaction)]
    assert log_probs == [(-0.1, -0.2), None]
    assert any(note.endswith("without it: token_log_probs (1)") for note in report.source_notes)


def test_export_writer_scores_are_kept_one_by_one(tmp_path: Path) -> None:
    paths = "  writer_scores: '{log_prob: to_number(lp), own: own}'\n  display: gate\n  propensity: chance\n"
    known = observation(lp="-0.5", gate="shown", chance=0.9, traceId="t-1")
    unknown = observation(id="p", traceId="t-2")
    take(tmp_path / "data", export(tmp_path / "in", known, unknown, mapping=LANGFUSE + ANSWER + paths))
    first, second = read_stored(tmp_path / "data", Interaction)
    assert (dict(first.writer_scores), first.display, first.propensity) == ({"log_prob": -0.5}, "shown", 0.9)
    assert second.writer_scores is None and second.display is None


def test_export_key_that_comes_twice_in_one_object_is_named(tmp_path: Path) -> None:
    source = export(tmp_path / "in", score("s-1", "user-feedback", 1), mapping=LANGFUSE + FEEDBACK)
    file = tmp_path / "in" / "export.json"
    file.write_text(file.read_text().replace('"name"', '"name": "other", "name"'))
    assert_refused(source, "export.json", "'name'")


NOTES = {
    "langfuse": [
        "machine, not taken: correctness (1)",
        "not mapped: helpfulness (1)",
        "interaction_id, not taken: user",
    ],
    "phoenix": [
        "toxicity (1)",
        "machine, not taken: correctness (2)",
        "without a reviewer, not taken: correctness (1)",
    ],
    "mlflow": ["machine, not taken: correctness (1)", "replaced by a later one, not taken: correctness (1)"],
    "opik": ["not mapped: hallucination_metric (1)"],
    "langsmith": ["left out by scores.where, not taken: correctness (1)"],
    "dify": [],
    "label-studio": ["cancelled", "rejected by a reviewer of the annotation, not taken: verdict (1)", "tone (1)"],
    "argilla": ["draft", "discarded", "usefulness (2)"],
    "open-webui": ["details.rating (1)", "reason (1)"],
    "table": ["Kanal (2)"],
}


@pytest.mark.parametrize("page", NOTES)
def test_export_page_mapping_gives_the_expected_rows(tmp_path: Path, page: str) -> None:
    _, block, _ = (PAGES / f"{page}.md").read_text().replace("```yaml\n", "```").split("```")
    (tmp_path / "mapping.yaml").write_text(block)
    reading = make_explicit_export([str(FIXTURES / page.replace("-", "_"))], str(tmp_path / "mapping.yaml")).read({})
    rows = list(reading)
    assert [row.reasons for row in rows if row.reasons] == []
    contents = [json.loads(part.to_json_line()) for row in rows for part in row.iter_contents()]
    assert contents == json.loads((EXPECTED / f"{page}.json").read_text())
    assert [words for words in NOTES[page] if not any(words in note for note in reading.outcome.notes)] == []


def test_export_pages_are_tested_and_in_the_index(tmp_path: Path) -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == {*NOTES, "index"}
    index = (PAGES / "index.md").read_text()
    assert [page for page in NOTES if f"({page}.md)" not in index] == []
    (tmp_path / "sources.yaml").write_text(index.split("```yaml\n")[1].split("```")[0])
    (source,) = load_sources(tmp_path / "sources.yaml", tmp_path)
    assert source.mapping == str(tmp_path / "mappings" / "langfuse.yaml")
