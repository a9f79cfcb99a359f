from pathlib import Path

import pytest
from typer.testing import CliRunner

from studies import perturb as perturb_cli
from studies.perturb import app
from tests.checkout import TEMPLATE
from tests.llm.builders import save_tiny_model

TEXT = "Fees are due in May."


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(TEMPLATE)
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(perturb_cli.console, "width", 160)
    return str(save_tiny_model(tmp_path / "tiny-bank"))


def test_perturb_shows_a_diff_with_every_replacement(model: str) -> None:
    output = CliRunner().invoke(app, [TEXT, "--model", model, "--tokens", "3", "--selection", "entropy"]).output
    first, *_ = output.splitlines()
    assert first.count("[-") == first.count("{+") == 3
    kept = [part.rpartition("+}")[2] for part in first.split("[-")]
    assert all(part in TEXT for part in kept) and first != TEXT
    assert [line.split("│")[1].strip() for line in output.splitlines() if line.startswith("│")] == ["1", "2", "3"]
    assert "only" not in output
