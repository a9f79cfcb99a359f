"""The benchmarks run, so that they never rot: small here, with a tiny base model; `make soak` has the embedded one."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

from abstain.config.settings import Settings
from abstain.llm.engine.decoder import Decoder
from abstain.llm.engine.loading import find_model, load_tokenizer
from abstain.llm.familiarity.familiarity import FamiliarityConfig
from benchmarks import extraction, familiarity, perturbation, question_familiarity, scaling, scorers
from benchmarks.full_params import full_params
from benchmarks.gpu import equality
from studies.familiarity_baselines import BASELINES
from tests.conftest import MODELS, ROOT, Project
from tests.llm.builders import save_tiny_model

pytestmark = pytest.mark.slow

NEEDS_VERDICTS = pytest.mark.skipif(not scorers.FILE.is_file(), reason="the published data is not beside the checkout")
COSTLY = ("familiarity", "verbalized", "yes_score", "yes_score_tokens")
SHORT = partial(FamiliarityConfig, explanation_tokens=6, beams=2, guess_tokens=10)
Main = Callable[[list[str]], None]


@pytest.fixture(scope="module")
def deep_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Narrow, with random weights, in as many layers as the embedded model has, and with its tokenizer."""
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(find_model("smollm2-135m-instruct", Settings(home=MODELS.parent)))
    folder = save_tiny_model(
        tmp_path_factory.mktemp("models") / "tiny-deep",
        num_hidden_layers=30,
        max_position_embeddings=8192,
        initializer_range=0.1,
        vocab_size=len(tokenizer),
    )
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def printed(
    deep_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What a benchmark prints of the tiny model, in this process."""
    for name, value in {"HOME": str(tmp_path), "DEVICE": "cpu", "DTYPE": "float32"}.items():
        monkeypatch.setenv(f"ABSTAIN_{name}", value)

    def of(main: Main, *arguments: str) -> str:
        main([*arguments, "--model", str(deep_model)])
        return capsys.readouterr().out

    return of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, prefect_server: str) -> Callable[..., str]:
    """What a benchmark of this checkout prints as it is started by hand; `python`: a warm one, or by its path a cold."""
    folder = tmp_path_factory.mktemp("benchmarks")
    project = Project(ROOT, folder / "home", prefect_server)
    for name in ("home", "empty"):
        (folder / name).mkdir()
    (project.home / "models").symlink_to(MODELS)

    def printed(*command: str, python: str = "python") -> str:
        done = project.command(["env", "ABSTAIN_DEVICE=cpu", python, "-m", *command])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return printed


def compares_extraction(said: str) -> None:
    # Which of the two is said depends on the dtype that suits the processor.
    assert said.count("cosine at least 0.999") + said.count("equal within") == 4 and "equal within" in said
    assert "NLLs off from float32" in said


def counts_perturbation(said: str) -> None:
    counted = re.findall(r"\| \w+ \| \w+ \| [\d,]+ \| [\d,]+ \| \*\*\d+\.\d\d\*\* \| \d+ \|$", said, re.MULTILINE)
    assert len(counted) == 8 and said.count("2 of 2") == 4
    assert len(re.findall(r"a context \| 2 \| [\d,]+ \| [\d,]+ \|", said)) == 2


def counts_scaling(said: str) -> None:
    share = re.search(r"(\d+\.\d+)% of that", said)
    assert share is not None and float(share[1]) < 10 and "| 100 |" in said


def ranks_scorers(said: str, rows: int) -> None:
    assert f"{rows} training answers, {rows} test answers" in said
    assert "out-of-fold AUROC by place: residual 8 0." in said and said.count("<- the best of them") == 1
    assert len(re.findall(r"^\| `\w+` \| 0\.\d{3} \|", said, re.MULTILINE)) > 12


EXTRACTION = ("--rows", "4", "--repeats", "1")
PERTURBATION = ("--contexts", "2", "--timed", "1", "--tokens", "2")
SCALING = ("--rows", "40", "--sizes", "100")


def test_extraction_compares_before_it_times(printed: Callable[..., str]) -> None:
    compares_extraction(printed(extraction.main, *EXTRACTION))


def test_perturbation_compares_before_it_times(printed: Callable[..., str]) -> None:
    counts_perturbation(printed(perturbation.main, *PERTURBATION))


def test_scaling_reads_only_new_rows(printed: Callable[..., str]) -> None:
    counts_scaling(printed(scaling.main, *SCALING))


def test_the_study_of_familiarity_has_its_three_tables(
    printed: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(familiarity, "N_RESAMPLES", 100)
    monkeypatch.setattr(familiarity, "FamiliarityConfig", SHORT)
    short = partial(familiarity.FamiliarityBaselines, reply_tokens=6, samples=2, sample_tokens=4)
    monkeypatch.setattr(familiarity, "FamiliarityBaselines", short)
    known = {"Mount Etna": True, "Zorvian Ledger": False, "Magna Carta": True, "Quorble Flux": False}
    tables = {
        "concepts": [{"concept_id": name, "concept": name, "domain": "Art", "real": of} for name, of in known.items()],
        "questions": [{"concept_id": name, "question": f"What is {name} known for?"} for name in known],
        "common_concepts": [{"concept": name, "domain": "general"} for name in ("Rain", "Bread", "Gravity")],
    }
    for name, rows in tables.items():
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
    said = printed(familiarity.main, str(tmp_path))
    assert "5 of 7 are not fictional" in said and "2 of 4 are about real ones" in said
    rows = re.findall(r"^\| ([\w -]+?)(?: \(\d+ without a score\))? \| (?:\d\.\d{3}|nan) \(", said, re.MULTILINE)
    alone = printed(familiarity.main, str(tmp_path), "--concepts", "1", "--questions", "0")
    assert "2 of 3 are not fictional" in alone and "table 2" not in alone
    assert rows == [familiarity.SELF_FAMILIARITY, *BASELINES] * 2 + [
        familiarity.SELF_FAMILIARITY,
        *familiarity.ABLATIONS,
    ]


@NEEDS_VERDICTS
def test_the_familiarity_of_questions_is_compared(printed: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_familiarity, "N_RESAMPLES", 100)
    monkeypatch.setattr(question_familiarity, "FamiliarityConfig", SHORT)
    monkeypatch.setattr(question_familiarity.SelfFamiliarity, "estimate_threshold", lambda self: 0.5)
    said = printed(question_familiarity.main, "--verdicts", "--rows", "24")
    assert "24 answers in" in said and len(re.findall(r"AUROC of [\w -]+: 0\.\d{3} \(", said)) == 3


@NEEDS_VERDICTS
def test_scorers_are_ranked(printed: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scorers, "SITES", scorers.SITES[:2])
    monkeypatch.setattr(scorers, "N_RESAMPLES", 100)
    small = full_params().model_dump(mode="json")
    small["regressors"]["trees"], small["probe"]["max_epochs"], small["perturbation"]["tokens"] = 30, 3, 3
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(small))
    fast = ("--params", str(tmp_path / "params.yaml"), "--without", *COSTLY, "yes_score_fused", "entropy")
    ranks_scorers(printed(scorers.main, "--rows", "24", *fast), 24)


@pytest.mark.soak(twin="test_extraction_compares_before_it_times")
def test_extraction_with_the_embedded_model(run: Callable[..., str]) -> None:
    compares_extraction(run("benchmarks.extraction", *EXTRACTION))


@pytest.mark.soak(twin="test_perturbation_compares_before_it_times")
def test_perturbation_with_the_embedded_model(run: Callable[..., str]) -> None:
    counts_perturbation(run("benchmarks.perturbation", *PERTURBATION))


@pytest.mark.soak(twin="test_scaling_reads_only_new_rows")
def test_scaling_with_the_embedded_model(run: Callable[..., str]) -> None:
    counts_scaling(run("benchmarks.scaling", *SCALING))


@NEEDS_VERDICTS
@pytest.mark.soak(twin="test_scorers_are_ranked")
def test_scorers_with_the_embedded_model(run: Callable[..., str]) -> None:
    ranks_scorers(run("benchmarks.scorers", "--rows", "24", "--without", *COSTLY), 24)


def test_gpu_equality_sees_wrong_log_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality, "FAMILIES", {"Llama": equality.FAMILIES["Llama"]})
    monkeypatch.setattr(equality, "LIMITS", {torch.float32: equality.LIMITS[torch.float32]})
    assert all(within for _, within in equality.check_equality(torch.device("cpu")))
    project = Decoder._project
    monkeypatch.setattr(Decoder, "_project", lambda *given: 1.05 * project(*given))  # too little for the self-check
    broken = {line.split(" | ")[2] for line, within in equality.check_equality(torch.device("cpu")) if not within}
    assert broken == {"nll", "choices", "answers", "beams"}


def test_memory_is_measured_in_fresh_processes(run: Callable[..., str]) -> None:
    said = run("benchmarks.memory", "--rows", "20", "--width", "64", "--architectures", "linear", python=sys.executable)
    assert "| assemble |" in said and "| train linear," in said


@pytest.mark.soak(twin="test_memory_is_measured_in_fresh_processes")
def test_memory_is_measured_for_every_architecture(run: Callable[..., str]) -> None:
    said = run("benchmarks.memory", "--rows", "20", "--width", "64", python=sys.executable)
    assert all(f"| train {name}," in said for name in ("linear", "attention", "pca", "lstm"))


def test_probe_times_an_exported_file(run: Callable[..., str]) -> None:
    said = run("benchmarks.probe", "--widths", "32", "--repeats", "1", "--architectures", "linear")
    assert len(re.findall(r"^\| linear \| 32 \|", said, re.MULTILINE)) == 2


@pytest.mark.soak(twin="test_probe_times_an_exported_file")
def test_probe_times_every_architecture(run: Callable[..., str]) -> None:
    said = run("benchmarks.probe", "--widths", "32", "--repeats", "1")
    assert all(name in said for name in ("linear", "lstm", "attention", "pca"))


def test_retrieval_compares_both_indexes(run: Callable[..., str]) -> None:
    said = run("benchmarks.retrieval", "--parts", "latency", "--chunks", "2000", "--queries", "20")
    assert said.count("| pgvector |") == 4


@pytest.mark.soak(twin="test_retrieval_compares_both_indexes")
def test_retrieval_finds_the_sample_s_chunks(run: Callable[..., str]) -> None:
    said = run("benchmarks.retrieval", "--parts", "sample", "latency", "--chunks", "2000", "--queries", "20")
    assert "| the sample | 108 | 587 |" in said and said.count("| pgvector |") == 4


def test_ingest_is_measured_as_a_user_runs_it(run: Callable[..., str]) -> None:
    said = run("benchmarks.ingest", "--rows", "1000")
    counts = r"1,000 read, 9\d\d accepted, \d+ duplicate, 0 pending, \d+ quarantined"
    assert re.search(rf"\| 1,000 \| ingest \| \d+\.\d \| \d+\.\d \| \d\.\d\d \| {counts} \|", said)
    assert re.search(r"\| 1,000 \| validate, dataset \| .* \| [\d,]+ labelled answers \|", said)
    assert "| 1,000 | together |" in said


def test_the_gate_server_reads_nothing_for_given_states(run: Callable[..., str]) -> None:
    said = run("benchmarks.serving", "--seconds", "1", "--answers", "4", "--in-flight", "2", "--repeats", "1")
    assert "\n  0 tokens read by the base model\n" in said and said.count(" p99 ") == 2
    assert re.search(r"ready after \d+\.\d s of CPU", said)
