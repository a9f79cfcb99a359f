import json
from collections import Counter
from pathlib import Path

import pytest

from abstain.core.errors import AbstainError
from abstain.ingest.parsing import parse_object
from abstain.ingest.sources.files import make_explicit_sources
from abstain.knowledge.documents.reader import parse_document
from benchmarks.datasets import DocumentFile, SkippedRecord, feedbackqa, qa_from_hf, squad
from benchmarks.datasets.convert import ConversionCounts, convert
from tests.benchmarks.datasets.upstream import FORMATS, SHARED, make_passage, make_record, write_records

pytestmark = pytest.mark.soak(twin="test_import_command_of_every_format_writes_rows")

READ = {"squad": squad.read, "qa_from_hf": qa_from_hf.read, "feedbackqa": feedbackqa.read}


@pytest.mark.parametrize("name", FORMATS)
def test_convert_gives_ingest_the_same_rows_every_time(tmp_path: Path, name: str) -> None:
    file = FORMATS[name](tmp_path)
    converted = convert(READ[name]([file]), tmp_path / "out")
    rows = list(make_explicit_sources([str(tmp_path / "out")])[0].read({}))
    assert [row.reasons for row in rows if row.reasons] == []
    counts = Counter(type(part).__name__ for row in rows for part in row.iter_contents())
    assert counts["Interaction"] == converted.interactions == 1
    assert counts["Review"] == converted.reviews
    assert counts["Document"] == converted.documents
    convert(READ[name]([file]), tmp_path / "again")
    for path in (tmp_path / "out").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "again" / path.relative_to(tmp_path / "out")).read_bytes()


@pytest.mark.parametrize("name", FORMATS)
def test_convert_refuses_files_of_other_formats(tmp_path: Path, name: str) -> None:
    files = {other: write(tmp_path) for other, write in FORMATS.items()}
    before = sorted(tmp_path.iterdir())
    for other, file in files.items():
        if other != name:
            with pytest.raises(AbstainError, match=rf"{file.name}.*: is this the correct FORMAT\?"):
                convert(READ[name]([file]), tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "nothing to import"),
        (b"{", r"qa\.jsonl line 1: Invalid JSON"),
        (b"\xff\xfe", r"qa\.jsonl line 1: Invalid JSON"),
        (
            json.dumps(make_record()).encode() + b"\n\n" + json.dumps(make_record(round="x")).encode(),
            r"qa\.jsonl line 3: round: Input",
        ),
        (json.dumps(make_record("a", "Perhaps")).encode(), "line 1: user_feedback: Input should be 'Correct'"),
        (None, r"qa\.jsonl: cannot be read: No such file"),
    ],
)
def test_convert_unreadable_file_writes_nothing(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "qa.jsonl").write_bytes(content)
    with pytest.raises(AbstainError, match=message) as refused:
        convert(qa_from_hf.read([tmp_path / "qa.jsonl"]), tmp_path / "deep" / "out")
    assert "\n" not in str(refused.value)
    assert not any((tmp_path / "deep").iterdir())


def test_convert_truncated_gzip_is_an_error(tmp_path: Path) -> None:
    file = write_records(tmp_path / "qa.jsonl.gz", make_record())
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(AbstainError, match=r"qa\.jsonl\.gz: cannot be read: Compressed file ended"):
        convert(qa_from_hf.read([file]), tmp_path / "out")


def test_convert_does_not_overwrite(tmp_path: Path) -> None:
    file = FORMATS["squad"](tmp_path)
    (tmp_path / "out").mkdir()
    convert(squad.read([file]), tmp_path / "out")  # an empty folder is accepted
    for taken in (tmp_path / "out", file):
        with pytest.raises(AbstainError, match=f"{taken.name}: is there already: name a new folder"):
            convert(squad.read([file]), taken)


def test_convert_documents_alone_writes_no_rows(tmp_path: Path) -> None:
    file = write_records(tmp_path / "kb.jsonl", {"kb_id": "WHO-1", **make_passage()})
    assert convert(feedbackqa.read([file]), tmp_path / "out") == ConversionCounts(documents=1)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["documents"]


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the published sets are not beside this checkout")
def test_convert_published_files() -> None:
    found, documents, cited = Counter[str](), set[str](), set[str]()
    for item in feedbackqa.read([SHARED / f"feedbackqa/{name}.jsonl.gz" for name in ("human_feedback", "kb_passages")]):
        if isinstance(item, DocumentFile):
            documents.add(parse_document(item.text, item.name).doc_id)
        else:
            assert not isinstance(item, SkippedRecord)
            row = parse_object(item, "a", 1)
            assert row.reasons == ()
            found.update(type(part).__name__ for part in row.iter_contents())
            found["correct"] += row.review is not None and row.review.correct
            cited.update(c.chunk_id.rpartition("#")[0] for c in (row.interaction.contexts if row.interaction else ()))
    assert found == {"Interaction": 1929, "Review": 3858, "correct": 1968}
    assert len(documents) == 284 and cited <= documents
