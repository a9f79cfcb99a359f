from collections import Counter
from pathlib import Path

import pytest

from abstain.knowledge.documents.reader import parse_document
from benchmarks.datasets import DocumentFile, Item, SkippedRecord
from benchmarks.datasets.squad import read
from tests.benchmarks.datasets.upstream import make_question, squad, write_json

pytestmark = pytest.mark.soak(twin="test_import_command_of_every_format_writes_rows")


def rows_of(items: list[Item]) -> list[dict]:
    return [dict(item) for item in items if not isinstance(item, DocumentFile | SkippedRecord)]


FILE = squad(
    (
        "Zoë_Bank",
        [
            (
                "The card is free.",
                [make_question("q-1", "free", "is free"), make_question("q-2", plausible=["the card", "free"])],
            ),
            (
                "# Rates rise.",
                [
                    make_question("q-3", " rise "),
                    make_question("q-4", plausible=[]),
                    make_question("q-5"),
                    make_question("q-6", "x", question=" "),
                ],
            ),
        ],
    )
)


def test_squad_marked_answers_are_correct_plausible_ones_not(tmp_path: Path) -> None:
    items = list(read([write_json(tmp_path / "a.json.gz", FILE)]))
    rows = rows_of(items)
    assert [(row["interaction_id"], row["answer"], row["review"]["correct"]) for row in rows] == [
        ("squad-q-1", "free", True),
        ("squad-q-2", "the card", False),
        ("squad-q-3", " rise ", True),
    ]
    assert all(row["review"]["complete"] == row["review"]["truthful"] == row["review"]["correct"] for row in rows)
    assert [row["contexts"][0]["chunk_id"].rpartition("#")[2] for row in rows] == [
        "paragraph-1",
        "paragraph-1",
        "paragraph-2",
    ]
    assert [item.reason for item in items if isinstance(item, SkippedRecord)] == [
        "unanswerable, without a plausible answer",
        "no answer is marked",
        "the question is empty",
    ]


def test_squad_unanswerable_questions_may_be_skipped(tmp_path: Path) -> None:
    items = list(read([write_json(tmp_path / "a.json", FILE)], unanswerable="skip"))
    assert [row["interaction_id"] for row in rows_of(items)] == ["squad-q-1", "squad-q-3"]
    assert Counter(item.reason for item in items if isinstance(item, SkippedRecord))["unanswerable, as requested"] == 2


def test_squad_article_in_two_files_is_one_document(tmp_path: Path) -> None:
    more = squad(("Zoë_Bank", [("The card is free.", [make_question("q-7", "free")]), ("It is gold.", [])]))
    files = [write_json(tmp_path / "a.json", FILE), write_json(tmp_path / "b.json", more)]
    items = list(read(files))
    (file,) = (item for item in items if isinstance(item, DocumentFile))
    document = parse_document(file.text, file.name)
    assert document.title == "Zoë Bank"
    assert document.body.strip() == "The card is free.\n\n\\# Rates rise.\n\nIt is gold."
    assert file.name == f"{document.doc_id}.md"
    for row in rows_of(items):
        assert row["contexts"][0]["chunk_id"].startswith(f"{document.doc_id}#")
        assert row["group"] == "Zoë_Bank"
