"""The benchmarks run, so that they never rot: small, and not for their figures."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from benchmarks.scorers import FILE as JUDGED
from tests.conftest import MODELS, ROOT

pytestmark = pytest.mark.slow

ENVIRONMENT = os.environ | {"ABSTAIN_HOME": str(MODELS.parent), "OMP_NUM_THREADS": "1", "ABSTAIN_DEVICE": "cpu"}


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_gpu_benchmark_runs_small() -> None:
    said = run("benchmarks.gpu_extract", "--small", "--rows", "2", "--runs", "2")
    assert len(re.findall(r"^\| (?:states, layer|all asks)", said, re.MULTILINE)) == 6
    assert len(re.findall(r"^\| [48] \| [7531] \| \d+\.\d \| \d+\.\d \|$", said, re.MULTILINE)) == 8


def test_the_extraction_benchmark_compares_before_it_times() -> None:
    said = run("benchmarks.extraction", "--rows", "4", "--repeats", "1")
    # Which of the two is said depends on the dtype that suits the processor.
    assert said.count("cosine at least 0.999") + said.count("equal within") == 4 and "equal within" in said
    assert "NLLs off from float32" in said


def test_the_perturbation_benchmark_compares_before_it_times() -> None:
    said = run("benchmarks.perturbation", "--contexts", "2", "--timed", "1", "--tokens", "2")
    counted = re.findall(r"\| \w+ \| \w+ \| [\d,]+ \| [\d,]+ \| \*\*\d+\.\d\d\*\* \| \d+ \|$", said, re.MULTILINE)
    assert len(counted) == 8 and said.count("2 of 2") == 4
    assert len(re.findall(r"a context \| 2 \| [\d,]+ \| [\d,]+ \|", said)) == 2


def test_the_memory_benchmark_runs_small() -> None:
    said = run("benchmarks.memory", "--rows", "200", "--width", "64")
    assert "assemble" in said and "train" in said


def test_the_scaling_benchmark_runs_small() -> None:
    said = run("benchmarks.scaling", "--rows", "40", "--sizes", "100", "--workers")
    share = re.search(r"(\d+\.\d+)% of that", said)
    assert share is not None and "| 100 |" in said


def test_the_retrieval_benchmark_runs_small() -> None:
    said = run("benchmarks.retrieval", "--parts", "sample", "latency", "--chunks", "2000", "--queries", "20")
    assert "| the sample | 530 | 1,088 |" in said and said.count("| pgvector |") == 4


def test_the_ingest_benchmark_runs_small(prefect_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENT, "PREFECT_API_URL", prefect_server)
    said = run("benchmarks.ingest", "--rows", "1000")
    counts = r"1,000 rows read, 9\d\d accepted, \d+ duplicate, 0 held, \d+ quarantined"
    assert re.search(rf"\| 1,000 \| ingest \| \d+\.\d \| \d+\.\d \| \d\.\d\d \| {counts} \|", said)
    assert re.search(r"\| 1,000 \| validate, dataset \| .* \| [\d,]+ labelled answers \|", said)
    assert "| 1,000 | together |" in said


def test_the_probe_benchmark_runs_small() -> None:
    said = run("benchmarks.probe", "--widths", "32", "--repeats", "1")
    assert all(name in said for name in ("linear", "lstm", "attention", "pca"))


@pytest.mark.skipif(not JUDGED.is_file(), reason="the published data is not beside the checkout")
def test_the_scorers_benchmark_runs_small() -> None:
    costly = ("verbalised", "yes_score", "yes_score_tokens")
    said = run("benchmarks.scorers", "--rows", "24", "--without", *costly)
    assert "24 training answers, 24 test answers" in said and "out-of-fold AUROC by place: residual 8 0." in said
    assert said.count("<- the best of them") == 1
    assert len(re.findall(r"^\| `\w+` \| 0\.\d{3} \|", said, re.MULTILINE)) > 12
