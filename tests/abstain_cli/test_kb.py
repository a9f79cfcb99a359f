from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer import Typer
from typer.testing import CliRunner

from abstain.core.contracts import Chunk
from abstain.core.errors import AbstainError
from abstain.knowledge.documents.chunks import chunk_document
from abstain.knowledge.documents.reader import parse_document
from abstain_cli import kb as kb_cli
from benchmarks import recall
from tests.knowledge.builders import BagOfWords

PAGES = {
    "gold.md": "---\ndoc_id: gold\ntitle: Gold\nproduct: cards\nupdated_at: 2026-08-01T00:00:00Z\n---\n"
    "# Fees\n\nThe fee is a fee\n\n# Limits\n\nThe limit\n",
    "staff.html": '<title>Staff</title><meta name="doc_id" content="staff"><meta name="entitlements" content="staff">'
    '<meta name="updated_at" content="2026-08-01T00:00:00Z"><ul><li>fee fee fee</ul>',
}


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BagOfWords:
    """The data of a workspace, and an encoder that needs no model."""

    @contextmanager
    def open_workspace() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(path=tmp_path)

    made = BagOfWords()
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ABSTAIN_INDEX", raising=False)
    monkeypatch.setattr("abstain_tasks.runs.workspace.open_workspace", open_workspace)
    monkeypatch.setattr("abstain.knowledge.retrieval.retriever.SentenceEncoder", lambda device: made)
    monkeypatch.setattr(kb_cli.console, "width", 160)
    chunks = [chunk for name, text in PAGES.items() for chunk in chunk_document(parse_document(text, name))]
    write(tmp_path, chunks)
    for name, text in PAGES.items():
        (tmp_path / "data" / "documents").mkdir(exist_ok=True)
        (tmp_path / "data" / "documents" / name).write_text(text)
    return made


def write(root: Path, chunks: list[Chunk]) -> None:
    (root / "data").mkdir(exist_ok=True)
    (root / "data" / "chunks.jsonl").write_text("".join(f"{chunk.to_json_line()}\n" for chunk in chunks))


def kb(*arguments: str, app: Typer = kb_cli.app) -> str:
    done = CliRunner().invoke(app, arguments)
    if isinstance(done.exception, AbstainError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_search_shows_what_the_asker_may_read(encoder: BagOfWords) -> None:
    said = kb("search", "fee")
    assert re.findall(r"^(\d)\. (\d\.\d{3})  (\w+)#\w{10}(.*)$", said, re.MULTILINE) == [
        ("1", "1.000", "gold", ""),
        ("2", "0.000", "gold", ""),
    ]
    assert "   Gold > Fees\n   The fee is a fee\n" in said
    said = kb("search", "fee", "-e", "staff", "-e", "board", "-k", "1", "--doc", "staff")
    assert re.search(r"^1\. 1\.000  staff#\w{10}  needs staff$", said, re.MULTILINE)
    assert "staff#" not in kb("search", "fee", "-e", "board", "-k", "99")
    assert kb("search", "fee", "-e", "staff", "--product", "cards").count("gold#") == 2
    assert kb("search", "fee", "--doc", "staff") == "nothing that this user may read\n"


def test_sync_tells_what_it_did_and_encodes_what_is_new(encoder: BagOfWords) -> None:
    assert kb("sync") == (
        "3 chunks written, 0 removed; 3 can be found; ABSTAIN_INDEX is not set: the index lives as long as one command, "
        "only embeddings are kept\n"
    )
    encoded = len(encoder.encoded)
    kb("sync")
    kb("search", "fee")
    assert encoder.encoded[encoded:] == ["fee"]


def test_empty_knowledge_base_is_one_line_and_one_of_tombstones_can_be_synced(
    encoder: BagOfWords, tmp_path: Path
) -> None:
    """A shared index has to forget what was removed."""
    chunks = chunk_document(parse_document(PAGES["gold.md"], "gold.md"))
    write(tmp_path, [chunk.model_copy(update={"removed_at": chunk.updated_at}) for chunk in chunks])
    assert kb("sync").startswith("0 chunks written, 0 removed; 0 can be found")
    message = r"^the knowledge base is empty: `abstain ingest` a folder of Markdown or HTML"
    with pytest.raises(AbstainError, match=message):
        kb("search", "fee")
    write(tmp_path, [])
    with pytest.raises(AbstainError, match=message):
        kb("sync")


def test_recall_over_a_file(encoder: BagOfWords, tmp_path: Path) -> None:
    rows = [
        {"question": "fee", "gold": ["gold"]},
        {"question": "limit", "gold": ["gold"]},
        {"question": "fee", "gold": ["staff"], "entitlements": ["staff"]},
        {"question": "fee", "gold": ["staff"]},
    ]
    file = tmp_path / "q.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    said = kb(str(file), app=recall.app)
    assert re.findall(r"│ (\d+) +│ (\d\.\d{3}) ", said) == [("1", "0.667"), ("3", "1.000"), ("5", "1.000"), ("10", "1.000"), ("25", "1.000")]  # fmt: skip
    assert "3 questions over 3 chunks; 1 questions left out: they have no gold chunk that still exists" in said
    file.write_text(json.dumps(rows[3]))
    with pytest.raises(AbstainError, match=r"q.jsonl: of 1 questions none has a gold chunk or document that is in the"):
        kb(str(file), app=recall.app)


def test_an_empty_question_and_a_wrong_index_are_one_line(encoder: BagOfWords, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AbstainError, match="^the question is empty: write what you look for$"):
        kb("search", " ")
    monkeypatch.setenv("ABSTAIN_INDEX", "http://search:9200")
    with pytest.raises(AbstainError, match="^ABSTAIN_INDEX is no URL of a PostgreSQL database"):
        kb("search", "fee")
