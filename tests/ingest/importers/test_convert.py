import json
from collections import Counter
from pathlib import Path

import pytest

from abstain.core.errors import AbstainError
from abstain.ingest.importers import feedbackqa, qa_from_hf, squad
from abstain.ingest.importers.convert import IMPORTERS, Converted, convert, find_importer, parse_options
from abstain.ingest.sources.files import by_hand
from tests.ingest.importers.upstream import asked, judged, passage, rated, write_json, write_records
from tests.ingest.importers.upstream import squad as squad_file


def files_of(folder: Path) -> dict[str, Path]:
    """A small made-up file of each format."""
    return {
        "squad": write_json(
            folder / "squad.json", squad_file(("Bank", [("The card is free.", [asked("q-1", "free")])]))
        ),
        "qa_from_hf": write_records(folder / "qa.jsonl", judged()),
        "feedbackqa": write_records(folder / "fb.jsonl.gz", rated("fb-1", "Excellent", "Bad")),
    }


@pytest.mark.parametrize("name", IMPORTERS)
def test_what_comes_out_is_what_ingest_takes_and_the_same_every_time(tmp_path: Path, name: str) -> None:
    importer, file = find_importer(name), files_of(tmp_path)[name]
    made = convert(importer, [file], importer.options(), tmp_path / "out")
    rows = list(by_hand([str(tmp_path / "out")])[0].read({}))
    assert [row.reasons for row in rows if row.reasons] == []
    counts = Counter(type(part).__name__ for row in rows for part in row.contents())
    assert counts["Interaction"] == made.interactions == 1
    assert counts["Review"] == made.reviews
    assert counts["Document"] == made.documents
    convert(importer, [file], importer.options(), tmp_path / "again")
    for path in (tmp_path / "out").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "again" / path.relative_to(tmp_path / "out")).read_bytes()


@pytest.mark.parametrize("name", IMPORTERS)
def test_a_file_of_another_format_is_told_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    files = files_of(tmp_path)
    before = sorted(tmp_path.iterdir())
    for other, file in files.items():
        if other != name:
            with pytest.raises(AbstainError, match=rf"{file.name}.*: is this the right FORMAT\?"):
                convert(find_importer(name), [file], find_importer(name).options(), tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "nothing in there to import"),
        (b"{", r"qa\.jsonl line 1: Invalid JSON"),
        (b"\xff\xfe", r"qa\.jsonl line 1: Invalid JSON"),
        (
            json.dumps(judged()).encode() + b"\n\n" + json.dumps(judged(round="x")).encode(),
            r"qa\.jsonl line 3: round: Input",
        ),
        (
            json.dumps(judged("a", "Perhaps")).encode(),
            "line 1: user_feedback: Input should be 'Correct', 'Partially Correct'",
        ),
        (None, r"qa\.jsonl: cannot be read: No such file"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "qa.jsonl").write_bytes(content)
    with pytest.raises(AbstainError, match=message) as refused:
        convert(qa_from_hf.IMPORTER, [tmp_path / "qa.jsonl"], qa_from_hf.Options(), tmp_path / "deep" / "out")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "deep" / "out").exists()
    assert not any((tmp_path / "deep").iterdir())


def test_a_packed_file_that_is_cut_off(tmp_path: Path) -> None:
    file = write_records(tmp_path / "qa.jsonl.gz", judged())
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(AbstainError, match=r"qa\.jsonl\.gz: cannot be read: Compressed file ended"):
        convert(qa_from_hf.IMPORTER, [file], qa_from_hf.Options(), tmp_path / "out")


def test_a_folder_that_is_there_is_not_touched(tmp_path: Path) -> None:
    file = files_of(tmp_path)["squad"]
    (tmp_path / "out").mkdir()
    convert(squad.IMPORTER, [file], squad.Options(), tmp_path / "out")  # an empty one will do
    with pytest.raises(AbstainError, match="out: is there already: name a new folder"):
        convert(squad.IMPORTER, [file], squad.Options(), tmp_path / "out")
    with pytest.raises(AbstainError, match=r"squad\.json: is there already"):
        convert(squad.IMPORTER, [file], squad.Options(), file)
    with pytest.raises(AbstainError, match="nothing to import: name the files of SQuAD"):
        convert(squad.IMPORTER, [], squad.Options(), tmp_path / "new")


def test_documents_alone_come_without_rows(tmp_path: Path) -> None:
    file = write_records(tmp_path / "kb.jsonl", {"kb_id": "WHO-1", **passage()})
    made = convert(feedbackqa.IMPORTER, [file], feedbackqa.Options(), tmp_path / "out")
    assert made == Converted(documents=1)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["documents"]


@pytest.mark.parametrize(
    ("name", "hint"), [("sqad", "did you mean 'squad'?"), ("zzz", "there are squad, qa_from_hf, feedbackqa")]
)
def test_an_unknown_format_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(AbstainError) as refused:
        find_importer(name)
    assert str(refused.value) == f"unknown format '{name}': {hint}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["unanswrable=skip"], "squad has no option 'unanswrable': did you mean 'unanswerable'?"),
        (["zzz"], "squad has no option 'zzz': valid: unanswerable, asked_at"),
        (["unanswerable=no"], "option unanswerable: Input should be 'plausible' or 'skip'"),
        (["asked_at=2020-01-01T00:00:00"], "option asked_at: Value error, timestamp without a time zone"),
    ],
)
def test_an_option_that_is_none(settings: list[str], message: str) -> None:
    with pytest.raises(AbstainError) as refused:
        parse_options(squad.IMPORTER, settings)
    assert str(refused.value).startswith(message)


def test_options() -> None:
    assert parse_options(squad.IMPORTER, ["unanswerable=skip"]) == squad.Options(unanswerable="skip")
    assert parse_options(feedbackqa.IMPORTER, []) == feedbackqa.Options()
