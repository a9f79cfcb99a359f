import csv
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from abstain.core.contracts import Interaction, Review, Thumb
from abstain.data.store.dataset import DataStore
from tests.checkout import ROOT
from tests.conftest import Project, new_project
from tests.ingest.exports.test_exports import FIXTURES, PAGES

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "tutorial-own-data.md").read_text()


def run_page(project: Project, *, own: Path | None = None, until: str = "") -> str:
    """Run the commands of the page up to the heading `until`, in one shell, and return what they printed."""
    page = PAGE[: PAGE.index(until)] if until else PAGE
    commands = "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL))
    # The command as the tests' environment has it: no package of this checkout is installed there.
    script = f'set -eu\nabstain() {{ python -m abstain_cli.app "$@"; }}\n{commands}'
    folder = [f"OWN={own}"] if own else []
    return project.run("env", *folder, "bash", "-c", script)


def count_rows(project: Project, contract: type[Any], prefix: str) -> int:
    rows = DataStore(project.workspace / "data").iter_rows(contract)
    return sum(row.interaction_id.startswith(prefix) for row in rows)


@pytest.fixture
def project(tmp_path: Path, prefect_server: str) -> Project:
    return replace(new_project(tmp_path / "project"), server=prefect_server)


def test_tutorial_ingests_any_folder(project: Project, tmp_path: Path) -> None:
    own = tmp_path / "other folder"
    shutil.copytree(FIXTURES / "phoenix", own)
    (own / "mapping.yaml").write_text((PAGES / "phoenix.md").read_text().split("```yaml\n")[1].split("```")[0])
    assert "not mapped: toxicity (1)" in " ".join(run_page(project, own=own, until="## 5.").split())
    assert [count_rows(project, contract, "051581bf") for contract in (Interaction, Thumb, Review)] == [1, 1, 1]


@pytest.mark.soak(twin="test_tutorial_ingests_any_folder")
def test_tutorial_as_written_trains(project: Project) -> None:
    output = run_page(project)
    with (project.root / ".abstain" / "own" / "tickets.csv").open(newline="") as file:
        tickets = list(csv.DictReader(file))
    assert count_rows(project, Interaction, "") == count_rows(project, Interaction, "Q-") == len(tickets)
    assert count_rows(project, Thumb, "Q-") == sum(bool(ticket["smiley"]) for ticket in tickets)
    assert count_rows(project, Review, "Q-") == sum(bool(ticket["result"]) for ticket in tickets)
    assert "not mapped" not in output
    assert re.search(r"^report +ran ", output, re.MULTILINE) and "choose_layer" not in output
