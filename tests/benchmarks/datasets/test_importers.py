import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from abstain.core.contracts import Document
from abstain.core.errors import AbstainError
from abstain.ingest.parsing import parse_object
from abstain.ingest.sources.files import make_explicit_sources
from abstain.knowledge.documents.reader import parse_document
from benchmarks.datasets import DocumentFile, Item, SkippedRecord, feedbackqa, qa_from_hf, squad
from benchmarks.datasets.__main__ import app
from benchmarks.datasets.convert import ConversionCounts, convert
from benchmarks.datasets.qa_from_hf import ABSTENTION
from tests.benchmarks.datasets import upstream
from tests.benchmarks.datasets.upstream import make_passage, make_question, make_rating, make_record, write_records
from tests.conftest import ROOT

SHARED = ROOT.parent / "shared" / "data"
"""The published sets themselves, where a checkout has them beside it."""
ARTICLE = upstream.squad(
    "Zoë_Bank",
    (
        "The card is free.",
        [make_question("q-1", "free", "is free"), make_question("q-2", plausible_answers=["the card", "free"])],
    ),
    (
        "# Rates rise.",
        [
            make_question("q-3", " rise "),
            make_question("q-4", plausible_answers=[]),
            make_question("q-5"),
            make_question("q-6", "x", question=" "),
        ],
    ),
)
FORMATS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "squad": (squad.read, upstream.squad("Bank", ("The card is free.", [make_question("q-1", "free")]))),
    "qa_from_hf": (qa_from_hf.read, make_record()),
    "feedbackqa": (feedbackqa.read, make_rating("fb-1", "Excellent", "Bad")),
}
"""What reads each format, and a record of it."""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def split(items: list[Item]) -> tuple[list[Any], list[Document], Counter[str]]:
    """The rows, the documents, and the reasons of what was skipped."""
    documents = [parse_document(item.text.encode(), item.name) for item in items if isinstance(item, DocumentFile)]
    skipped = Counter(item.reason for item in items if isinstance(item, SkippedRecord))
    return [item for item in items if not isinstance(item, DocumentFile | SkippedRecord)], documents, skipped


@pytest.mark.parametrize("name", FORMATS)
def test_import_command_of_every_format_writes_rows(tmp_path: Path, name: str) -> None:
    file = write_records(tmp_path / "a.json", FORMATS[name][1])
    for folder in ("out", "again"):
        done = run(name, file, "-o", tmp_path / folder)
        assert done.exit_code == 0 and done.output.startswith("1 interactions, 0 thumbs, "), done.output
    rows = list(make_explicit_sources([str(tmp_path / "out")])[0].read({}))
    assert [row.reasons for row in rows if row.reasons] == []
    found = Counter(type(part).__name__ for row in rows for part in row.iter_contents())
    assert found == {"Interaction": 1} | ({"Review": 2} if name == "feedbackqa" else {"Review": 1, "Document": 1})
    for path in (tmp_path / "out").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "again" / path.relative_to(tmp_path / "out")).read_bytes()


