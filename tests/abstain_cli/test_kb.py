import re
from pathlib import Path

import pytest

from abstain.core.codes import Code
from abstain.core.contracts import Chunk
from abstain.knowledge.documents.chunks import chunk_document
from abstain.knowledge.documents.reader import parse_document, serialize_document
from benchmarks import recall
from tests.abstain_cli.conftest import fail, invoke
from tests.factories import write_lines
from tests.knowledge.builders import BagOfWords, chunk

PAGES = {
    "gold.md": "---\ndoc_id: gold\ntitle: Gold\nproduct: cards\nentitlements: []\nupdated_at: 2026-08-01T00:00:00Z\n---\n"
    "# Fees\n\nThe fee is a fee\n\n# Limits\n\nThe limit\n",
    "lost.md": "---\nupdated_at: 2026-08-01\n---\nThe fee\n",
    "staff.html": '<title>Staff</title><meta name="doc_id" content="staff"><meta name="entitlements" content="staff">'
    '<meta name="updated_at" content="2026-08-01T00:00:00Z"><ul><li>fee fee fee</ul>',
}


@pytest.fixture
def encoder(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> BagOfWords:
    """The data of a workspace, and an encoder that needs no model."""
    encoder = BagOfWords()
    monkeypatch.setattr("abstain.knowledge.retrieval.retriever.SentenceEncoder", lambda device: encoder)
    documents = [parse_document(text.encode(), name) for name, text in PAGES.items()]
    write(workspace, [chunk for document in documents for chunk in chunk_document(document)])
    (workspace / "data" / "documents").mkdir()
    for document in documents:
        (workspace / "data" / "documents" / f"{document.doc_id}.md").write_bytes(serialize_document(document))
    return encoder


def write(root: Path, chunks: list[Chunk]) -> None:
    (root / "data").mkdir(exist_ok=True)
    (root / "data" / "chunks.jsonl").write_text("".join(f"{chunk.to_json_line()}\n" for chunk in chunks))


def test_search_prints_only_permitted_chunks(encoder: BagOfWords, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = invoke("kb", "search", "fee")
    hits = re.findall(r"^(\d)\. (\d\.\d{3})  (\w+)#\w{10}(.*)$", printed, re.MULTILINE)
    assert hits == [("1", "1.000", "gold", ""), ("2", "0.000", "gold", "")]
    assert "   Gold › Fees\n   The fee is a fee\n" in printed
    printed = invoke("kb", "search", "fee", "-e", "staff", "-e", "board", "-k", "1", "--doc", "staff")
    assert re.search(r"^1\. 1\.000  staff#\w{10}  needs staff$", printed, re.MULTILINE)
    assert "staff#" not in invoke("kb", "search", "fee", "-e", "board", "-k", "99")
    assert invoke("kb", "search", "fee", "-e", "staff", "--product", "cards").count("gold#") == 2
    assert invoke("kb", "search", "fee", "--doc", "staff").startswith("nothing that this user may read\n")
    monkeypatch.setenv("ABSTAIN_INDEX", "http://search:9200")
    assert fail("kb", "search", "fee") is Code.BAD_SETTING


def test_commands_count_what_nobody_can_read(encoder: BagOfWords, workspace: Path) -> None:
    printed = invoke("kb", "search", "fee", "-e", "nobody", "-e", "staff", "-k", "99")
    assert "lost#" not in printed and printed.count("staff#") == 1
    for text in (printed, invoke("kb", "sync")):
        assert "nobody can read 1 documents" in text and "(lost)" in text
    write(workspace, chunk_document(parse_document(PAGES["staff.html"].encode(), "staff.html")))
    assert "nobody" not in invoke("kb", "sync")


def test_search_prints_page_and_heading(encoder: BagOfWords, workspace: Path) -> None:
    write(workspace, [chunk("a#1", "Gold > Fees\nA fee", section_path=("Gold", "Fees"), page=3)])
    assert "a#1\n   Gold › Fees, page 3\n   A fee\n" in invoke("kb", "search", "fee")


def test_sync_counts_chunks_and_encodes_only_new_ones(encoder: BagOfWords) -> None:
    assert invoke("kb", "sync").startswith("4 chunks written, 0 removed; 4 can be found; ABSTAIN_INDEX is not set")
    encoded = len(encoder.encoded)
    invoke("kb", "sync")
    invoke("kb", "search", "fee")
    assert encoder.encoded[encoded:] == ["fee"]


def test_sync_removes_tombstones_and_needs_chunks(encoder: BagOfWords, tmp_path: Path) -> None:
    """A shared index has to forget what was removed."""
    chunks = chunk_document(parse_document(PAGES["gold.md"].encode(), "gold.md"))
    write(tmp_path, [chunk.model_copy(update={"removed_at": chunk.updated_at}) for chunk in chunks])
    assert invoke("kb", "sync").startswith("0 chunks written, 0 removed; 0 can be found")
    assert fail("kb", "search", "fee") is Code.NO_ROWS
    write(tmp_path, [])
    assert fail("kb", "sync") is Code.NO_ROWS


def test_recall_over_a_file(encoder: BagOfWords, tmp_path: Path) -> None:
    rows = [
        {"question": "fee", "gold": ["gold"]},
        {"question": "limit", "gold": ["gold"]},
        {"question": "fee", "gold": ["staff"], "entitlements": ["staff"]},
        {"question": "fee", "gold": ["staff"]},
    ]
    file = write_lines(tmp_path / "q.jsonl", *rows)
    printed = invoke(str(file), app=recall.app)
    recalls = dict(re.findall(r"│ (\d+) +│ (\d\.\d{3}) ", printed))
    assert recalls == {"1": "0.667", "3": "1.000", "5": "1.000", "10": "1.000", "25": "1.000"}
    assert "3 questions over 4 chunks; 1 questions left out" in printed
    write_lines(file, rows[3])
    assert fail(str(file), app=recall.app) is Code.NO_ROWS
