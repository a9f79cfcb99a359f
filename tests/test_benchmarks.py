"""The benchmarks run: small, and with a tiny base model."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from abstain.config.settings import Settings
from abstain.ingest.parsing import parse_line
from abstain.llm.engine.decoder import Decoder
from abstain.llm.engine.loading import find_model, load_tokenizer
from benchmarks import extraction, ingest, perturbation, scaling
from benchmarks.gpu import equality
from tests.conftest import MODELS, ROOT, Project
from tests.llm.builders import save_tiny_model

pytestmark = pytest.mark.slow


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
def run_main(
    deep_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run a benchmark with the tiny model in this process, and return its output."""
    for name, value in {"HOME": str(tmp_path), "DEVICE": "cpu", "DTYPE": "float32"}.items():
        monkeypatch.setenv(f"ABSTAIN_{name}", value)

    def call(main: Callable[[list[str]], None], *arguments: str) -> str:
        main([*arguments, "--model", str(deep_model)])
        return capsys.readouterr().out

    return call


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, prefect_server: str) -> Callable[..., str]:
    """Run `python -m` a benchmark, and return its output."""
    folder = tmp_path_factory.mktemp("benchmarks")
    project = Project(ROOT, folder / "home", prefect_server)
    for name in ("home", "empty"):
        (folder / name).mkdir()
    (project.home / "models").symlink_to(MODELS)

    def run_module(*command: str) -> str:
        return project.run("env", "ABSTAIN_DEVICE=cpu", "python", "-m", *command)

    return run_module


@pytest.mark.soak(twin="test_perturbation_benchmark_counts_tokens")
def test_extraction_benchmark_compares_before_it_times(run_main: Callable[..., str]) -> None:
    output = run_main(extraction.main, "--rows", "2", "--repeats", "1")
    # The processor decides which of the two is compared.
    assert output.count("cosine at least 0.999") + output.count("equal within") == 4 and "equal within" in output
    assert "NLLs off from float32" in output


def test_perturbation_benchmark_counts_tokens(run_main: Callable[..., str]) -> None:
    output = run_main(perturbation.main, "--contexts", "2", "--timed", "1", "--tokens", "2")
    rows = re.findall(r"\| \w+ \| \w+ \| [\d,]+ \| [\d,]+ \| \*\*\d+\.\d\d\*\* \| \d+ \|$", output, re.MULTILINE)
    assert len(rows) == 8 and output.count("2 of 2") == 4
    assert len(re.findall(r"a context \| 2 \| [\d,]+ \| [\d,]+ \|", output)) == 2


def test_scaling_benchmark_reads_only_new_rows(run_main: Callable[..., str]) -> None:
    output = run_main(scaling.main, "--rows", "40", "--sizes", "100")
    share = re.search(r"(\d+\.\d+)% of that", output)
    assert share is not None and float(share[1]) < 10 and "| 100 |" in output


@pytest.mark.soak(twin="test_embedded_model_equals_a_plain_forward_in_any_batch")
def test_gpu_equality_detects_wrong_log_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality, "FAMILIES", {"Llama": equality.FAMILIES["Llama"]})
    monkeypatch.setattr(equality, "LIMITS", {torch.float32: equality.LIMITS[torch.float32]})
    assert all(within for _, within in equality.check_equality(torch.device("cpu")))
    project = Decoder._project
    monkeypatch.setattr(Decoder, "_project", lambda *given: 1.05 * project(*given))  # too little for the self-check
    broken = {line.split(" | ")[2] for line, within in equality.check_equality(torch.device("cpu")) if not within}
    assert broken == {"nll", "choices", "answers", "beams"}


@pytest.mark.parametrize(
    ("command", "row", "count"),
    [
        ("memory --rows 20 --width 64 --architectures linear", r"\| (assemble \||train linear,)", 2),
        ("probe --widths 32 --repeats 1 --architectures linear", r"^\| linear \| 32 \|", 2),
        ("retrieval --parts latency --chunks 500 --queries 10", r"\| pgvector \|", 4),
    ],
)
def test_benchmark_prints_a_row_for_each_case(run: Callable[..., str], command: str, row: str, count: int) -> None:
    assert len(re.findall(row, run(*f"benchmarks.{command}".split()), re.MULTILINE)) == count


def test_ingest_benchmark_makes_rows_of_which_some_are_broken() -> None:
    lines = list(ingest.make_rows(1000, ["fees#0", "fees#1", "fees#2"]))
    rows = [parse_line(line.encode(), "rows.jsonl", 1) for line in lines]
    assert 0 < sum(bool(row.reasons) for row in rows) < 30 and 970 < len(set(lines)) < 1000
    assert any(row.review for row in rows) and any(row.thumb and row.thumb.comment for row in rows)


@pytest.mark.soak(twin="test_ingest_benchmark_makes_rows_of_which_some_are_broken")
def test_ingest_benchmark_measures_the_commands(run: Callable[..., str]) -> None:
    output = run("benchmarks.ingest", "--rows", "1000")
    counts = r"1,000 read, 9\d\d accepted, \d+ duplicate, 0 pending, \d+ quarantined"
    assert re.search(rf"\| 1,000 \| ingest \| \d+\.\d \| \d+\.\d \| \d\.\d\d \| {counts} \|", output)
    assert re.search(r"\| 1,000 \| validate, dataset \| .* \| [\d,]+ labelled answers \|", output)
    assert "| 1,000 | together |" in output


@pytest.mark.soak(twin="test_gate_states_give_the_same_and_cost_nothing")
def test_serving_benchmark_reads_nothing_for_given_states(run: Callable[..., str]) -> None:
    output = run("benchmarks.serving", "--seconds", "1", "--answers", "4", "--in-flight", "2", "--repeats", "1")
    assert "\n  0 tokens read by the base model\n" in output and output.count(" p99 ") == 2
    assert re.search(r"ready after \d+\.\d s of CPU", output)