def test_import_reports_written_and_skipped_records(tmp_path: Path) -> None:
    file = write_records(tmp_path / "qa.jsonl", make_record(), make_record("lt-2", model_answer=ABSTENTION))
    options = ["-o", tmp_path / "out", "--verdict", "thumb", "--first-round-at"]
    assert run("qa_from_hf", file, *options, "2024-05-01T00:00:00").exit_code == 2, "it has no time zone"
    assert not (tmp_path / "out").exists()
    report = " ".join(run("qa_from_hf", file, *options, "2024-05-01T00:00:00Z").output.split())
    assert "1 interactions, 1 thumbs, 0 reviews and 1 documents in" in report
    assert "1 records skipped: the model abstained next: abstain ingest" in report
    assert json.loads((tmp_path / "out" / "rows.jsonl").read_text())["asked_at"] == "2024-05-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "nothing to import"),
        (b"\xff\xfe", r"qa\.jsonl line 1: Invalid JSON.*: is this the correct FORMAT\?"),
        (b"%s\n\n%s", r"qa\.jsonl line 3: round: Input.*: is this the correct FORMAT\?"),
        (gzip.compress(b"{}", mtime=0)[:-9], r"qa\.jsonl\.gz: cannot be read: Compressed file ended"),
    ],
)
def test_import_of_an_unreadable_file_writes_nothing(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / ("qa.jsonl.gz" if ".gz" in message else "qa.jsonl")
    lines = [json.dumps(record).encode() for record in (make_record(), make_record(round="x"))]
    file.write_bytes(content % tuple(lines) if b"%s" in content else content)
    with pytest.raises(AbstainError, match=message):
        convert(qa_from_hf.read([file]), tmp_path / "deep" / "out")
    assert not any((tmp_path / "deep").iterdir())


def test_convert_writes_into_new_folders_only(tmp_path: Path) -> None:
    file = write_records(tmp_path / "kb.jsonl", {"kb_id": "WHO-1", **make_passage()})
    (tmp_path / "out").mkdir()
    assert convert(feedbackqa.read([file]), tmp_path / "out") == ConversionCounts(documents=1)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["documents"]
    for taken in (tmp_path / "out", file):
        with pytest.raises(AbstainError, match=f"{taken.name}: is there already: name a new folder"):
            convert(feedbackqa.read([file]), taken)


def test_squad_marked_answers_are_correct_plausible_ones_not(tmp_path: Path) -> None:
    file = write_records(tmp_path / "a.json.gz", ARTICLE)
    rows, _, skipped = split(list(squad.read([file])))
    verdicts = [{row["review"][name] for name in ("complete", "correct", "truthful")} for row in rows]
    assert [(row["interaction_id"], row["answer"]) for row in rows] == [
        *(("squad-q-1", "free"), ("squad-q-2", "the card"), ("squad-q-3", " rise "))
    ]
    assert verdicts == [{True}, {False}, {True}]
    assert set(skipped) == {
        *("unanswerable, without a plausible answer", "no answer is marked", "the question is empty")
    }
    rows, _, skipped = split(list(squad.read([file], unanswerable="skip")))
    assert [row["interaction_id"] for row in rows] == ["squad-q-1", "squad-q-3"]
    assert skipped["unanswerable, as requested"] == 2


def test_squad_article_in_two_files_is_one_document(tmp_path: Path) -> None:
    more = upstream.squad("Zoë_Bank", ("The card is free.", [make_question("q-7", "free")]), ("It is gold.", []))
    files = [write_records(tmp_path / name, content) for name, content in (("a.json", ARTICLE), ("b.json", more))]
    rows, [document], _ = split(list(squad.read(files)))
    assert document.title == "Zoë Bank" and {row["group"] for row in rows} == {"Zoë_Bank"}
    assert document.body.strip() == "The card is free.\n\n\\# Rates rise.\n\nIt is gold."
    cited = [row["contexts"][0]["chunk_id"] for row in rows]
    assert cited == [f"{document.doc_id}#paragraph-{number}" for number in (1, 1, 2, 1)]


def test_qa_from_hf_verdict_is_a_review_or_a_thumb(tmp_path: Path) -> None:
    verdicts = {
        "Correct": ((True, True, True), "up"),
        "Partially Correct": ((False, False, True), "down"),
        "Wrong": ((False, False, False), "down"),
    }
    records = [make_record(f"lt-{n}", verdict, round=n) for n, verdict in enumerate(verdicts, start=1)]
    skipped = [make_record("a", model_answer=ABSTENTION), make_record("b", question=" ")]
    file = write_records(tmp_path / "a.jsonl.gz", *records, *skipped)
    rows, [document], reasons = split(list(qa_from_hf.read([file])))
    rated, _, _ = split(list(qa_from_hf.read([file], verdict="thumb", abstentions="keep")))
    for (flags, thumb), as_review, as_thumb in zip(verdicts.values(), rows, rated[:3], strict=True):
        review = as_review["review"]
        assert (review["complete"], review["correct"], review["truthful"]) == flags and "thumb" not in as_review
        assert as_thumb["thumb"]["thumb"] == thumb and "review" not in as_thumb
    assert rows[0]["writer_scores"] == {"log_prob": -0.5, "class_log_prob": -0.25}
    assert [row["asked_at"][:10] for row in rows] == ["2023-01-01", "2023-01-31", "2023-03-02"], "a round is 30 days"
    assert rows[2]["model"] == "qa_from_hf-long-term@round-3" and rated[3]["answer"] == ABSTENTION
    assert reasons == {"the model abstained": 1, "the question or the answer is empty": 1}
    assert document.title == "Zoë Bank" and document.body.strip() == "# Fees\n\nThe card is free."
    assert {row["contexts"][0]["chunk_id"] for row in rows} == {f"{document.doc_id}#passage-1"}


def test_feedbackqa_every_rating_is_a_review(tmp_path: Path) -> None:
    ratings = {
        "Excellent": (True, True, True),
        "Acceptable": (False, True, True),
        "Could be Improved": (False, False, True),
        "Bad": (False, False, True),
    }
    records = [make_rating("fb-1", *ratings), make_rating("fb-2"), make_rating("fb-3", "Bad", question=" ")]
    items, _, skipped = split(list(feedbackqa.read([write_records(tmp_path / "a.jsonl.gz", *records)])))
    *rows, unrated = (parse_object(item, "a", 1) for item in items)
    found = rows[0].interaction
    assert found is not None and found.answer == found.contexts[0].text == "Passage 1."
    assert (found.product, found.contexts[0].chunk_id) == ("WHO", f"{found.group}#passage-7")
    reviews = [row.review for row in rows if row.review]
    assert [(review.complete, review.correct, review.truthful) for review in reviews] == [*ratings.values()]
    assert [review.reviewer for review in reviews] == [f"feedbackqa-rater-{n}" for n in (1, 2, 3, 4)]
    assert {review.interaction_id for review in reviews} == {"feedbackqa-fb-1"}
    assert unrated.interaction is not None and unrated.review is None
    assert skipped == {"the question or the passage is empty": 1}
    file = write_records(tmp_path / "q.jsonl", {"id": "q", "question": "?", "gold_kb_id": "WHO-1"})
    with pytest.raises(AbstainError, match="holds questions without an answer: name human_feedback or kb_passages"):
        list(feedbackqa.read([file]))


def test_feedbackqa_page_is_one_document_with_sections(tmp_path: Path) -> None:
    passages = [
        make_passage(1),
        make_passage(2, section_headers=["Cards", "Gold \n card "]),
        make_passage(3, section_headers=["Cards", "Gold card"]),
        make_passage(4, section_headers=["Cards"]),
        make_passage(5, section_headers=[]),
        make_passage(6, section_headers=["Loans", "Gold card"], text="  # no heading\n| no table\n  <b>\n---"),
        make_passage(1, domain="UK"),
    ]
    file = write_records(tmp_path / "a.jsonl", *({"kb_id": "WHO-0", **passage} for passage in passages))
    _, [document, other], _ = split(list(feedbackqa.read([file])))
    assert (document.title, document.product, other.product) == ("Fees", "WHO", "UK")
    assert document.doc_id != other.doc_id
    assert document.body.strip().split("\n\n") == [
        "# Cards", "Passage 1.", "## Gold card", "Passage 2.", "Passage 3.", "# Cards", "Passage 4.", "# Fees", "Passage 5.",
        "# Loans", "## Gold card", "\\# no heading\n\\| no table\n\\<b>\n\\---",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the published sets are not beside this checkout")
def test_feedbackqa_published_files_are_read_completely() -> None:
    files = [SHARED / f"feedbackqa/{name}.jsonl.gz" for name in ("human_feedback", "kb_passages")]
    items, documents, skipped = split(list(feedbackqa.read(files)))
    rows = [parse_object(item, "a", 1) for item in items]
    assert not skipped and [row.reasons for row in rows if row.reasons] == []
    assert sum(row.interaction is not None for row in rows) == 1929
    assert Counter(row.review.correct for row in rows if row.review) == {True: 1968, False: 3858 - 1968}
    cited = {found.chunk_id.partition("#")[0] for row in rows if row.interaction for found in row.interaction.contexts}
    assert len(documents) == 284 and cited <= {document.doc_id for document in documents}
