"""Ways of calling LangChain, LlamaIndex and NeMo Guardrails, as they are published, that could go past the gate."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.conftest import Count
from tests.serving.gateways.test_real import FRAMEWORKS, environment, run_in

WRONG = "the wrong answer"
EXCEPTIONS = {"LangChain": set(), "LlamaIndex": {"CustomQueryEngine"}, "NeMo Guardrails": set()}
"""What docs/howto/gateways/langchain.md says that no callback sees."""


@pytest.mark.soak(twin="test_what_runs_outside_of_a_chain_is_refused")
def test_no_way_of_calling_a_framework_shows_more(tmp_path: Path, assert_repelled: Count) -> None:
    python = environment(tmp_path / "frameworks", *FRAMEWORKS) / "python"
    ways = run_in(python, "attacks/framework_ways.py")
    assert all(WRONG in text for text in ways.pop("controls").values())
    shown = {name: {way for way, text in of.items() if WRONG in text} for name, of in ways.items()}
    assert shown == EXCEPTIONS
    tried = sum(map(len, ways.values())) - sum(map(len, EXCEPTIONS.values()))
    assert_repelled("calls of LangChain, LlamaIndex and NeMo Guardrails", tried, tried)
