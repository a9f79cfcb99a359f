import shutil
from pathlib import Path

import pytest

from abstain_tasks.runs.workspace import Workspace
from abstain_tasks.training.site_choice import should_choose_site
from tests.checkout import ROOT


@pytest.mark.parametrize(
    ("decided", "own", "wanted"),
    [
        ("auto", None, True),
        ("20", None, False),
        ("auto", "llm: {layer: 4}", False),
        ("auto", "probe: {architectures: [linear]}", True),
        ("20", "llm: {layer: auto}", True),
    ],
)
def test_should_choose_site_only_for_auto_layer(tmp_path: Path, decided: str, own: str | None, wanted: bool) -> None:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    text = (tmp_path / "params.yaml").read_text()
    (tmp_path / "params.yaml").write_text(text.replace("  layer: 20 ", f"  layer: {decided} "))
    (tmp_path / "own.yaml").write_text(own or "")
    assert should_choose_site(Workspace(tmp_path, 0), tmp_path / "own.yaml" if own else None) is wanted
