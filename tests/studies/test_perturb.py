from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from studies import perturb as perturb_cli
from studies.perturb import app
from tests.checkout import TEMPLATE
from tests.llm.builders import save_tiny_model

TEXT = "Fees are due in May."


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    torch.set_num_threads(1)
    monkeypatch.chdir(TEMPLATE)
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(perturb_cli.console, "width", 160)
    return str(save_tiny_model(tmp_path / "tiny-bank"))


def perturb(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_perturbed_text_is_shown_as_a_diff_with_every_replacement(model: str) -> None:
    said = perturb(TEXT, "--model", model, "--tokens", "3", "--selection", "entropy")
    first, *_ = said.splitlines()
    assert first.count("[-") == first.count("{+") == 3
    kept = [part.rpartition("+}")[2] for part in first.split("[-")]
    assert all(part in TEXT for part in kept) and first != TEXT
    assert [line.split("│")[1].strip() for line in said.splitlines() if line.startswith("│")] == ["1", "2", "3"]
    assert "only" not in said


@pytest.mark.soak(twin="test_a_perturbed_text_is_shown_as_a_diff_with_every_replacement")
def test_fewer_tokens_than_wanted_are_said(model: str) -> None:
    said = perturb("May", "--model", model, "--tokens", "9", "--schedule", "single_shot")
    assert "only 3 tokens can be replaced, of the 9 that were wanted" in said


@pytest.mark.soak(twin="test_a_perturbed_text_is_shown_as_a_diff_with_every_replacement")
def test_a_text_beyond_the_model_s_window_is_refused_in_one_line(model: str) -> None:
    done = CliRunner().invoke(app, ["May. " * 5000, "--model", model])
    assert done.exit_code == 1
    assert str(done.exception) == f"the text is longer than {model} reads at once: give a shorter one"


@pytest.mark.soak(twin="test_a_perturbed_text_is_shown_as_a_diff_with_every_replacement")
@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--selection", "here", "--selection: Input should be 'entropy' or 'random'"),
        ("--schedule", "now", "--schedule: Input"),
    ],
)
def test_what_cannot_be_is_named(model: str, option: str, value: str, says: str) -> None:
    done = CliRunner().invoke(app, [TEXT, "--model", model, option, value])
    assert done.exit_code == 1 and str(done.exception).startswith(says)
