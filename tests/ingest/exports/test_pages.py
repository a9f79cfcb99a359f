"""The mapping of each page, on an export with that tool's schema: what the pages promise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from abstain.core.contracts import Context, Interaction, Review, Thumb
from abstain.ingest.parsing import ParsedRow
from abstain.ingest.sources.export import make_explicit_export
from tests.checkout import ROOT

PAGES = ROOT / "docs" / "howto" / "exports"
FIXTURES = Path(__file__).parent / "fixtures"
QUESTION, ANSWER = "What does the Gold card cost?", "It costs 90 euros a year."
FEES = Context(chunk_id="cards-gold#fees", text="The Gold card costs 90 euros a year.")


def write_mapping(page: str, folder: Path) -> str:
    """The mapping that a page shows, as a file."""
    (block,) = re.findall(r"```yaml\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.DOTALL)
    (folder / f"{page}.yaml").write_text(block)
    return str(folder / f"{page}.yaml")


def read(page: str, folder: Path) -> tuple[list[ParsedRow], tuple[str, ...]]:
    reading = make_explicit_export([str(FIXTURES / page.replace("-", "_"))], write_mapping(page, folder)).read({})
    rows = list(reading)
    assert [row.reasons for row in rows if row.reasons] == []
    return rows, reading.outcome.notes


def contents(rows: list[ParsedRow], contract: type[Any]) -> list[Any]:
    return [part for row in rows for part in row.iter_contents() if isinstance(part, contract)]


def format_times(rows: list[Any], field: str) -> list[str]:
    return [f"{getattr(row, field):%m-%d %H:%M:%S}" for row in rows]


def test_page_mapping_langfuse(tmp_path: Path) -> None:
    rows, notes = read("langfuse", tmp_path)
    gold, loan = contents(rows, Interaction)
    assert (gold.interaction_id, gold.question, gold.answer, gold.product) == ("t-1", QUESTION, ANSWER, "cards")
    assert gold.contexts[0] == FEES and len(gold.contexts) == 2 and loan.contexts == ()
    assert format_times([gold], "asked_at") == ["10-05 09:30:00"]
    up, down = contents(rows, Thumb)
    assert (up.interaction_id, up.thumb, up.user, up.comment) == ("t-1", "up", "score s-1", "Short, and right.")
    assert (down.interaction_id, down.thumb, down.comment) == ("t-2", "down", None)
    (review,) = contents(rows, Review)
    assert (review.interaction_id, review.reviewer, review.correct, review.complete) == ("t-2", "ann", False, False)
    assert review.ideal_answer == "Only with three months' notice."
    assert format_times([review], "reviewed_at") == ["10-06 08:00:30"]
    assert any("correctness (1)" in note and "machine" in note for note in notes)
    assert any("helpfulness (1)" in note and "not mapped" in note for note in notes)


def test_page_mapping_phoenix(tmp_path: Path) -> None:
    rows, notes = read("phoenix", tmp_path)
    (gold,) = contents(rows, Interaction)
    assert (gold.question, gold.answer, gold.model) == (QUESTION, ANSWER, "helpdesk@7")
    assert gold.contexts[0] == FEES and len(gold.contexts) == 2
    (thumb,), (review,) = contents(rows, Thumb), contents(rows, Review)
    assert (thumb.interaction_id, thumb.thumb, thumb.user) == (gold.interaction_id, "up", "user-123")
    assert (review.interaction_id, review.reviewer, review.correct) == (gold.interaction_id, "VXNlcjoy", True)
    assert any("toxicity (1)" in note for note in notes) and any("correctness (1)" in note for note in notes)


def test_page_mapping_label_studio(tmp_path: Path) -> None:
    rows, notes = read("label-studio", tmp_path)
    (gold,), (review,) = contents(rows, Interaction), contents(rows, Review)
    assert (gold.interaction_id, gold.question, gold.contexts) == ("q-1", QUESTION, (FEES,))
    assert (review.reviewer, review.complete, review.correct, review.truthful) == ("ann@bank.example", True, True, True)
    assert review.ideal_answer == "90 euros a year, the first year is free."
    assert format_times([review], "reviewed_at") == ["10-06 08:05:00"]
    assert any("cancelled" in note for note in notes) and any("tone (1)" in note for note in notes)


def test_page_mapping_argilla(tmp_path: Path) -> None:
    rows, notes = read("argilla", tmp_path)
    assert {row.interaction_id: row.question for row in contents(rows, Interaction)} == {
        "q-1": QUESTION,
        "q-2": "May I repay a loan early?",
    }
    assert all(len(row.contexts) == 1 for row in contents(rows, Interaction))
    verdicts = {(row.interaction_id, row.reviewer[-1]): row.correct for row in contents(rows, Review)}
    assert verdicts == {("q-1", "a"): True, ("q-1", "b"): False, ("q-2", "a"): False}
    assert any("draft" in note for note in notes) and any("usefulness (1)" in note for note in notes)


def test_page_mapping_open_webui(tmp_path: Path) -> None:
    rows, notes = read("open-webui", tmp_path)
    (gold,), (thumb,) = contents(rows, Interaction), contents(rows, Thumb)
    assert (gold.interaction_id, gold.question, gold.answer, gold.model) == ("m-2", QUESTION, ANSWER, "helpdesk")
    assert [context.text for context in gold.contexts] == [FEES.text]
    assert (thumb.interaction_id, thumb.thumb, thumb.comment) == ("m-2", "down", "It is free in the first year.")
    assert format_times([gold], "asked_at") == ["10-05 09:30:01"] and format_times([thumb], "given_at") == [
        "10-05 09:31:05"
    ]
    assert any("details.rating (1)" in note and "reason (1)" in note for note in notes)


def test_page_mapping_table(tmp_path: Path) -> None:
    rows, notes = read("table", tmp_path)
    assert [row.question for row in contents(rows, Interaction)] == [
        "Was kostet die Goldkarte?",
        "Kann ich früher tilgen?",
    ]
    (thumb,), (review,) = contents(rows, Thumb), contents(rows, Review)
    assert (thumb.interaction_id, thumb.thumb, thumb.user) == ("v-1", "up", None)
    assert (review.interaction_id, review.reviewer, review.correct) == ("v-2", "ann", False)
    assert any("Kanal (2)" in note for note in notes)


@pytest.mark.parametrize("page", sorted(path.stem for path in PAGES.glob("*.md") if path.stem != "index"))
def test_export_page_has_a_fixture_and_an_index_entry(page: str) -> None:
    assert (FIXTURES / page.replace("-", "_")).is_dir()
    assert f"({page}.md)" in (PAGES / "index.md").read_text()
