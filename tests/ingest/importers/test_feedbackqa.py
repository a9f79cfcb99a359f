from collections import Counter
from pathlib import Path

import pytest

from abstain.core.errors import AbstainError
from abstain.ingest.importers import DocumentFile, Item, Skipped
from abstain.ingest.importers.feedbackqa import read
from abstain.ingest.pipeline.parsing import parse_object
from abstain.knowledge.documents.reader import parse_document
from tests.ingest.importers.upstream import SHARED, passage, rated, write_records


def import_all(folder: Path, *records: dict) -> list[Item]:
    return list(read([write_records(folder / "a.jsonl.gz", *records)]))


@pytest.mark.parametrize(
    ("rating", "flags"),
    [
        ("Excellent", (True, True, True)),
        ("Acceptable", (False, True, True)),
        ("Could be Improved", (False, False, True)),
        ("Bad", (False, False, True)),
    ],
)
def test_feedbackqa_rating_is_a_review(tmp_path: Path, rating: str, flags: tuple[bool, ...]) -> None:
    (row,) = import_all(tmp_path, rated("fb-1", rating))
    review = parse_object(row, "a", 1).review
    assert review is not None and (review.complete, review.correct, review.truthful) == flags


def test_feedbackqa_every_rater_gives_a_review(tmp_path: Path) -> None:
    joined, second, third, unrated = import_all(tmp_path, rated("fb-1", "Excellent", "Bad", "Bad"), rated("fb-2"))
    found = parse_object(joined, "a", 1)
    assert found.interaction is not None and found.review is not None
    assert found.interaction.answer == found.interaction.contexts[0].text == "Passage 1."
    assert found.interaction.product == "WHO"
    assert found.interaction.contexts[0].chunk_id == f"{found.interaction.group}#passage-7"
    alone = [parse_object(item, "a", 1) for item in (second, third)]
    assert [list(row.contents()) for row in alone] == [[row.review] for row in alone]
    assert [row.review.reviewer for row in (found, *alone) if row.review] == [
        f"feedbackqa-rater-{n}" for n in (1, 2, 3)
    ]
    assert {row.review.interaction_id for row in (found, *alone) if row.review} == {"feedbackqa-fb-1"}
    assert parse_object(unrated, "a", 1).review is None


def test_feedbackqa_page_is_one_document_with_sections(tmp_path: Path) -> None:
    here = {"kb_id": "WHO-0"}
    items = import_all(
        tmp_path,
        here | passage(1),
        here | passage(2, section_headers=["Cards", "Gold \n card "]),
        here | passage(3, section_headers=["Cards", "Gold card"]),
        here | passage(4, section_headers=["Cards"]),
        here | passage(5, section_headers=[]),
        here | passage(6, section_headers=["Loans", "Gold card"], text="  # no heading\n| no table\n  <b>\n---"),
        here | passage(1, domain="UK"),
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
    (skipped,) = import_all(tmp_path, rated("fb-1", "Bad", question=" "))
    assert skipped == Skipped("the question or the passage is empty")


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the published sets are not beside this checkout")
def test_feedbackqa_published_files_are_imported() -> None:
    folder = SHARED / "feedbackqa"
    items = list(read([folder / "human_feedback.jsonl.gz", folder / "kb_passages.jsonl.gz"]))
    documents = [parse_document(item.text, item.name) for item in items if isinstance(item, DocumentFile)]
    found = [parse_object(item, "a", 1) for item in items if not isinstance(item, DocumentFile | Skipped)]
    assert [row.reasons for row in found if row.reasons] == []
    assert Counter(type(part).__name__ for row in found for part in row.contents()) == {
        "Interaction": 1929,
        "Review": 3858,
    }
    assert len(documents) == 284
    cited = {row.interaction.group for row in found if row.interaction}
    assert cited <= {document.doc_id for document in documents}
