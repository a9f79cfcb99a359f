"""The mapping of each page of the documentation, on an export of that tool, gives the rows in `expected`."""

import json
from pathlib import Path

import pytest

from abstain.ingest.sources.export import make_explicit_export
from tests.checkout import ROOT

PAGES = ROOT / "docs" / "howto" / "exports"
FIXTURES = Path(__file__).parent / "fixtures"
EXPECTED = Path(__file__).parent / "expected"
NOTES = {
    "langfuse": ["machine, not taken: correctness (1)", "not mapped: helpfulness (1)"],
    "phoenix": ["toxicity (1)", "correctness (1)"],
    "label-studio": ["cancelled", "tone (1)"],
    "argilla": ["draft", "usefulness (1)"],
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


def test_export_pages_are_tested_and_in_the_index() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == {*NOTES, "index"}
    assert [page for page in NOTES if f"({page}.md)" not in (PAGES / "index.md").read_text()] == []
