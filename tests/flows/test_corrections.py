"""`abstain ingest FILE --replace REASON`, by the command line."""

import json
from pathlib import Path

import pytest

from abstain.core.contracts import Interaction
from abstain.data.store.dataset import DataStore
from tests.conftest import Project

pytestmark = pytest.mark.slow


def test_ingest_replace_corrects_rows_and_marks_versions(small_project: Project, tmp_path: Path) -> None:
    project, file = small_project, tmp_path / "corrected.jsonl"
    row = {"asked_at": "2026-11-10T12:00:00Z", "question": "What?", "contexts": [], "model": "m@1"}
    thumb = {"thumb": "up", "given_at": "2026-11-10T12:01:00Z", "user": "u-1"}

    def ingest(*options: str, **rows: str) -> str:
        lines = [{"interaction_id": key, "answer": answer, **row, "thumb": thumb} for key, answer in rows.items()]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = project.abstain("ingest", str(file), *options)
        return " ".join((done.stdout + done.stderr).split())

    ingest(first="Wrong.", second="Right.")
    project.git("tag", "--annotate", "probe@v1.0.0", "-m", "t", cwd=project.workspace)
    project.git("push", "-q", "origin", "probe@v1.0.0", cwd=project.workspace)
    part = DataStore(project.workspace / "data").list_part_files(Interaction)[-1]
    former = part.read_bytes()

    printed = ingest("--replace", "the export was wrong", first="Right.", second="Right.", third="New.")
    assert "| 3 | read | | 2 | accepted | | 1 | duplicate |" in printed
    assert "New: 1 interactions, 1 feedback" in printed and "- replaced: 1 interactions" in printed
    assert "answers that keep a label given for their former content: 1 (first)" in printed
    assert "versions trained on the former rows, now marked: v1.0.0" in printed

    assert former.replace(b"Wrong.", b"Right.") == part.read_bytes()
    assert "the export was wrong" in project.git("log", "-1", "--format=%b", cwd=project.workspace)
    registry = json.loads(project.git("show", "origin/main:registry.json", cwd=project.workspace))
    assert registry["tainted"]["v1.0.0"]["cause"] == "corrected"
    target = tmp_path / "former.jsonl"
    where = [".", str(part.relative_to(project.workspace)), "--rev", "HEAD~1", "-o", str(target)]
    got = project.command(["env", "-C", str(project.workspace), "dvc", "get", *where])
    assert got.returncode == 0 and target.read_bytes() == former, got.stderr
