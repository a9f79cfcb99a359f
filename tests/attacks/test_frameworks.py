"""Ways of calling LangChain, LlamaIndex and NeMo Guardrails, as they are published, that could go past the gate."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.attacks.conftest import Count
from tests.checkout import ROOT
from tests.serving.gateways.test_real import make_environment

WRONG = "the wrong answer"
FRAMEWORKS = ("nemoguardrails", "langchain-core", "llama-index-core", "pydantic-settings")
"""What an environment of the client's adapters needs; the last is a dependency of this project."""
EXCEPTIONS = {"LangChain": set(), "LlamaIndex": {"CustomQueryEngine"}, "NeMo Guardrails": set()}
"""What docs/howto/gateways/langchain.md says that no callback sees."""


@pytest.mark.soak(twin="test_langchain_run_outside_of_a_chain_raises")
def test_framework_calls_show_nothing_withheld(tmp_path: Path, assert_repelled: Count) -> None:
    run = subprocess.run(
        [make_environment(tmp_path / "frameworks", *FRAMEWORKS) / "python", ROOT / "tests/attacks/framework_ways.py"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    ways = json.loads(run.stdout)
    assert all(WRONG in text for text in ways.pop("controls").values())
    shown = {name: {way for way, text in texts.items() if WRONG in text} for name, texts in ways.items()}
    assert shown == EXCEPTIONS
    tried = sum(map(len, ways.values())) - sum(map(len, EXCEPTIONS.values()))
    assert_repelled("calls of LangChain, LlamaIndex and NeMo Guardrails", tried, tried)
