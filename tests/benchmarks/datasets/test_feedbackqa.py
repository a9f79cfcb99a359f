from pathlib import Path

import pytest

from abstain.core.errors import AbstainError
from abstain.ingest.parsing import parse_object
from abstain.knowledge.documents.reader import parse_document
from benchmarks.datasets import DocumentFile, Item, SkippedRecord
from benchmarks.datasets.feedbackqa import read
from tests.benchmarks.datasets.upstream import make_passage, make_rating, write_records

pytestmark = pytest.mark.soak(twin="test_import_command_of_every_format_writes_rows")


def import_all(folder: Path, *records: dict) -> list[Item]:
    return list(read([write_records(folder / "a.jsonl.gz", *records)]))


def test_feedbackqa_every_rating_is_a_review(tmp_path: Path) -> None:
    ratings = {
        "Excellent": (True, True, True),
        "Acceptable": (False, True, True),
        "Could be Improved": (False, False, True),
        "Bad": (False, False, True),
    }
    *rows, unrated = (
        parse_object(item, "a", 1) for item in import_all(tmp_path, make_rating("fb-1", *ratings), make_rating("fb-2"))
    )
    found = rows[0].interaction
    assert found is not None and found.answer == found.contexts[0].text == "Passage 1."
    assert (found.product, found.contexts[0].chunk_id) == ("WHO", f"{found.group}#passage-7")
    reviews = [row.review for row in rows if row.review]
    assert [(review.complete, review.correct, review.truthful) for review in reviews] == [*ratings.values()]
    assert [review.reviewer for review in reviews] == [f"feedbackqa-rater-{n}" for n in (1, 2, 3, 4)]
    assert {review.interaction_id for review in reviews} == {"feedbackqa-fb-1"}
    assert [list(row.iter_contents()) for row in rows[1:]] == [[review] for review in reviews[1:]]
    assert unrated.interaction is not None and unrated.review is None


def test_feedbackqa_page_is_one_document_with_sections(tmp_path: Path) -> None:
    here = {"kb_id": "WHO-0"}
    items = import_all(
        tmp_path,
        here | make_passage(1),
        here | make_passage(2, section_headers=["Cards", "Gold \n card "]),
        here | make_passage(3, section_headers=["Cards", "Gold card"]),
        here | make_passage(4, section_headers=["Cards"]),
        here | make_passage(5, section_headers=[]),
        here | make_passage(6, section_headers=["Loans", "Gold card"], text="  # no heading\n| no table\n  <b>\n---"),
        here | make_passage(1, domain="UK"),
    )
    first, second = items
    assert isinstance(first, DocumentFile) and isinstance(second, DocumentFile)
    document = parse_document(first.text, first.name)
    assert (document.title, document.product) == ("Fees", "WHO")
    assert document.body.strip().split("\n\n") == [
        "# Cards", "Passage 1.", "## Gold card", "Passage 2.", "Passage 3.", "# Cards", "Passage 4.", "# Fees", "Passage 5.",
        "# Loans", "## Gold card", "\\# no heading\n\\| no table\n\\<b>\n\\---",
    ]  # fmt: skip
    assert parse_document(second.text, second.name).product == "UK"
    assert first.name != second.name


def test_feedbackqa_questions_without_answer_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match="holds questions without an answer: name human_feedback or kb_passages"):
        import_all(tmp_path, {"id": "q", "question": "?", "gold_kb_id": "WHO-1"})
    (skipped,) = import_all(tmp_path, make_rating("fb-1", "Bad", question=" "))
    assert skipped == SkippedRecord("the question or the passage is empty")
