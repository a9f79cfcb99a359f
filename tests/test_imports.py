"""Commands start without libraries that cost seconds, and a stage loads no more of them than it runs."""

import json
import re
import subprocess
import sys

import pytest

import abstain
from tests.checkout import ROOT

HEAVY = (
    "dvc great_expectations matplotlib onnxruntime pandas prefect presidio_analyzer scipy sklearn torch transformers"
)
COMMANDS = [f"abstain_cli.{file.stem}" for file in (ROOT / "src" / "abstain_cli").glob("[!_]*.py")]


def import_alone(*modules: str) -> set[str]:
    """Import `modules` in a process of their own and return which of `HEAVY` are loaded then."""
    code = (
        "import importlib, json, sys; names = json.loads(sys.argv[1]); [importlib.import_module(n) for n in names]; "
        "print(json.dumps([name for name in sys.argv[2].split() if name in sys.modules]))"
    )
    command = [sys.executable, "-c", code, json.dumps(modules), HEAVY]
    return set(json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("modules", "loaded"),
    [
        ([*COMMANDS, "abstain_tasks.server.__main__", "abstain_tasks.training.plan"], set()),
        (["abstain.serving.gate", "abstain.ingest.pipeline.run"], {"torch", "onnxruntime"}),
        (["abstain.stages.validate.__main__", "abstain.stages.train_fusion.__main__"], {"pandas"}),
    ],
    ids=["commands", "gate", "stages"],
)
def test_import_loads_only_what_runs(modules: list[str], loaded: set[str]) -> None:
    assert import_alone(*modules) == loaded


def test_public_names_are_documented() -> None:
    page = (ROOT / "docs" / "reference" / "api" / "public.md").read_text()
    assert set(re.findall(r"`(\w+)`", page.partition("| --- |")[2])) >= set(abstain.__all__)
