"""Which heavy libraries an entry point imports: those that it runs, for each costs seconds and many megabytes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

import abstain
from tests.conftest import ROOT

ONNX = "onnx onnxruntime"
EXPECTED = {
    "abstain": "",
    "abstain_tasks.runs.supervisor": "",
    "abstain.stages.validate.__main__": "pandas",
    "abstain.stages.dataset.__main__": "pandas scipy",
    "abstain.stages.choose_site": "pandas sklearn torch",
    "abstain.stages.features.__main__": "pandas torch",
    "abstain.stages.nll_features.__main__": "pandas torch",
    "abstain.stages.train_probe.__main__": "pandas sklearn torch",
    "abstain.stages.train_regressors.__main__": f"{ONNX} pandas sklearn",
    "abstain.stages.train_fusion.__main__": "pandas",
    "abstain.stages.choose_scorer.__main__": "pandas sklearn torch",
    "abstain.stages.tune_threshold.__main__": "pandas",
    "abstain.stages.export_onnx.__main__": f"{ONNX} pandas sklearn torch",
    "abstain.stages.ablate.__main__": "pandas sklearn torch",
    "abstain.stages.evaluate.__main__": f"{ONNX} pandas sklearn torch",
    "abstain.stages.report.__main__": "matplotlib pandas",
    "abstain.sample.__main__": "",
    "abstain.sample.shipped": "",
    "abstain.serving.scorer_latency": f"{ONNX} torch",
    "abstain_cli.progress_bar": "",
    "abstain_cli.cache": "",
    "abstain_cli.app": "",
    "abstain_cli.demo": "",
    "abstain_cli.entry": "",
    "abstain_cli.explain": "",
    "abstain_cli.familiarity": "",
    "abstain_cli.guarantee_summary": "",
    "abstain_cli.score": "",
    "abstain_cli.serve": "",
    "abstain_cli.shadow": "",
    "abstain_flows.demo": f"{ONNX} pandas prefect torch",
    "abstain_flows.extract": "prefect torch",
    "abstain_cli.init": "",
    "abstain_flows.ingest": "pandas prefect",
    "abstain_flows.notify": "prefect",
    "abstain_cli.kb": "",
    "abstain_cli.monitor": "",
    "abstain_flows.monitor": "pandas prefect",
    "abstain_cli.plan": "",
    "abstain_flows.promote": "pandas prefect",
    "abstain_cli.quarantine": "",
    "abstain_flows.retrain": "pandas prefect",
    "abstain_cli.retention": "",
    "abstain_flows.retention": "prefect",
    "abstain_cli.review": "",
    "abstain_cli.terminal": "",
    "abstain_tasks.server.__main__": "",
    # What the commands that only look call, and what is imported where a cheap thing is wanted of a costly package.
    "abstain_cli.app:main --help": "",
    "abstain_tasks.training.plan": "",
    "abstain.serving.predictor": f"{ONNX} torch",
    "abstain_tasks.runs.workspace": "",
    "abstain.ingest.pipeline.run": "",
    "abstain.learning.estimators.correctness_targets": "pandas",
    "abstain.learning.metrics.rouge": "",
    "tests.import_probe:count_tokens": "",
    "tests.import_probe:apply_calibrations": "",
}
"""Entry point -> the heavy libraries that it may import before it knows what there is to do."""


MADE_UP = {
    "made_up_chain": ("import made_up_probe", "torch"),
    "made_up_probe": ("from torch import nn\nclass Probe(nn.Module):\n    size: nn.Size | None = None", "torch"),
    "made_up_lazy": ("def run():\n    import prefect.flows", ""),
    "made_up_lazy:run": ("", "prefect"),
}
"""Modules that show that the probe sees: what they hold, and what they import."""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("made_up")
    for name, (text, _) in MADE_UP.items():
        if text:
            (folder / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "tests.import_probe", *EXPECTED, *MADE_UP],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), str(folder)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.heavy
@pytest.mark.parametrize("entry", MADE_UP)
def test_probe_sees_what_a_module_imports(entry: str, imported: dict[str, list[str]]) -> None:
    assert " ".join(imported[entry]) == MADE_UP[entry][1]


@pytest.mark.heavy
@pytest.mark.parametrize("entry", EXPECTED)
def test_entry_point_imports_only_what_it_runs(entry: str, imported: dict[str, list[str]]) -> None:
    assert " ".join(imported[entry]) == EXPECTED[entry]


def test_every_entry_point_is_in_the_list() -> None:
    packages = {
        "abstain": ROOT / "src" / "abstain",
        "abstain_cli": ROOT / "src" / "abstain_cli",
        "abstain_flows": ROOT / "flows",
        "abstain_tasks": ROOT / "tasks",
    }
    runnable = {
        ".".join((name, *file.relative_to(folder).with_suffix("").parts))
        for name, folder in packages.items()
        for file in folder.rglob("*.py")
        if "__main__" in file.read_text() or file.name == "__main__.py" or name in ("abstain_cli", "abstain_flows")
    }
    assert {name for name in runnable if not name.endswith("__init__")} - EXPECTED.keys() == set()


@pytest.mark.heavy
def test_public_names_are_documented() -> None:
    page = (ROOT / "docs" / "reference" / "api" / "public.md").read_text()
    assert set(re.findall(r"`(\w+)`", page.partition("| --- |")[2])) >= set(abstain.__all__)
